"""The filters against NVFlare's own contexts, Shareables and serialisation, with an engine that moves the messages."""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch

pytest.importorskip("nvflare", reason="needs NVFlare: run `make nvflare`, which installs it apart and runs its tests")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable, make_copy, make_reply
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.utils import fobs
from nvflare.recipe.spec import Recipe

from klms.nvflare import ReceiveModel, ReceiveUpdate, SendModel, SendUpdate, compress

flare_decomposers.register()


class Engine:
    """What the filters use of NVFlare's engines, and of its workspace."""

    def __init__(self, name, folder, federation):
        self.name = name
        self.folder = folder
        self.federation = federation
        self.handlers = {}
        self.manager = FLContextManager(
            engine=self, identity_name=name, job_id="job", public_stickers={}, private_stickers={}
        )

    def register_aux_message_handler(self, topic, handler):
        self.handlers[topic] = handler

    def send_aux_request(self, targets, topic, request, timeout, fl_ctx):
        server = self.federation.server
        self.federation.questions += 1
        reply = server.handlers[topic](topic=topic, request=travelled(request), fl_ctx=server.context(self.name))
        return {"server": travelled(reply)}

    def fire_event(self, event_type, fl_ctx):
        pass

    def get_workspace(self):
        return self

    def get_run_dir(self, job):
        return str(self.folder)

    def context(self, peer=None):
        context = self.manager.new_context()
        if peer is not None:
            other = FLContextManager(None, peer, "job", {}, {}).new_context()
            context.set_prop(FLContextKey.PEER_CONTEXT, other, private=True, sticky=False)
            context.set_peer_context(other)
        return context


class Site:
    """A client: its two filters, as NVFlare would build them when it starts."""

    def __init__(self, name, folder, federation):
        self.engine = Engine(name, folder, federation)
        self.federation = federation
        self.start()

    def start(self):
        self.input = ReceiveModel()
        self.output = SendUpdate()
        self.input.handle_event(EventType.START_RUN, self.engine.context())

    def round(self, task, train):
        """Return what reaches the server's controller of a task's result, and what the client was given."""
        data = self.input.process(travelled(self.federation.send(self.engine.name, task)), self.engine.context())
        model = from_shareable(data)
        result = self.output.process(train(model).to_shareable(), self.engine.context())
        return self.federation.receive(self.engine.name, travelled(result)), model


class Federation:
    """The server's two filters and some clients."""

    def __init__(self, folder, clients=2, **settings):
        self.server = Engine("server", folder, self)
        self.questions = 0
        self.output = SendModel(settings)
        self.input = ReceiveUpdate()
        self.output.handle_event(EventType.START_RUN, self.server.context())
        self.sites = []
        for number in range(clients):
            (folder / str(number)).mkdir()
            self.sites.append(Site(f"site-{number}", folder / str(number), self))

    def send(self, client, task):
        """Return what NVFlare sends to a client: its copy of the task shares everything but the headers."""
        return self.output.process(make_copy(task), self.server.context(client))

    def receive(self, client, result):
        return self.input.process(result, self.server.context(client))


def travelled(shareable):
    """Return what the other side reads of a Shareable."""
    return fobs.loads(fobs.dumps(shareable))


def model_of(rng, kind=np.float32):
    return {
        "weight": rng.normal(size=(60, 50)).astype(kind),
        "bias": rng.normal(size=50).astype(kind),
        "steps": np.array(7),
    }


def task_of(model):
    return DXO(DataKind.WEIGHTS, model, {"current_round": 1}).to_shareable()


def trained(step=0.01, kind=DataKind.WEIGHTS, meta=None):
    """Return training that adds a step to all floating-point arrays, and answers with arrays or their differences."""

    def train(received):
        steps = {name: np.full_like(array, step) for name, array in received.data.items()}  # 0 for integers
        if kind == DataKind.WEIGHTS:
            steps = {name: received.data[name] + own for name, own in steps.items()}
        return DXO(kind, steps, meta)

    return train


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def test_both_directions_are_coded_and_the_controller_sees_arrays(tmp_path, rng):
    federation = Federation(tmp_path, bits_per_parameter=4, seed=1)
    model = model_of(rng)
    for _ in range(3):
        task = task_of(model)
        results = []
        for site in federation.sites:
            sent = fobs.dumps(federation.send(site.engine.name, task))
            assert len(sent) < 3051 * 8 / 8 + 1500
            result, received = site.round(task, trained(0.1, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 9}))
            assert received.data.keys() == model.keys()
            assert received.meta["current_round"] == 1
            assert received.meta[MetaKey.FILTER_HISTORY] == ["SendModel", "ReceiveModel"]
            assert from_shareable(result).meta[MetaKey.NUM_STEPS_CURRENT_ROUND] == 9
            assert from_shareable(result).meta[MetaKey.FILTER_HISTORY] == ["SendUpdate", "ReceiveUpdate"]
            assert "klms" not in from_shareable(result).meta
            results.append(from_shareable(result).data)
        assert from_shareable(task).data is model  # what the server shares between clients is not changed
        assert "klms" not in from_shareable(task).meta
        own = federation.output.server.model
        for result in results:
            assert result["steps"] == 7
            assert result["steps"].dtype == model["steps"].dtype
            assert np.mean(np.square(result["weight"] - own["weight"] - 0.1)) < 0.01 * 0.1**2
        model = {name: np.mean([one[name] for one in results], axis=0, dtype=model[name].dtype) for name in model}
    server = federation.output.server
    assert 8 * server.uplink_bytes / (6 * 3051) < 4.2
    assert 8 * server.downlink_bytes / (12 * 3051) < 8.5


