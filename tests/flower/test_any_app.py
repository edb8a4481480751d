"""Apps of the kinds that strangers have, each with the two lines: compressed, passed through, or refused."""

import json
import logging

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as mods
from flwr.serverapp import strategy as strategies

from klms.errors import InvalidArgument, NothingTrained
from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid, counts_of, with_head

CNN = {
    "conv.weight": (32, 16, 3, 3),
    "bn.weight": (32,),
    "bn.bias": (32,),
    "bn.running_mean": (32,),
    "bn.running_var": (32,),
    "bn.num_batches_tracked": (),
    "fc.weight": (100, 128),
    "fc.bias": (100,),
}
LOGISTIC = {"coef": (10, 784), "intercept": (10,)}
LORA = {f"layer{n}.{side}": (64, 8) if side == "a" else (8, 64) for n in range(12) for side in "ab"}


def arrays_of(shapes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    found = {name: (0.1 * rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}
    for name, array in found.items():
        if "running_var" in name or name == "bn.weight":
            found[name] = (np.abs(array) + 1).astype(dtype)
        if "tracked" in name:
            found[name] = np.array(0)
    return found


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def app_of(target, *client_mods, replies=None):
    """A client that goes half the way to the target; `replies` may change what it sends."""
    app = ClientApp(mods=list(client_mods))

    @app.train()
    def train(message, context):
        (name, received), *_ = message.content.array_records.items()
        new = {}
        for key, array in received.items():
            value = array.numpy()
            goal = target.get(key, value)
            step = 0.3 * (goal - value) if value.dtype.kind == "f" else 1
            new[key] = np.asarray(value + step, dtype=value.dtype)
        metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5, "loss": 0.5})
        content = RecordDict({name: record(new), "metrics": metrics})
        return Message(replies(content, message, context) if replies else content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"num-examples": 10, "loss": 0.1, "eval_loss": 0.1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def distance(arrays, target):
    off = [float(((arrays[n].numpy().astype(float) - goal) ** 2).sum()) for n, goal in target.items() if goal.ndim]
    return (sum(off) / sum(float((goal.astype(float) ** 2).sum()) for goal in target.values() if goal.ndim)) ** 0.5


@pytest.mark.parametrize(("shapes", "dtype"), [(CNN, np.float32), (LOGISTIC, np.float64), (LORA, np.float16)])
def test_models_of_every_shape_and_type_are_compressed(shapes, dtype):
    start, target = arrays_of(shapes, dtype), arrays_of(shapes, dtype, seed=1)
    strategy = Compressed(strategies.FedAvg(), bits_per_parameter=2, seed=1)
    result = strategy.start(InProcessGrid(app_of(target, compress()), 4), record(start), num_rounds=12, timeout=5)
    assert distance(result.arrays, target) < 0.25
    assert all(counts_of(m) == {"ok": 4} for m in result.train_metrics_clientapp.values())
    assert all(m["klms-bits-per-parameter"] <= 2.05 for m in result.train_metrics_clientapp.values())
    if "bn.running_var" in shapes:
        assert result.arrays["bn.running_var"].numpy().min() > 0


STRATEGIES = {
    "FedAvg": {},
    "FedAvgM": {},
    "FedProx": {"proximal_mu": 0.1},
    "FedMedian": {},
    "FedTrimmedAvg": {},
    "FedAdagrad": {"eta": 0.1, "tau": 0.1},
    "FedAdam": {"eta": 0.1, "tau": 0.1},
    "FedYogi": {"eta": 0.1, "tau": 0.1},
    "QFedAvg": {"client_learning_rate": 0.1, "q": 0.1},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 4},
    "Bulyan": {"num_malicious_nodes": 1},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_averaging_strategy_of_flower_trains(name):
    shapes = {"w": (70, 70), "b": (70,)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)

    def run(wrap, *client_mods):
        strategy = wrap(getattr(strategies, name)(**STRATEGIES[name]))
        grid = InProcessGrid(app_of(target, *client_mods), 8)
        return strategy.start(grid, record(start), num_rounds=3, timeout=5)

    stock = run(lambda strategy: strategy)
    both = run(lambda strategy: Compressed(strategy, bits_per_parameter=4, seed=1), compress(seed=1))
    assert distance(both.arrays, target) < distance(stock.arrays, target) + 0.1
    assert all(m["klms-ok"] == 8 for m in both.train_metrics_clientapp.values())


def test_every_strategy_of_flower_is_accounted_for():
    others = {"Strategy", "Result", "FedXgbBagging", "FedXgbCyclic"}
    known = {name for name in dir(strategies) if name[0].isupper() and not name.startswith("DifferentialPrivacy")}
    assert known - others == STRATEGIES.keys()


@pytest.mark.parametrize(
    ("name", "bits", "warns"),
    [("Krum", 3.9, True), ("Krum", 4, False), ("MultiKrum", 1.9, True), ("MultiKrum", 2, False), ("FedAvg", 1, False)],
)
def test_strategies_that_pick_single_updates_warn_below_the_rate_where_they_hold(name, bits, warns, caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        Compressed(getattr(strategies, name)(**STRATEGIES[name]), bits_per_parameter=bits)
    assert ("picks single updates" in caplog.text) == warns


def server_side(strategy):
    return strategies.DifferentialPrivacyServerSideFixedClipping(strategy, 1e-9, 0.5, 3)


def client_side(strategy):
    return strategies.DifferentialPrivacyClientSideFixedClipping(strategy, 1e-9, 0.5, 3)


def adaptive_server_side(strategy):
    return strategies.DifferentialPrivacyServerSideAdaptiveClipping(strategy, 0.1, 3, initial_clipping_norm=0.5)


def adaptive_client_side(strategy):
    return strategies.DifferentialPrivacyClientSideAdaptiveClipping(strategy, 0.1, 3)


class Around(strategies.FedAvg):
    """A stranger's wrapper that keeps its strategy under a name of its own."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept


def test_differential_privacy_inside_clips_what_was_decoded():
    shapes = {"w": (140, 140)}
    start, target = arrays_of(shapes), {"w": 100 * arrays_of(shapes, seed=1)["w"]}
    strategy = Compressed(server_side(strategies.FedAvg()), bits_per_parameter=2, seed=1, down=32)
    result = strategy.start(InProcessGrid(app_of(target, compress()), 3), record(start), num_rounds=1, timeout=5)
    assert np.linalg.norm(result.arrays["w"].numpy() - start["w"]) < 0.51  # the clip is 0.5


@pytest.mark.parametrize("nesting", [server_side, client_side, adaptive_server_side, adaptive_client_side])
def test_differential_privacy_around_is_refused_before_anything_is_sent(nesting):
    strategy = nesting(Compressed(strategies.FedAvg(), bits_per_parameter=1))
    grid = InProcessGrid(app_of({}, compress()), 3)
    with pytest.raises(InvalidArgument, match="write Compressed"):
        strategy.start(grid, record(arrays_of(LOGISTIC)), num_rounds=1, timeout=5)
    assert not grid.sent


@pytest.mark.parametrize(
    "wrap",
    [client_side, adaptive_client_side, lambda s: Around(client_side(s)), lambda s: server_side(client_side(s))],
)
def test_clipping_at_clients_is_refused_wherever_it_stands(wrap):
    with pytest.raises(InvalidArgument, match="clips before klms encodes"):
        Compressed(wrap(strategies.FedAvg()))


def local_dp(message, context, call_next):
    return mods.LocalDpMod(clipping_norm=10.0, sensitivity=1e-6, epsilon=1.0, delta=1e-5)(message, context, call_next)


def test_noise_for_privacy_outside_is_refused_and_not_lost():
    grid = InProcessGrid(app_of({}, local_dp, compress()), 2)
    strategy = Compressed(strategies.FedAvg(), bits_per_parameter=2)
    with pytest.raises(NothingTrained):
        strategy.start(grid, record(arrays_of(LOGISTIC)), num_rounds=1, timeout=5)
    assert grid.received
    assert all(reply.has_error() and "ArrayRecord" in reply.error.reason for reply in grid.received)


@pytest.mark.parametrize(
    ("other", "outside"),
    [
        (mods.message_size_mod, True),
        (mods.message_size_mod, False),
        (mods.arrays_size_mod, True),
        (mods.arrays_size_mod, False),
        (local_dp, False),
    ],
)
def test_mods_of_flower_work_on_either_side(other, outside):
    shapes = {"w": (70, 70), "b": (70,)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)
    chain = [other, compress()] if outside else [compress(), other]
    strategy = Compressed(strategies.FedAvg(), bits_per_parameter=2, seed=1)
    result = strategy.start(InProcessGrid(app_of(target, *chain), 3), record(start), num_rounds=6, timeout=5)
    assert all(m["klms-ok"] == 3 for m in result.train_metrics_clientapp.values())
    assert distance(result.arrays, target) < 0.4


def test_every_mod_of_flower_is_accounted_for():
    tested = {"message_size_mod", "arrays_size_mod", "LocalDpMod", "fixedclipping_mod", "adaptiveclipping_mod"}
    assert {name for name in dir(mods) if name.endswith("_mod") or name.endswith("Mod")} - {"localdp_mod"} == tested


@pytest.mark.parametrize("clipping", [mods.fixedclipping_mod, mods.adaptiveclipping_mod])
def test_clipping_by_mods_works_inside_and_fails_aloud_outside(clipping):
    shapes = {"w": (140, 140)}
    start, target = arrays_of(shapes), {"w": 100 * arrays_of(shapes, seed=1)["w"]}

    def run(*chain):
        strategy = Compressed(strategies.FedAvg(fraction_evaluate=0.0), bits_per_parameter=4, down=32, seed=1)
        config = ConfigRecord({"clipping_norm": 0.5})
        grid = InProcessGrid(app_of(target, *chain), 3)
        return strategy.start(grid, record(start), num_rounds=1, timeout=5, train_config=config)

    moved = run(compress(), clipping).arrays["w"].numpy() - start["w"]
    assert 0.4 < np.linalg.norm(moved) < 0.52
    with pytest.raises(NothingTrained):
        run(clipping, compress())


class Saving(strategies.FedAvg):
    """A custom strategy as in Flower's examples: its own loop, its own state, a path that is set from outside."""

    def set_path(self, path):
        self.path = path

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.rounds_seen = [*getattr(self, "rounds_seen", []), server_round]
        return arrays, metrics

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, **rest):
        self.path.write_text("started")
        result = super().start(grid, initial_arrays, num_rounds, timeout, **rest)
        self.path.write_text(f"best after {self.rounds_seen}")
        return result


def test_a_custom_strategy_keeps_its_start_its_attributes_and_its_methods(tmp_path):
    shapes = {"w": (70, 70), "b": (70,)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)
    inner = Saving()
    strategy = Compressed(inner, bits_per_parameter=2, seed=1)
    strategy.set_path(tmp_path / "best")
    result = strategy.start(InProcessGrid(app_of(target, compress()), 3), record(start), num_rounds=4, timeout=5)
    assert (tmp_path / "best").read_text() == "best after [1, 2, 3, 4]"
    assert strategy.rounds_seen == inner.rounds_seen == [1, 2, 3, 4]
    assert all(0 < m["klms-bits-per-parameter"] <= 2.04 for m in result.train_metrics_clientapp.values())
    assert distance(result.arrays, target) < 0.5
    assert "configure_train" not in vars(inner)  # as it was
    with pytest.raises(AttributeError):
        strategy.no_such_thing  # noqa: B018


def one_tree(number):
    """A model of XGBoost, as far as Flower's bagging looks at it."""
    model = {"gbtree_model_param": {"num_trees": "1", "num_parallel_tree": "1"}, "iteration_indptr": [0, 1]}
    model |= {"trees": [{"id": 0, "leaf": number}], "tree_info": [0]}
    return np.frombuffer(json.dumps({"learner": {"gradient_booster": {"model": model}}}).encode(), dtype=np.uint8)


def test_bagged_trees_pass_through(caplog):
    def grown(content, message, context):
        return RecordDict({"arrays": record({"0": one_tree(context.node_id)}), "metrics": content["metrics"]})

    grid = InProcessGrid(app_of({}, compress(), replies=grown), 3)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = Compressed(strategies.FedXgbBagging(fraction_evaluate=0.0)).start(
            grid, record({"0": one_tree(0)}), num_rounds=2, timeout=5
        )
    trees = json.loads(result.arrays["0"].numpy().tobytes())["learner"]["gradient_booster"]["model"]["trees"]
    assert sorted(tree["leaf"] for tree in trees) == [0, 1, 1, 2, 2, 3, 3]
    assert caplog.text.count("no floating-point array") == 1


def test_boosted_trees_pass_through(caplog):
    def grown(content, message, context):
        tree = np.frombuffer(b"tree" * (2 + context.node_config["partition-id"]), dtype=np.uint8)
        return RecordDict({"arrays": record({"0": tree}), "metrics": content["metrics"]})

    strategy = Compressed(strategies.FedXgbCyclic())
    grid = InProcessGrid(app_of({}, compress(), replies=grown), 3)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, record({"0": np.frombuffer(b"tree", dtype=np.uint8)}), num_rounds=3, timeout=5)
    assert bytes(result.arrays["0"].numpy()[:4]) == b"tree"
    assert caplog.text.count("no floating-point array") == 1


