"""Our methods as Flower apps: what the local engine does, byte for byte, and what it never has to bear."""

import json
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from klms import SharedKey
from klms.compressors.envelope import wrap
from klms.engine.federation import Federation, Parts
from klms.engine.local import update
from klms.errors import InvalidArgument, RunFolderError
from klms.flower import client_app, server_app, template_app
from klms.flower.settings import ServerSettings, run_config, server_settings
from klms.frame import OVERHEAD, Frame, Kind, digest_of, fingerprint
from klms.runs import execution
from klms.runs.federate import federate
from klms.runs.run_folder import CHECKPOINT, RunFolder
from klms.runs.settings import profile_settings, resolve, to_toml
from tests.flower.in_process import InProcessGrid, serve
from tests.support.small_data import write_mnist


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("data"), train=120, test=40)


def config_of(method, mnist, **given):
    common = {"clients": 3, "rounds": 3, "evaluate_every": 1, "data_dir": mnist, "images": 0, "batch": 16}
    common |= {"width": 0.25, "epochs": 1}
    seeded = {"private_randomness": "seeded"}  # to compare with the local engine
    return resolve(method, profile="small", given=common | seeded | given)


def on_flower(config, folder, tamper=None, grid=InProcessGrid, **settings):
    """A run whose clients are ClientApps; its folder."""
    grid = grid(client_app(config), config.clients, tamper=tamper)
    own = ServerSettings(run_folder=str(folder), **{"join_timeout": 0.1, **settings})
    serve(server_app(config, own), grid)
    return RunFolder(folder)


def replies(folder, round_=1):
    """What became of the clients that were asked, without the zeros."""
    record = list(folder.records())[round_ - 1]
    return {word: count for word, count in record.replies.items() if count}


METHODS = ["fedpm", "fedpm-klms", "qsgd", "qsgd-klms", "signsgd", "signsgd-klms", "sgld", "sgld-klms", "topk", "marina"]
RATES = [
    {"rate_schedule": "1:1,0.1", "down_rate_schedule": "1:2,0.3", "downlink": "coded"},
    {"round_budget": 100_000},
    {"quality": 1.0},
    {"quality": 2.0, "downlink": "coded"},
]


@pytest.mark.parametrize(
    ("method", "given"), [*((method, {}) for method in METHODS), *(("trellis", own) for own in RATES)]
)
def test_flower_and_the_local_engine_give_the_same_bytes(method, given, mnist, tmp_path):
    config = config_of(method, mnist, per_round=2, **given)
    execution.start_or_resume(config, tmp_path / "local")
    flower = on_flower(config, tmp_path / "flower")
    ours, theirs = (list(RunFolder(tmp_path / name).records()) for name in ("local", "flower"))
    flower_only = {"seconds", "replies", "payload_bytes", "resyncs"}
    for mine, other in zip(ours, theirs, strict=True):
        assert other.model_dump(exclude=flower_only) == mine.model_dump(exclude=flower_only)
        assert other.payload_bytes == mine.uplink_bytes + OVERHEAD * 2
        assert other.train_loss is not None
    local, remote = (RunFolder(tmp_path / name).state().shared for name in ("local", "flower"))
    assert digest_of(0, local) == digest_of(0, remote)
    assert replies(flower) == {"ok": 2}


def test_a_server_that_is_started_again_resumes_with_the_next_absolute_round(mnist, tmp_path):
    config = config_of("fedpm-klms", mnist)
    execution.start_or_resume(config, tmp_path / "whole")
    stopped = InProcessGrid(client_app(config), 3)
    send, asked = stopped.send_and_receive, []

    def fail_in_round_3(messages, *, timeout=None):
        messages = list(messages)
        asked.append({int(m.content["klms"]["round"]) for m in messages if m.metadata.message_type == "train"})
        if {3} in asked:
            raise KeyboardInterrupt
        return send(messages, timeout=timeout)

    stopped.send_and_receive = fail_in_round_3
    own = ServerSettings(run_folder=str(tmp_path / "flower"))
    with pytest.raises(KeyboardInterrupt):
        serve(server_app(config, own), stopped)
    assert RunFolder(tmp_path / "flower").rounds() == 2
    again = InProcessGrid(client_app(config), 3)
    serve(server_app(config, own), again)
    rounds = [m.content["klms"]["round"] for m in again.sent if m.metadata.message_type == "train"]
    assert rounds == [3] * 6  # these nodes have lost their states, and are asked again with a snapshot
    assert list(RunFolder(tmp_path / "flower").records())[-1].resyncs == 3
    assert (tmp_path / "flower" / CHECKPOINT).read_bytes() == (tmp_path / "whole" / CHECKPOINT).read_bytes()