def test_differences_lead_the_controller_to_what_was_trained(tmp_path, rng):
    """The controller adds them to its own model, of which clients hold a coarse copy at first."""
    federation = Federation(tmp_path, up=4, down=1)
    model = model_of(rng)
    result, received = federation.sites[0].round(task_of(model), trained(0.1, DataKind.WEIGHT_DIFF))
    dxo = from_shareable(result)
    assert dxo.data_kind == DataKind.WEIGHT_DIFF
    assert np.mean(np.square(received.data["weight"] - model["weight"])) > 0.01
    assert np.mean(np.square(dxo.data["weight"] - 0.1)) < 0.01 * 0.1**2
    assert dxo.data["steps"] == 0


def test_one_filter_serves_all_clients_at_once(tmp_path, rng):
    federation = Federation(tmp_path, clients=8, bits_per_parameter=1)
    for _ in range(4):
        task = task_of(model_of(rng))
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(lambda site, task=task: site.round(task, trained()), federation.sites))
        held = federation.output.server.held.state
        assert len(outcomes) == 8
        for result, received in outcomes:
            assert "klms" not in from_shareable(result).data
            assert all(np.array_equal(received.data[name], held[name]) for name in held)
    assert federation.questions == 0


def test_a_client_that_has_lost_the_model_gets_it_again(tmp_path, rng):
    federation = Federation(tmp_path, bits_per_parameter=1)
    model = model_of(rng)
    for number in range(3):
        if number == 2:
            federation.sites[0].start()  # another process, without anything of the first one
        task = task_of({**model, "weight": model["weight"] + number})
        for site in federation.sites:
            _, received = site.round(task, trained())
            held = federation.output.server.held.state
            assert all(np.array_equal(received.data[name], held[name]) for name in held)
    assert federation.questions == 1


def test_a_client_that_keeps_claiming_to_be_lost_is_left_out(tmp_path, rng):
    federation = Federation(tmp_path, clients=1, bits_per_parameter=1)
    (site,) = federation.sites
    model = model_of(rng)
    site.round(task_of(model), trained())
    for number in range(1, 4):  # a machine may restart several times
        site.start()
        site.round(task_of({**model, "weight": model["weight"] + number}), trained())
    site.start()
    with pytest.raises(SideInformationMismatch):
        site.round(task_of({**model, "weight": model["weight"] + 4}), trained())
    assert federation.questions == 4


def test_a_simulated_client_that_is_swapped_out_keeps_what_it_holds(tmp_path, rng):
    federation = Federation(tmp_path, bits_per_parameter=1)
    model = model_of(rng)
    for number in range(3):
        task = task_of({**model, "weight": model["weight"] + number})
        for site in federation.sites:
            site.start()
            site.engine.context().set_prop(FLContextKey.SIMULATE_MODE, True, private=True, sticky=True)
            site.round(task, trained())
    assert federation.questions == 0


def test_a_task_that_is_sent_again_can_be_answered(tmp_path, rng):
    federation = Federation(tmp_path, bits_per_parameter=4)
    site = federation.sites[0]
    task = task_of(model_of(rng))
    site.input.process(travelled(federation.send("site-0", task)), site.engine.context())  # training was interrupted
    result, _ = site.round(task, trained())
    assert "klms" not in from_shareable(result).data


def test_replies_that_do_not_count_are_errors(tmp_path, rng):
    federation = Federation(tmp_path, bits_per_parameter=1)
    site = federation.sites[0]
    model = model_of(rng)

    def answered(task):
        data = site.input.process(travelled(federation.send("site-0", task)), site.engine.context())
        result = site.output.process(trained()(from_shareable(data)).to_shareable(), site.engine.context())
        return travelled(result)

    result = answered(task_of(model))
    damaged = travelled(result)
    damaged["DXO"]["data"]["klms"] = damaged["DXO"]["data"]["klms"][:-1]
    with pytest.raises(CorruptMessage):
        federation.receive("site-0", damaged)
    with pytest.raises(SideInformationMismatch):
        federation.receive("site-1", travelled(result))
    federation.receive("site-0", travelled(result))
    with pytest.raises(SideInformationMismatch):
        federation.receive("site-0", travelled(result))
    late = answered(task_of({**model, "weight": model["weight"] + 1}))
    federation.send("site-1", task_of({**model, "weight": model["weight"] + 2}))
    with pytest.raises(SideInformationMismatch):
        federation.receive("site-0", late)