class TwoRecords(strategies.FedAvg):
    """Keeps a second record beside the model, as control variates are, and averages both by itself."""

    def __init__(self, variates):
        super().__init__(fraction_evaluate=0.0)
        self.variates = variates

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content["variates"] = self.variates
        return messages

    def aggregate_train(self, server_round, replies):
        replies = list(replies)

        def mean(which):
            names = replies[0].content[which]
            return record({n: np.mean([r.content[which][n].numpy() for r in replies], axis=0) for n in names})

        self.variates = mean("variates")
        return mean("arrays"), MetricRecord({"replies": len(replies)})


def both_records(target, *client_mods, change=None):
    app = ClientApp(mods=list(client_mods))

    @app.train()
    def train(message, context):
        content = {}
        for which, received in message.content.array_records.items():
            values = {name: array.numpy() for name, array in received.items()}
            content[which] = record({n: (v + 0.3 * (target[n] - v)).astype(v.dtype) for n, v in values.items()})
        content["metrics"] = MetricRecord({"num-examples": 10})
        return Message(RecordDict(change(content) if change else content), reply_to=message)

    return app


@pytest.mark.parametrize("down", [32, 2])
def test_several_records_are_compressed_in_one_payload(down):
    shapes = {"w": (150, 140), "b": (140,)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)
    inner = TwoRecords(record(arrays_of(shapes, np.float16, seed=2)))
    strategy = Compressed(inner, up=2, down=down, seed=1)
    sent = []

    def note(node, reply):
        if "klms" in reply.content:
            sent.append((len(reply.content.array_records), len(reply.content.config_records)))
        return reply

    grid = InProcessGrid(both_records(target, compress()), 3, tamper=note)
    result = strategy.start(grid, record(start), num_rounds=12, timeout=5)
    assert distance(result.arrays, target) < 0.25
    assert distance(inner.variates, target) < 0.25
    assert inner.variates["w"].numpy().dtype == np.float16
    for metrics in result.train_metrics_clientapp.values():
        assert counts_of(metrics) == {"ok": 3}
        assert 1.8 < metrics["klms-bits-per-parameter"] <= 2.04
    assert sent == [(0, 1)] * 36  # Flower makes a request for every object


