"""Training on Flower while 30 % of the clients are bad in every round, for our own methods and for any app."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from klms.flower import Compressed, client_app, compress, server_app
from klms.flower.client import federation_of
from klms.flower.settings import ServerSettings
from klms.frame import Frame, Kind
from klms.methods.state import State
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.flower.in_process import InProcessGrid, serve
from tests.support.faults import FAULTS, HARMLESS, hostile, plan
from tests.support.models import WithDropout, three_classes

SIZES = [(10, 8), pytest.param(20, 40, marks=pytest.mark.soak)]
SCALED, WEIGHT = "huge", "forged weight"
EXPECTED = {
    "crash": "error",
    "drop": "missing",
    "slow": "missing",
    "duplicate": "mismatch",
    "corrupt": "corrupt",
    "truncate": "corrupt",
    "replay": "stale",
    "wrong state": "mismatch",
}
"""The cause under which a fault is counted, for both ways; what is slow arrives later, and is not asked for then."""


def is_training(message: Message) -> bool:
    return message.metadata.message_type == "train"


def round_of(message: Message) -> int:
    asked = message.content["klms"]
    return int(asked["round"]) if "round" in asked else Frame.from_bytes(asked["request"], Kind.REQUEST).first


class FaultyGrid(InProcessGrid):
    """A network and nodes with faults; with `only_good`, those that would have one do not answer."""

    def __init__(self, app, nodes, faults, only_good=False, federation=None):
        super().__init__(self._run, nodes)
        self.real_app = app
        self.faults, self.only_good, self.federation = faults, only_good, federation
        self.payloads: dict[int, bytes] = {}

    def _run(self, message, context):
        node = context.node_config["partition-id"]
        if is_training(message) and self.faults.get((round_of(message), node)) == "crash" and not self.only_good:
            raise MemoryError("out of memory")
        return self.real_app(message, context)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        if not messages or not is_training(messages[0]):
            return replies
        number, out = round_of(messages[0]), []
        for reply in replies:
            node = reply.metadata.src_node_id
            fault = self.faults.get((number, node - 1))
            out += self._sent(fault, node, reply)
            if fault is None and "klms" in reply.content:
                self.payloads.setdefault(node, reply.content["klms"]["reply"])
        rng = np.random.default_rng(number)
        return [out[n] for n in rng.permutation(len(out))] if not self.only_good else out

    def _sent(self, fault, node, reply):
        if fault is None:
            return [reply]
        if self.only_good or fault in ("drop", "slow"):
            return []
        if fault == "duplicate":
            return [reply, reply]
        if reply.has_error():
            return [reply]
        if fault == WEIGHT:
            reply.content["metrics"]["num-examples"] = 10**15
        elif fault not in HARMLESS:
            record = reply.content["klms"]
            record["reply"] = self._payload(fault, node, record["reply"])
        return [reply]

    def _payload(self, fault, node, payload):
        frame = Frame.from_bytes(payload, Kind.REPLY, Kind.METHOD)
        if fault == "corrupt":
            changed = bytearray(payload)
            changed[len(payload) // 2] ^= 4
            return bytes(changed)
        if fault == "truncate":
            return payload[: len(payload) // 2]
        if fault == "replay":
            return self.payloads.get(node, replace(frame, first=frame.first + 1).to_bytes())
        if fault == "wrong state":
            return replace(frame, digest=bytes(8)).to_bytes()
        if self.federation is None:  # the client itself has done it
            return payload
        held = State.from_bytes(self.contexts[node].state["klms.held"]["state"].data)
        return replace(frame, body=hostile(self.federation, fault, held, node - 1, frame.body)).to_bytes()


def model():
    return WithDropout()


def parts(clients: int):
    x, y = three_classes(40 * clients)
    return [(x[n::clients], y[n::clients]) for n in range(clients)]


def held_out():
    return three_classes(1000, seed=1)


@pytest.mark.parametrize(("clients", "rounds"), SIZES)
@pytest.mark.parametrize("method", ["trellis", "fedpm-klms"])
def test_bad_clients_of_our_own_methods_cost_less_than_a_point(method, clients, rounds, tmp_path, capsys):
    given = {"clients": clients, "rounds": rounds, "epochs": 2, "batch": 10, "evaluate_every": 1, "lr": 0.1, "bits": 6}
    own_seed = {"target": 6.0, "private_randomness": "seeded"}  # so that messages can be forged with its keys
    against_scaled = {"robust": 0.3} if method == "trellis" else {}  # masks cannot be scaled
    config = resolve(method, given=given | own_seed | against_scaled)
    data, faults = parts(clients), plan(rounds, clients)
    federation = federation_of(config, model, None)
    federation = replace(federation, clients=data)
    accuracies, causes = [], Counter()
    for only_good in (False, True):
        grid = FaultyGrid(
            client_app(config, model=model, data=data.__getitem__), clients, faults, only_good, federation
        )
        folder = tmp_path / str(only_good)
        own = ServerSettings(run_folder=str(folder), join_timeout=0.1)
        serve(server_app(config, own, model=model, test=held_out), grid)
        records = list(RunFolder(folder).records())
        assert [record.round for record in records] == list(range(1, rounds + 1))
        accuracies.append(float(np.mean([record.accuracy for record in records[-max(3, rounds // 4) :]])))
        if not only_good:
            for record in records:
                causes.update(record.replies)
    told(capsys, method, accuracies)
    assert accuracies[0] > accuracies[1] - 0.01
    happened = Counter(faults.values())
    counted = Counter({"ok": 0})
    for fault, cause in EXPECTED.items():
        counted[cause] += happened[fault]
    counted["corrupt"] += happened["not a number"]
    for cause in ("error", "missing", "stale"):
        assert causes[cause] == counted[cause], cause
    # Forged maps are refused in some rounds, and not in others, where there are none.
    refused = causes["corrupt"] + causes["mismatch"] - counted["corrupt"] - counted["mismatch"]
    assert 0 <= refused <= happened["forged map"]
    assert causes["outsized"] <= sum(happened[fault] for fault in ("forged map", "huge", "opposite"))
    assert causes["ok"] == clients * rounds + happened["duplicate"] - sum(n for c, n in causes.items() if c != "ok")


def wide_model():
    return torch.nn.Sequential(torch.nn.Linear(12, 400), torch.nn.ReLU(), torch.nn.Linear(400, 3))


def test_the_opposite_of_theta_is_refused_counted_and_not_relayed(tmp_path):
    own = {"clients": 4, "rounds": 3, "epochs": 1, "batch": 40, "private_randomness": "seeded"}
    config = resolve("fedpm-klms", given=own)
    data, faults = parts(4), {(number, 3): "opposite" for number in (2, 3)}
    federation = replace(federation_of(config, wide_model, None), clients=data)
    grid = FaultyGrid(client_app(config, model=wide_model, data=data.__getitem__), 4, faults, federation=federation)
    serve(server_app(config, ServerSettings(run_folder=str(tmp_path / "run")), model=wide_model, test=held_out), grid)
    records = list(RunFolder(tmp_path / "run").records())
    assert [record.clients for record in records] == [(0, 1, 2, 3), (0, 1, 2), (0, 1, 2)]
    assert [(record.replies["ok"], record.replies["outsized"]) for record in records] == [(4, 0), (3, 1), (3, 1)]
    assert records[2].downlink_bytes <= records[1].downlink_bytes


FEATURES = np.random.default_rng(7).normal(0, 0.5, (12, 400))


def softmax_client(faults, *mods) -> ClientApp:
    """Softmax regression on random features, in NumPy; some of its clients multiply their update by a million."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        number = context.node_config["partition-id"]
        x, y = parts(context.node_config["num-partitions"])[number]
        before = message.content["arrays"]["w"].numpy().astype(np.float64)
        w, features = before.copy(), np.maximum(x @ FEATURES, 0)
        for _ in range(5):
            w -= 0.05 * features.T @ (probabilities(w, features) - np.eye(3)[y]) / len(y)
        fault = faults.get((message.content["config"]["server-round"], number))
        if fault == SCALED:
            w = before + 1e6 * (w - before)
        elif fault == "not a number":
            w[0, 0] = np.nan
        arrays = ArrayRecord({"w": Array(w.astype(np.float32))})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(y)})})
        return Message(content, reply_to=message)

    return app