def test_a_folder_with_another_run_is_not_resumed(mnist, tmp_path):
    on_flower(config_of("fedpm", mnist, rounds=1), tmp_path / "run")
    with pytest.raises(RunFolderError, match="lr"):
        on_flower(config_of("fedpm", mnist, rounds=1, lr=0.5), tmp_path / "run")


def payloads(grid):
    records = [reply.content.config_records.get("klms") for reply in grid.received]
    return [Frame.from_bytes(record["reply"], Kind.METHOD).body for record in records if record is not None]


def test_a_deployment_draws_its_seed_and_its_clients_keep_their_randomness_to_themselves(mnist, tmp_path):
    """A listener who knows every setting and the seed cannot make the messages again."""
    config = config_of("dp-rec", mnist, rounds=1, private_randomness="auto")
    seeds = []
    for name in ("one", "two"):
        grid = InProcessGrid(client_app(config), 3)
        serve(server_app(config, ServerSettings(run_folder=str(tmp_path / name))), grid)
        found = RunFolder(tmp_path / name).config()
        assert found.private_randomness == "system"
        seeds.append(found.seed)
        known = Federation.create(found.model_copy(update={"private_randomness": "seeded"}))
        again = [update(known, known.method.init(), client).message for client in range(3)]
        assert not set(again) & set(payloads(grid))
        (record,) = RunFolder(tmp_path / name).records()
        assert record.replies["ok"] == 3
        assert record.epsilon is not None
    assert len({0, *seeds}) == 3


def test_a_seeded_run_reports_no_epsilon(mnist, tmp_path):
    config = config_of("dp-rec", mnist, rounds=1)
    grid = InProcessGrid(client_app(config), 3)
    serve(server_app(config, ServerSettings(run_folder=str(tmp_path / "run"))), grid)
    federation = Federation.create(config)
    again = [update(federation, federation.method.init(), client).message for client in range(3)]
    assert payloads(grid) == again  # whoever knows the seed
    (record,) = RunFolder(tmp_path / "run").records()
    assert (record.epsilon, record.delta) == (None, None)


def test_a_deployment_that_is_started_again_keeps_its_seed(mnist, tmp_path):
    config = config_of("fedpm-klms", mnist, rounds=1, private_randomness="auto")
    drawn = on_flower(config, tmp_path / "run").config().seed
    on_flower(config, tmp_path / "run")
    assert RunFolder(tmp_path / "run").config().seed == drawn
    with pytest.raises(RunFolderError, match="private_randomness"):
        on_flower(config_of("fedpm-klms", mnist, rounds=1), tmp_path / "run")


class Faults:
    """Client 0 is lost, 1 raises, 2 sends garbage, 3 its first message again, 4 one made against another state."""

    def __init__(self):
        self.earlier = None

    def __call__(self, node, reply):
        client = node - 1
        if reply.metadata.message_type != "train" or client > 5:
            return reply
        record = reply.content["klms"]
        if client == 0:
            return None
        if client == 1:
            return Error(2, "no disk left")
        if client == 2:
            record["reply"] = np.random.default_rng(0).bytes(500)
        if client == 3:
            self.earlier = self.earlier or record["reply"]
            record["reply"] = self.earlier
        if client == 4:
            frame = Frame.from_bytes(record["reply"], Kind.METHOD)
            record["reply"] = replace(frame, digest=fingerprint([b"else"])).to_bytes()
        if client == 5:  # the frame is sound, but not the message in it, nor what the client says of itself
            frame = Frame.from_bytes(record["reply"], Kind.METHOD)
            message = frame.body
            record["reply"] = replace(frame, body=message[:40] + bytes([message[40] ^ 1]) + message[41:]).to_bytes()
            reply.content["metrics"] = MetricRecord({"seconds.train": float("nan"), "kl_by_layer": [1.0]})
        return reply