def test_a_record_of_a_reply_that_answers_none_passes_beside_the_payload():
    shapes = {"w": (150, 140), "b": (140,)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)

    class Curious(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            self.seen = [reply.content["extra"]["x"].numpy() for reply in replies]
            for reply in replies:
                del reply.content["extra"]
            return super().aggregate_train(server_round, replies)

    inner = Curious(fraction_evaluate=0.0)
    strategy = Compressed(inner, bits_per_parameter=2, seed=1)
    extra = {"x": np.arange(3, dtype=np.float32)}
    app = both_records(target, compress(), change=lambda content: {**content, "extra": record(extra)})
    result = strategy.start(InProcessGrid(app, 3), record(start), num_rounds=3, timeout=5)
    assert all(counts_of(m) == {"ok": 3} for m in result.train_metrics_clientapp.values())
    assert [x.tolist() for x in inner.seen] == [[0, 1, 2]] * 3


ADAPTERS = {name for name in LORA if name.startswith("layer1")}


class Merging(strategies.FedAvg):
    """Clients return some of the layers; the others stay as they are."""

    def configure_train(self, server_round, arrays, config, grid):
        self.arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return None if arrays is None else ArrayRecord({**self.arrays, **arrays}), metrics


def only_adapters(content, message, context):
    halves = {name: content["arrays"][name].numpy().astype(np.float16) for name in LORA if name in ADAPTERS}
    return RecordDict({"arrays": record(halves), "metrics": content["metrics"]})


@pytest.mark.parametrize("down", [32, 2])
@pytest.mark.parametrize("scheme", ["auto", "eden"])
def test_replies_with_some_of_the_layers_are_compressed(scheme, down):
    shapes = {**LORA, "base": (100, 100)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)
    strategy = Compressed(Merging(fraction_evaluate=0.0), scheme=scheme, up=2, down=down, seed=1)
    grid = InProcessGrid(app_of(target, compress(), replies=only_adapters), 3)
    result = strategy.start(grid, record(start), num_rounds=12, timeout=5)
    assert distance(result.arrays, {name: target[name] for name in ADAPTERS}) < 0.25
    assert distance(result.arrays, {name: start[name] for name in shapes if name not in ADAPTERS}) < 0.025
    for metrics in result.train_metrics_clientapp.values():
        assert counts_of(metrics) == {"ok": 3}
        assert 1.8 < metrics["klms-bits-per-parameter"] <= 2.2  # of the layers that were sent
    stock = Merging(fraction_evaluate=0.0)
    plain = InProcessGrid(app_of(target, replies=only_adapters), 3)
    away = distance(stock.start(plain, record(start), num_rounds=12, timeout=5).arrays, target)
    assert distance(result.arrays, target) == pytest.approx(away, abs=0.05)


@pytest.mark.parametrize("scheme", ["topk", "qsgd-klms"])
def test_schemes_that_remember_the_whole_vector_let_some_of_the_layers_pass(scheme):
    start, target = arrays_of(LORA), arrays_of(LORA, seed=1)
    strategy = Compressed(Merging(fraction_evaluate=0.0), scheme=scheme, seed=1)
    grid = InProcessGrid(app_of(target, compress(), replies=only_adapters), 3)
    result = strategy.start(grid, record(start), num_rounds=2, timeout=5)
    assert all(m["klms-ok"] == m["klms-uncompressed"] == 3 for m in result.train_metrics_clientapp.values())


def test_replies_with_other_arrays_pass_through(caplog):
    class Keeping(strategies.FedAvg):
        def aggregate_train(self, server_round, replies):
            self.got = [reply.content["arrays"]["grown"].numpy().shape for reply in replies]
            return None, None

    def grown(content, message, context):
        return RecordDict({"arrays": record({"grown": np.ones((3, 2))}), "metrics": content["metrics"]})

    inner = Keeping(fraction_evaluate=0.0)
    grid = InProcessGrid(app_of({}, compress(), replies=grown), 3)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = Compressed(inner).start(grid, record(arrays_of(LOGISTIC)), num_rounds=1, timeout=5)
    assert inner.got == [(3, 2)] * 3
    assert result.train_metrics_clientapp[1]["klms-uncompressed"] == 3
    assert "these arrays were not received: grown" in caplog.text


def damaged(change):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_id == 1:
            change(reply.content["klms"])
        return reply

    return mod


def other_head(change):
    def apply(sent):
        sent["reply"] = with_head(sent["reply"], change)

    return apply


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: sent.update({"arrays": []}),
        lambda sent: sent.update({"arrays": ["arrays"]}),
        lambda sent: sent.update({"arrays": ["arrays", "arrays"]}),
        lambda sent: sent.update({"arrays": ["arrays", "metrics"]}),
        lambda sent: sent.update({"arrays": [1, 2]}),
        lambda sent: sent.update({"arrays": "arrays"}),
        lambda sent: sent.update({"reply": b""}),
        other_head(lambda head: bytes([1, 0, 0, 0, 0])),  # no array at all
        other_head(lambda head: bytes([1, 0, 2, 2, 2]) + head[1:]),  # one array less than the message holds
        other_head(lambda head: bytes([1, 2, 0, 2, 2]) + head[1:]),
        other_head(lambda head: bytes([1, 2, 77, 2, 2]) + head[1:]),
        other_head(lambda head: bytes([2]) + head[1:]),
        other_head(lambda head: b""),
    ],
)
def test_payloads_of_several_records_are_screened(change):
    shapes = {"w": (150, 140), "b": (140,)}
    target = arrays_of(shapes, seed=1)
    inner = TwoRecords(record(arrays_of(shapes, seed=2)))
    strategy = Compressed(inner, up=4, down=32, seed=1)
    grid = InProcessGrid(both_records(target, damaged(change), compress()), 3)
    result = strategy.start(grid, record(arrays_of(shapes)), num_rounds=1, timeout=5)
    metrics = result.train_metrics_clientapp[1]
    assert counts_of(metrics) in ({"ok": 2, "corrupt": 1}, {"ok": 2, "mismatch": 1})