def probabilities(w, features):
    scores = features @ w
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("clients", "rounds"), SIZES)
def test_bad_clients_of_any_app_cost_less_than_a_point(clients, rounds, capsys):
    kinds = [fault for fault in FAULTS if fault != "forged map"]
    faults = plan(rounds, clients, faults=[*kinds, WEIGHT])
    x, y = held_out()
    accuracies, counts = [], Counter()
    for only_good in (False, True):
        found = []

        def evaluate(number, arrays, found=found):
            guess = probabilities(arrays["w"].numpy(), np.maximum(x @ FEATURES, 0)).argmax(axis=1)
            found.append(float((guess == y).mean()))
            return MetricRecord({"accuracy": found[-1]})

        grid = FaultyGrid(softmax_client({} if only_good else faults, compress(seed=1)), clients, faults, only_good)
        strategy = Compressed(FedAvg(fraction_evaluate=0.0), bits_per_parameter=2.0, down=32, seed=3, robust=0.3)
        start = ArrayRecord({"w": Array(np.zeros((400, 3), dtype=np.float32))})
        result = strategy.start(grid, start, num_rounds=rounds, timeout=5, evaluate_fn=evaluate)
        accuracies.append(float(np.mean(found[-max(3, rounds // 4) :])))
        if not only_good:
            for metrics in result.train_metrics_clientapp.values():
                counts.update({word: value for word, value in metrics.items() if word.startswith("klms-")})
    told(capsys, "any app", accuracies)
    assert accuracies[0] > accuracies[1] - 0.01
    happened = Counter(faults.values())
    counted = Counter(dict.fromkeys(EXPECTED.values(), 0))
    for fault, cause in EXPECTED.items():
        counted[cause] += happened[fault]
    counted["error"] += happened["not a number"]  # the mod tells the server
    for cause, number in counted.items():
        assert counts[f"klms-{cause}"] == number, cause
    assert counts["klms-clipped"] >= happened[SCALED]


def told(capsys, name, accuracies):
    with capsys.disabled():
        print(f"\n{name} on Flower: {accuracies[0]:.4f} with 30 % bad clients, {accuracies[1]:.4f} without", end="")