@pytest.mark.parametrize("method", ["fedpm-klms", "qsgd"])
def test_bad_clients_are_counted_by_cause_and_leave_no_trace(method, mnist, tmp_path):
    config = config_of(method, mnist, clients=8, rounds=2)
    bad = on_flower(config, tmp_path / "bad", Faults())
    assert replies(bad, 1) == {"ok": 3, "error": 1, "missing": 1, "corrupt": 2, "mismatch": 1}
    assert all(r.payload_bytes == r.uplink_bytes + OVERHEAD * len(r.clients) for r in bad.records())
    assert replies(bad, 2) == {"ok": 2, "error": 1, "missing": 1, "corrupt": 2, "stale": 1, "mismatch": 1}

    class GoodOnly:
        rounds = 0

        def __call__(self, node, reply):
            if reply.metadata.message_type != "train":
                return reply
            self.rounds += node == 1
            return reply if node - 1 > 5 or (node - 1 == 3 and self.rounds == 1) else None

    on_flower(config, tmp_path / "good", GoodOnly())
    bad, good = (RunFolder(tmp_path / name).state() for name in ("bad", "good"))
    # A client that sent something bad holds the state, and one that did not answer may not.
    held = replace(bad.held, by_client=good.held.by_client)
    assert replace(bad, held=held).to_bytes() == good.to_bytes()


def test_a_round_with_too_few_replies_is_passed_over_and_its_number_not_used_again(mnist, tmp_path):
    config = config_of("fedpm-klms", mnist)

    def lost_in_round_1(node, reply):
        train = reply.metadata.message_type == "train"
        return None if train and Frame.from_bytes(reply.content["klms"]["reply"], Kind.METHOD).first == 1 else reply

    folder = on_flower(config, tmp_path / "run", lost_in_round_1, min_replies=2)
    records = list(folder.records())
    assert [record.round for record in records] == [1, 2, 3]
    assert [record.aggregated for record in records] == [False, True, True]
    assert (records[0].uplink_bytes, replies(folder)) == (0, {"missing": 3})
    summary = execution.summarise(folder)
    assert summary.rounds == 3
    assert summary.bits_per_parameter == pytest.approx(np.mean([r.bits_per_parameter for r in records[1:]]))