@pytest.mark.parametrize(
    "other",
    [
        Shareable({"anything": 1}),
        DXO(DataKind.METRICS, {"accuracy": 0.5}).to_shareable(),
        DXO(DataKind.COLLECTION, {"one": DXO(DataKind.WEIGHTS, {"weight": np.zeros(2000, np.float32)})}).to_shareable(),
        DXO(DataKind.WEIGHTS, {"weight": [1.0, "text"]}).to_shareable(),
        make_reply(ReturnCode.EXECUTION_EXCEPTION),
    ],
    ids=["no DXO", "metrics", "collection", "no array", "failed"],
)
def test_everything_else_passes_unchanged(tmp_path, rng, other):
    federation = Federation(tmp_path, bits_per_parameter=1)
    site = federation.sites[0]
    before = dict(other)
    assert federation.send("site-0", other) == before
    assert site.input.process(other, site.engine.context()) == before
    assert site.output.process(other, site.engine.context()) == before
    assert federation.receive("site-0", other) == before
    site.round(task_of(model_of(rng)), trained())


def test_arrays_that_were_not_received_pass_uncompressed(tmp_path, rng, caplog):
    federation = Federation(tmp_path, bits_per_parameter=1)
    own = {"other": np.ones((40, 40), np.float32)}
    with caplog.at_level(logging.WARNING):
        for kind in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            site = federation.sites[0]
            data = site.input.process(
                travelled(federation.send("site-0", task_of(model_of(rng)))), site.engine.context()
            )
            assert "klms" not in from_shareable(data).data
            result = site.output.process(DXO(kind, own).to_shareable(), site.engine.context())
            assert from_shareable(federation.receive("site-0", result)).data["other"] is own["other"]
    assert "the update goes out uncompressed: these arrays were not received: other" in caplog.text


def test_some_of_the_arrays_are_enough(tmp_path, rng):
    federation = Federation(tmp_path, bits_per_parameter=4)

    def train(received):
        return DXO(DataKind.WEIGHTS, {"weight": received.data["weight"] + np.float32(0.1)})

    result, _ = federation.sites[0].round(task_of(model_of(rng)), train)
    assert from_shareable(result).data.keys() == {"weight"}


def test_tensors_stay_tensors(tmp_path, rng):
    torch = pytest.importorskip("torch")
    federation = Federation(tmp_path, bits_per_parameter=6)
    model = {
        "weight": torch.tensor(rng.normal(size=(60, 50)), dtype=torch.bfloat16),
        "head": torch.nn.Parameter(torch.tensor(rng.normal(size=(30, 50)), dtype=torch.float32)),
        "steps": torch.tensor(7),
    }

    def train(received):
        return DXO(DataKind.WEIGHTS, {name: tensor + 1 for name, tensor in received.data.items()})

    result, received = federation.sites[0].round(task_of(model), train)
    for data, wanted in ((received.data, 0), (from_shareable(result).data, 1)):
        assert {name: tensor.dtype for name, tensor in data.items()} == {n: t.dtype for n, t in model.items()}
        assert float((data["weight"].float() - model["weight"].float() - wanted).abs().mean()) < 0.05
        assert int(data["steps"]) == 7 + wanted


def test_the_log_says_once_what_was_achieved(tmp_path, rng, caplog):
    federation = Federation(tmp_path, bits_per_parameter=1)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            task = task_of(model_of(rng))
            for site in federation.sites:
                site.round(task, trained())
        federation.output.handle_event(EventType.END_RUN, federation.server.context())
    (line,) = [record.getMessage() for record in caplog.records if "bytes up" in record.getMessage()]
    server = federation.output.server
    assert f"klms: {server.uplink_bytes:,} bytes up, {server.downlink_bytes:,} bytes down" in line


class Added(Recipe):
    """A recipe that remembers the tasks of its filters."""

    def __init__(self):
        self.tasks = []

    def _add(self, filter, tasks=None):
        self.tasks.append(tasks)

    add_server_output_filter = add_client_input_filter = add_client_output_filter = add_server_input_filter = _add


@pytest.mark.parametrize(("tasks", "names"), [("learn", ["learn"]), (("learn", "tune"), ["learn", "tune"])])
def test_one_task_may_be_named_without_a_list(tasks, names):
    recipe = Added()
    compress(recipe, bits_per_parameter=1, tasks=tasks)
    assert recipe.tasks == 4 * [names]


def test_a_recipe_is_compressed_once_and_for_some_task():
    recipe = Added()
    with pytest.raises(InvalidArgument, match="at least one task"):
        compress(recipe, tasks=[])
    with pytest.raises(InvalidArgument, match="bits_per_parameter"):
        compress(recipe, bits_per_paramter=1)
    recipe = Added()
    compress(recipe)
    with pytest.raises(InvalidArgument, match="called once"):
        compress(recipe)
    assert len(recipe.tasks) == 4


def test_what_the_job_cannot_hold_is_told_when_it_is_made():
    with pytest.raises(InvalidArgument, match="up must not be a function"):
        compress(Added(), up=lambda round: 1)
    with pytest.raises(InvalidArgument, match="takes a recipe"):
        compress("x")


def test_wrong_settings_are_told_when_the_job_is_made():
    with pytest.raises(InvalidArgument, match="bits_per_parameter"):
        SendModel({"bits_per_paramter": 1})
