"""Strategies and apps of strangers: their own aggregation, records, masks and loops work as they do without klms."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from klms.flower import Compressed, compress
from tests.flower.in_process import counts_of
from tests.flower.test_strangers import START, TARGET, app, distance, record, run, trained, values_of


class Own(FedAvg):
    """Averages whatever arrives, without weights."""

    def aggregate_train(self, server_round, replies):
        found = [values_of(reply.content["arrays"]) for reply in replies if reply.has_content()]
        names = dict.fromkeys(name for one in found for name in one)
        mean = {name: np.mean([one[name] for one in found if name in one], axis=0) for name in names}
        whole = {name: mean.get(name, value) for name, value in values_of(self.arrays).items()}
        return record(whole), MetricRecord({"seen": len(found)})

    def configure_train(self, server_round, arrays, config, grid):
        self.arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)


def without_examples(node, content):
    content["metrics"] = MetricRecord({"loss": 0.5})
    return content


def two_metric_records(node, content):
    content["others"] = MetricRecord({"num-examples": 3})
    return content


def lists_of_own_length(node, content):
    content["metrics"] = MetricRecord({"num-examples": 10, "losses": [0.5] * node})
    return content


def own_layers(node, content):
    names = list(START)
    left_out = names[node % len(names)]
    content["arrays"] = record({n: v for n, v in values_of(content["arrays"]).items() if n != left_out})
    return content


@pytest.mark.parametrize("replies", [without_examples, two_metric_records, lists_of_own_length, own_layers])
def test_a_strategy_that_aggregates_in_its_own_way_gets_all_replies(replies):
    strategy = Compressed(Own(fraction_evaluate=0.0), bits_per_parameter=4, seed=1)
    result, _ = run(strategy, app(compress(), replies=replies), rounds=4)
    assert all(counts_of(m) == {"ok": 5} and m["seen"] == 5 for m in result.train_metrics_clientapp.values())
    assert distance(result.arrays) < 0.2


def test_metrics_that_a_strategy_aggregates_in_its_own_way_may_differ():
    inner = trained(train_metrics_aggr_fn=lambda records, key: MetricRecord({"clients": len(records)}))
    result, _ = run(Compressed(inner, bits_per_parameter=4, seed=1), app(compress(), replies=lists_of_own_length))
    assert result.train_metrics_clientapp[1]["clients"] == 5


@pytest.mark.parametrize("settings", [{"bits_per_parameter": 8}, {}])
def test_arrays_that_a_strategy_changes_in_place_reach_the_clients(settings):
    class Pruning(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            arrays["w"] = Array(np.zeros_like(arrays["w"].numpy()))
            return super().configure_train(server_round, arrays, config, grid)

    seen = []

    def trains(received, node):
        seen.append(float(np.abs(received["w"]).max()))
        return {**received, "w": received["w"] + 1}

    run(Compressed(Pruning(fraction_evaluate=0.0), **settings), app(compress(), trains=trains), nodes=2, rounds=2)
    assert seen == [0.0] * 4


@pytest.mark.parametrize("clears", [True, False])
def test_an_app_may_replace_what_is_kept_in_its_context(clears):
    client = ClientApp(mods=[compress()])

    @client.train()
    def train(message, context):
        if clears:
            for name in list(context.state):
                del context.state[name]
        else:
            context.state = RecordDict({"own": MetricRecord({"a": 1})})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    result, _ = run(Compressed(trained(), bits_per_parameter=2, seed=1), client, rounds=6)
    assert all(counts_of(metrics) == {"ok": 5} for metrics in result.train_metrics_clientapp.values())


@pytest.mark.parametrize("settings", [{"bits_per_parameter": 8}, {"bits_per_parameter": 32}, {}])
@pytest.mark.parametrize("masked", [-np.inf, np.finfo(np.float32).min])
def test_masks_of_infinities_are_left_alone(settings, masked):
    mask = np.triu(np.full((30, 30), masked, np.float32), 1)

    def trains(received, node):
        assert np.array_equal(received["mask"], mask)
        return {n: v if n == "mask" else v + (TARGET[n] - v) / 2 for n, v in received.items()}

    client = app(compress(), trains=trains)
    result, _ = run(Compressed(trained(), seed=1, **settings), client, 3, 6, {**START, "mask": mask})
    found = values_of(result.arrays)
    assert np.array_equal(found.pop("mask"), mask)
    assert distance(record(found)) < 0.3


@pytest.mark.parametrize("settings", [{"bits_per_parameter": 1}, {"bits_per_parameter": 8}, {}])
def test_variances_in_a_record_of_their_own_stay_positive(settings):
    class Two(FedAvg):
        """Sends running variances as a second record, and averages both."""

        variances = np.full(40, 0.002, np.float32)

        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for message in messages:
                message.content["statistics"] = record({"norm.running_var": self.variances})
            return messages

        def aggregate_train(self, server_round, replies):
            replies = [reply for reply in replies if reply.has_content()]
            arrivals = [values_of(reply.content["statistics"])["norm.running_var"] for reply in replies]
            self.variances = np.mean(arrivals, axis=0).astype(np.float32)
            lowest.append(float(np.min(arrivals)))
            for reply in replies:
                del reply.content["statistics"]
            return super().aggregate_train(server_round, replies)

    client, lowest = ClientApp(mods=[compress()]), []

    @client.train()
    def train(message, context):
        received = values_of(message.content["arrays"])
        new = {name: value + (TARGET[name] - value) / 2 for name, value in received.items()}
        variances = {"norm.running_var": values_of(message.content["statistics"])["norm.running_var"] * 1.1}
        content = {"arrays": record(new), "statistics": record(variances), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    run(Compressed(Two(fraction_evaluate=0.0), seed=1, **settings), client, rounds=4)
    assert min(lowest) >= 0.002


def test_records_of_the_app_s_own_pass_whatever_they_hold():
    def replies(node, content):
        content["accuracies"] = record({"by_class": np.array([0.5, np.nan])})
        content["own"] = ArrayRecord({"bytes": Array("uint8", (3,), "own.format", b"abc")})
        return content

    strategy = Compressed(Own(fraction_evaluate=0.0), bits_per_parameter=4, seed=1)
    result, _ = run(strategy, app(compress(), replies=replies), rounds=2)
    assert all(counts_of(metrics) == {"ok": 5} for metrics in result.train_metrics_clientapp.values())


def test_control_variates_in_a_second_record_have_bits_at_which_they_do_no_harm():
    """SCAFFOLD sends control variates beside the model, and noise in them would add up."""

    class Scaffold(FedAvg):
        control = np.zeros((60, 50), np.float32)

        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            for message in messages:
                message.content["control"] = record({"w": self.control})
            return messages

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            self.control = np.mean([values_of(one.content["control"])["w"] for one in replies], axis=0)
            for reply in replies:
                del reply.content["control"]
            return super().aggregate_train(server_round, replies)

    client = ClientApp(mods=[compress()])

    @client.train()
    def train(message, context):
        received = values_of(message.content["arrays"])
        new = {name: value + (TARGET[name] - value) / 2 for name, value in received.items()}
        control = values_of(message.content["control"])["w"] + new["w"] - received["w"]
        content = {
            "arrays": record(new),
            "control": record({"w": control}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    strategy = Compressed(Scaffold(fraction_evaluate=0.0), seed=1)
    result, _ = run(strategy, client, rounds=6)
    assert strategy.server.quality is not None
    assert all(m["klms-bits-per-parameter"] >= 3.9 for m in result.train_metrics_clientapp.values())
    assert distance(result.arrays) < 0.1


def test_a_loop_of_the_strategy_s_own_that_makes_its_own_messages_is_left_alone():
    class Loop(FedAvg):
        def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, **rest):
            arrays = initial_arrays
            for number in range(1, num_rounds + 1):
                messages = [
                    Message(RecordDict({"arrays": arrays}), dst_node_id=node, message_type="train")
                    for node in grid.get_node_ids()
                ]
                arrays, _ = self.aggregate_train(number, grid.send_and_receive(messages))
            self.found = arrays
            return super().start(grid, initial_arrays, 0, timeout, **rest)

    inner = Loop(fraction_evaluate=0.0)
    run(Compressed(inner, bits_per_parameter=4), app(compress()), rounds=4)
    assert distance(inner.found) < 0.1


def test_an_evaluation_without_a_result_has_no_metrics():
    def fails(received):
        raise ValueError("no data")

    result, _ = run(Compressed(FedAvg(), bits_per_parameter=4, seed=1), app(compress(), evaluates=fails), rounds=2)
    assert not result.evaluate_metrics_clientapp
