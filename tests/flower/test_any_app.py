"""Apps of the kinds that strangers have, each with the two lines: compressed, passed through, or refused."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as mods
from flwr.serverapp import strategy as strategies

from klms.errors import InvalidArgument
from klms.flower import Compressed, compress
from tests.flower.in_process import InProcessGrid

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
    assert all(m["klms-ok"] == 4 and not m["klms-uncompressed"] for m in result.train_metrics_clientapp.values())
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
    shapes = {"w": (140, 140), "b": (140,)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)

    def run(wrap, *client_mods):
        strategy = wrap(getattr(strategies, name)(**STRATEGIES[name]))
        grid = InProcessGrid(app_of(target, *client_mods), 8)
        return strategy.start(grid, record(start), num_rounds=6, timeout=5)

    stock = run(lambda strategy: strategy)
    both = run(lambda strategy: Compressed(strategy, bits_per_parameter=4, seed=1), compress(seed=1))
    assert distance(both.arrays, target) < distance(stock.arrays, target) + 0.1
    assert all(m["klms-ok"] == 8 for m in both.train_metrics_clientapp.values())


def test_every_strategy_of_flower_is_accounted_for():
    others = {"Strategy", "Result", "FedXgbBagging", "FedXgbCyclic"}
    known = {name for name in dir(strategies) if name[0].isupper() and not name.startswith("DifferentialPrivacy")}
    assert known - others == STRATEGIES.keys()


@pytest.mark.parametrize("bits", [1, 4])
def test_strategies_that_pick_single_updates_warn_at_low_rates(bits, caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        Compressed(strategies.Krum(num_malicious_nodes=1), bits_per_parameter=bits)
    assert ("picks single updates" in caplog.text) == (bits < 4)


def server_side(strategy):
    return strategies.DifferentialPrivacyServerSideFixedClipping(strategy, 1e-9, 0.5, 3)


def client_side(strategy):
    return strategies.DifferentialPrivacyClientSideFixedClipping(strategy, 1e-9, 0.5, 3)


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


@pytest.mark.parametrize("nesting", [server_side, client_side])
def test_differential_privacy_around_is_refused_before_anything_is_sent(nesting):
    strategy = nesting(Compressed(strategies.FedAvg(), bits_per_parameter=1))
    grid = InProcessGrid(app_of({}, compress()), 3)
    with pytest.raises(InvalidArgument, match="write Compressed"):
        strategy.start(grid, record(arrays_of(LOGISTIC)), num_rounds=1, timeout=5)
    assert not grid.sent


@pytest.mark.parametrize("wrap", [client_side, lambda s: Around(client_side(s)), lambda s: server_side(client_side(s))])
def test_clipping_at_clients_is_refused_wherever_it_stands(wrap):
    with pytest.raises(InvalidArgument, match="clips before klms encodes"):
        Compressed(wrap(strategies.FedAvg()))


def local_dp(message, context, call_next):
    return mods.LocalDpMod(clipping_norm=10.0, sensitivity=1e-6, epsilon=1.0, delta=1e-5)(message, context, call_next)


@pytest.mark.parametrize("other", [mods.message_size_mod, mods.arrays_size_mod, local_dp], ids=["size", "arrays", "dp"])
@pytest.mark.parametrize("outside", [True, False])
def test_mods_of_flower_work_on_either_side(other, outside):
    if other is local_dp and outside:
        pytest.skip("noise outside would find no arrays; docs/flower.md says to put compress() first")
    shapes = {"w": (140, 140), "b": (140,)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)
    chain = [other, compress()] if outside else [compress(), other]
    strategy = Compressed(strategies.FedAvg(), bits_per_parameter=2, seed=1)
    result = strategy.start(InProcessGrid(app_of(target, *chain), 3), record(start), num_rounds=6, timeout=5)
    assert all(m["klms-ok"] == 3 for m in result.train_metrics_clientapp.values())
    assert distance(result.arrays, target) < 0.4


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
    shapes = {"w": (140, 140), "b": (140,)}
    start, target = arrays_of(shapes), arrays_of(shapes, seed=1)
    inner = Saving()
    strategy = Compressed(inner, bits_per_parameter=2, seed=1)
    strategy.set_path(tmp_path / "best")
    result = strategy.start(InProcessGrid(app_of(target, compress()), 3), record(start), num_rounds=4, timeout=5)
    assert (tmp_path / "best").read_text() == "best after [1, 2, 3, 4]"
    assert strategy.rounds_seen == inner.rounds_seen == [1, 2, 3, 4]
    assert all(0 < m["klms-bits-per-parameter"] <= 2 for m in result.train_metrics_clientapp.values())
    assert distance(result.arrays, target) < 0.5
    assert "configure_train" not in vars(inner)  # as it was
    with pytest.raises(AttributeError):
        strategy.no_such_thing  # noqa: B018


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


def test_several_records_pass_through(caplog):
    class TwoRecords(strategies.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for message in messages:
                message.content["extra"] = record({"x": np.zeros(3, dtype=np.float32)})
            return messages

    start, target = arrays_of(LOGISTIC), arrays_of(LOGISTIC, seed=1)
    strategy = Compressed(TwoRecords(), bits_per_parameter=2, down=32)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(InProcessGrid(app_of(target, compress()), 3), record(start), num_rounds=5, timeout=5)
    assert distance(result.arrays, target) < 0.3
    assert caplog.text.count("2 ArrayRecords") == 1
    assert all(m["klms-uncompressed"] == 3 for m in result.train_metrics_clientapp.values())


def test_replies_with_some_of_the_layers_pass_through():
    start, target = arrays_of(LORA), arrays_of(LORA, seed=1)

    def half(content, message, context):
        kept = {name: array for name, array in content["arrays"].items() if name.endswith("a")}
        return RecordDict({"arrays": ArrayRecord(kept), "metrics": content["metrics"]})

    strategy = Compressed(strategies.FedAvg(), bits_per_parameter=2, down=32)
    grid = InProcessGrid(app_of(target, compress(), replies=half), 3)
    result = strategy.start(grid, record(start), num_rounds=1, timeout=5)
    assert set(result.arrays) == {name for name in LORA if name.endswith("a")}
    assert result.train_metrics_clientapp[1]["klms-ok"] == 3


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