def test_a_reply_with_fewer_layers_than_most_is_refused():
    start, target = arrays_of(LORA), arrays_of(LORA, seed=1)

    def some(content, message, context):
        return only_adapters(content, message, context) if context.node_id == 1 else content

    strategy = Compressed(strategies.FedAvg(fraction_evaluate=0.0), bits_per_parameter=2)
    grid = InProcessGrid(app_of(target, compress(), replies=some), 3)
    result = strategy.start(grid, record(start), num_rounds=1, timeout=5)
    assert result.train_metrics_clientapp[1]["klms-ok"] == 2
    assert result.train_metrics_clientapp[1]["klms-mismatch"] == 1


def test_legacy_strategies_are_refused_where_they_are_passed():
    from flwr.server.strategy import FedAvg

    class Own(FedAvg):
        pass

    for made, name in ((FedAvg(), "FedAvg"), (Own(), "FedAvg")):
        with pytest.raises(InvalidArgument, match=rf"legacy API .* use flwr\.serverapp\.strategy\.{name} "):
            Compressed(made)
    with pytest.raises(InvalidArgument, match="is not a strategy"):
        Compressed(strategies.FedAvg)
    with pytest.raises(InvalidArgument, match="is not a strategy"):
        Compressed("fedavg")


def test_a_weight_of_zero_is_not_corrupt():
    def weightless(content, message, context):
        if context.node_config["partition-id"] == 0:
            content["metrics"]["num-examples"] = 0
        return content

    start, target = arrays_of(LOGISTIC), arrays_of(LOGISTIC, seed=1)
    strategy = Compressed(strategies.FedAvg(), bits_per_parameter=2)
    grid = InProcessGrid(app_of(target, compress(), replies=weightless), 3)
    result = strategy.start(grid, record(start), num_rounds=2, timeout=5)
    assert all(m["klms-ok"] == 3 for m in result.train_metrics_clientapp.values())


def test_the_mod_itself_in_place_of_what_it_makes_is_explained():
    grid = InProcessGrid(app_of({}, compress), 1)
    message = Message(RecordDict({"config": ConfigRecord({"x": 1})}), dst_node_id=1, message_type="train")
    (reply,) = grid.send_and_receive([message])
    assert "mods=[compress()]" in reply.error.reason