class Clock:
    """The server's clock, on which waiting takes no time."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("klms.flower.server.time", self)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_clients_that_never_join_are_missing_and_others_are_not_waited_for_twice(mnist, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    config = config_of("fedpm", mnist, rounds=2)
    grid = InProcessGrid(client_app(config), 3)
    grid.offline = {2}
    serve(server_app(config, ServerSettings(run_folder=str(tmp_path / "run"), join_timeout=4.0)), grid)
    folder = RunFolder(tmp_path / "run")
    assert 4.0 <= clock.now < 8.0
    assert replies(folder) == {"ok": 2, "missing": 1}
    assert [record.clients for record in folder.records()] == [(0, 2), (0, 2)]


def test_a_node_that_comes_back_as_another_is_the_same_client_and_a_second_claim_is_not_taken(mnist, tmp_path):
    config = config_of("fedpm", mnist, rounds=3)
    grid = InProcessGrid(client_app(config), 3)
    grid.contexts[9] = Context(1, 9, {"partition-id": 1, "num-partitions": 3}, RecordDict(), {})
    grid.offline = {9}
    send = grid.send_and_receive

    def changing(messages, *, timeout=None):
        replies = send(messages, timeout=timeout)
        trained = {reply.metadata.src_node_id for reply in replies if reply.metadata.message_type == "train"}
        if trained == {1, 2, 3}:
            grid.offline = {2, 3}  # from the second round on, 9 is client 1; 3 is gone
        return replies

    grid.send_and_receive = changing
    serve(server_app(config, ServerSettings(run_folder=str(tmp_path / "run"))), grid)
    assert [record.clients for record in RunFolder(tmp_path / "run").records()] == [(0, 1, 2), (0, 1), (0, 1)]

    grid = InProcessGrid(client_app(config), 3)
    grid.contexts[9] = Context(1, 9, {"partition-id": 1, "num-partitions": 3}, RecordDict(), {})
    serve(server_app(config, ServerSettings(run_folder=str(tmp_path / "claim"))), grid)
    asked = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "train"]
    assert asked == [1, 2, 3] * 3


def test_a_node_whose_answer_was_lost_is_asked_again(mnist, tmp_path):
    config = config_of("fedpm", mnist, rounds=3)
    lost = []

    def lose_one(node, reply):
        if node == 2 and reply.metadata.message_type == "query" and not lost:
            lost.append(reply)
            return None
        return reply

    folder = on_flower(config, tmp_path / "run", lose_one, join_timeout=0.5)
    assert [record.clients for record in folder.records()] == [(0, 2), (0, 1, 2), (0, 1, 2)]


def test_a_second_reply_of_a_node_does_not_count(mnist, tmp_path):
    """Replayed by the network, say: the first one is taken."""
    config = config_of("fedavg", mnist, rounds=2)
    plain = on_flower(config, tmp_path / "plain")

    class Repeating(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            return [*replies, *(reply for reply in replies if reply.metadata.message_type == "train")]

    twice = on_flower(config, tmp_path / "twice", grid=Repeating)
    assert replies(twice) == {"ok": 3, "mismatch": 3}
    assert [record.digest for record in twice.records()] == [record.digest for record in plain.records()]


def test_a_client_that_sends_enormous_numbers_does_not_end_the_run(mnist, tmp_path):
    """With the checksum right, and nothing against the format: whole updates of one number in float32."""
    config = config_of("fedavg", mnist, rounds=2)

    def enormous(value):
        def tamper(node, reply):
            if node == 1 and reply.metadata.message_type == "train" and not reply.has_error():
                frame = Frame.from_bytes(reply.content["klms"]["reply"], Kind.METHOD)
                message = frame.body
                d = (len(message) - 12) // 4
                key = SharedKey(config.seed, frame.first, frame.second)
                message = wrap(message[3], d, np.full(d, value, dtype="<f4").tobytes(), key)
                reply.content["klms"]["reply"] = replace(frame, body=message).to_bytes()
                reply.content["metrics"].update({"kl_by_layer": [1.7e308] * 10, "train_loss": 1.7e308})
            return reply

        return tamper

    assert replies(on_flower(config, tmp_path / "1e30", enormous(1e30))) == {"ok": 2, "corrupt": 1}
    config = config_of("fedavg", mnist, rounds=2, robust=0.3)
    folder = on_flower(config, tmp_path / "1e10", enormous(1e10))
    assert replies(folder) == {"ok": 3}
    first, second = folder.records()
    assert first.train_loss < 100  # without what that client says
    assert first.clipped == second.clipped == 1.0
    assert second.accuracy > 0.3


def test_a_node_may_own_its_data(mnist, tmp_path):
    config = config_of("fedpm", mnist, rounds=1)
    grid = InProcessGrid(client_app(config), 3)
    write_mnist(tmp_path / "own", train=30, test=10)
    for node, context in grid.contexts.items():
        context.node_config.update({"data-dir": str(tmp_path / "own"), "own-data": node == 2})
    serve(server_app(config, ServerSettings(run_folder=str(tmp_path / "run"))), grid)
    (record,) = RunFolder(tmp_path / "run").records()
    sent = [m for m in grid.received if m.metadata.message_type == "train"]
    federation = Federation.create(config.model_copy(update={"data_dir": tmp_path / "own"}))
    state = federation.method.init()
    parts = federation.clients
    indices = [parts.indices[0], np.arange(30), parts.indices[2]]
    own = replace(federation, clients=Parts(parts.dataset, indices))
    for client, reply in enumerate(sent):
        assert Frame.from_bytes(reply.content["klms"]["reply"], Kind.METHOD).body == update(own, state, client).message
    assert record.replies["ok"] == 3


def test_a_node_that_does_not_say_who_it_is_is_told(mnist, tmp_path):
    config = config_of("fedpm", mnist, rounds=1)
    grid = InProcessGrid(client_app(config), 1)
    grid.contexts[1].node_config = {}
    content = RecordDict({"klms": ConfigRecord({"request": b"0", "round": 1, "seed": config.seed})})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")])
    assert "partition-id=0" in reply.error.reason


def test_settings_are_those_of_klms_run_and_the_server_s_own():
    given = {
        "method": "fedpm-klms",
        "evaluate-every": 2,
        "lr": 0.2,
        "min-replies": 2,
        "round-timeout": 5,
        "data_dir": "",
    }
    assert run_config(given) == resolve("fedpm-klms", given={"evaluate_every": 2, "lr": 0.2})
    assert server_settings(given) == ServerSettings(min_replies=2, round_timeout=5.0)
    with pytest.raises(InvalidArgument, match="names no method"):
        run_config({"lr": 0.1})
    with pytest.raises(InvalidArgument, match="did you mean 'lr'"):
        run_config({"method": "fedpm", "lrr": 0.1})
    for wrong in ("2", 0, True, 1.5):
        with pytest.raises(InvalidArgument, match="min_replies must be"):
            server_settings({"min-replies": wrong})


def written_settings(app):
    return tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_new_writes_every_setting(tmp_path):
    config = resolve("fedpm-klms", profile="small")
    settings = written_settings(template_app.create(tmp_path / "app", config, ServerSettings(min_replies=3)))
    assert run_config(settings) == config
    assert server_settings(settings) == ServerSettings(min_replies=3)
    assert set(tomllib.loads(to_toml(config))) < set(settings)  # so `--run-config config.toml` of any run is accepted
    with pytest.raises(InvalidArgument, match="not empty"):
        template_app.create(tmp_path / "app", config, ServerSettings())
    other = template_app.create(tmp_path / "other", resolve("qsgd", given={"data_dir": "d"}), ServerSettings())
    assert json.dumps("d") in (other / "pyproject.toml").read_text()


@pytest.mark.parametrize("own", [False, True])
def test_what_new_writes_can_be_run(own, mnist, tmp_path, monkeypatch):
    config = config_of("fedpm-klms", mnist, rounds=2, epochs=1)
    server = ServerSettings(run_folder=str(tmp_path / "run"), join_timeout=0.1)
    app = template_app.create(tmp_path / "app", config, server, own=own)
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert (app / "klms_app" / "task.py").exists() == own
    monkeypatch.syspath_prepend(app)
    try:
        parts = [path.split(":") for path in project["tool"]["flwr"]["app"]["components"].values()]
        server_module, client_module = (__import__(name, fromlist=[attribute]) for name, attribute in parts)
        settings = written_settings(app)
        serve(server_module.app, InProcessGrid(client_module.app, 3, settings), settings)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "klms_app"]:
            del sys.modules[name]
    folder = RunFolder(tmp_path / "run")
    assert [replies(folder, number) for number in (1, 2)] == [{"ok": 3}] * 2
    assert folder.config().model == ("own" if own else "lenet")


def points(seed, count=100):
    """Points on either side of a plane, as a user may have them: double precision, labels of 32 bits."""
    x = np.random.default_rng(seed).standard_normal((count, 3))
    return x, (x @ [1.0, -2.0, 0.5] > 0).astype(np.int32)


def own_model():
    """A network that the library has not seen, with parameters that are not trained and differ on every machine."""
    torch = pytest.importorskip("torch")

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 24)
            self.frozen = torch.nn.Parameter(torch.randn(24), requires_grad=False)
            self.out = torch.nn.Linear(24, 2)

        def forward(self, x):
            return self.out(torch.tanh(self.layer(x)) * self.frozen)

    return Gated()


@pytest.mark.parametrize("method", ["fedpm-klms", "qsgd-klms", "eden"])
def test_a_model_and_data_of_the_user_s_own(method, tmp_path):
    torch = pytest.importorskip("torch")
    asked = []

    def data(client):
        asked.append(client)
        return points(client)

    given = {"clients": 3, "rounds": 8, "evaluate_every": 1, "epochs": 4, "batch": 10, "private_randomness": "seeded"}
    config = resolve(method, profile="small", given=given)
    grid = InProcessGrid(client_app(config, model=own_model, data=data), 3)
    own = ServerSettings(run_folder=str(tmp_path / "run"))
    torch.manual_seed(99)  # whatever else the server's process draws
    serve(server_app(config, own, model=own_model, test=lambda: points(77, 200)), grid)
    records = list(RunFolder(tmp_path / "run").records())
    assert all(record.replies["ok"] == 3 for record in records)
    assert set(asked) == {0, 1, 2}
    torch.manual_seed(config.seed)
    settings = profile_settings("small", method) | given
    same = {name: value for name, value in settings.items() if name not in ("data", "model", "images", "clients")}
    local = federate(own_model(), [points(client) for client in range(3)], test=points(77, 200), method=method, **same)
    assert [record.digest for record in records] == [record.digest for record in local.ledger]
    assert [record.accuracy for record in records] == [record.accuracy for record in local.ledger]
    assert records[-1].accuracy > 0.8  # half of the points are on either side


@pytest.mark.parametrize("own", [{}, {"model": own_model, "data": points}])
def test_the_client_app_can_be_pickled_as_flower_s_simulation_does(own, mnist):
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    config = config_of("fedpm", mnist, rounds=1)
    app = cloudpickle.loads(cloudpickle.dumps(client_app(config, **own)))
    grid = InProcessGrid(app, 1)
    (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=1, message_type="query")])
    assert reply.content["metrics"]["client"] == 0


def test_a_user_s_model_without_data_is_refused():
    with pytest.raises(InvalidArgument, match="both model= and data="):
        client_app(model=own_model)
    with pytest.raises(InvalidArgument, match="both model= and test="):
        server_app(test=lambda: points(0))
