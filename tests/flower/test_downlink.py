"""The downlink on Flower: whoever was away, came late or lost its state trains in the round in which it comes back."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from klms.engine import local
from klms.engine.federation import Federation
from klms.engine.ledger import LedgerRecord
from klms.engine.rounds import one_round
from klms.flower import client_app, server_app
from klms.flower.settings import ServerSettings
from klms.methods.state import State
from klms.runs.run_folder import CHECKPOINT, RunFolder
from klms.runs.settings import resolve
from tests.flower.in_process import InProcessGrid, serve

torch = pytest.importorskip("torch")

CLIENTS, ROUNDS, INPUTS = 4, 8, 20
HELD = "klms.held"


def points(client):
    x = np.random.default_rng(client).standard_normal((40, INPUTS)).astype(np.float32)
    return x, (x[:, 0] - 2 * x[:, 1] > 0).astype(np.int64)


def network():
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, 80), torch.nn.ReLU(), torch.nn.Linear(80, 2))


def held_out():
    return points(77)


def config_of(method="fedpm-klms", **given):
    common = {"clients": CLIENTS, "rounds": ROUNDS, "epochs": 1, "batch": 20, "evaluate_every": 4, "seed": 3}
    common["private_randomness"] = "seeded"  # to compare with the local engine
    return resolve(method, profile="small", given={**common, "data": "own", "model": "own", **given})


class Nodes(InProcessGrid):
    """Nodes to which something happens before a round: `before[n]` is called with the grid before round `n`."""

    def __init__(self, config, before=None, tamper=None):
        super().__init__(client_app(config, model=network, data=points), CLIENTS, tamper=tamper)
        self.before = dict(before or {})
        self.trained = 0

    def get_node_ids(self):
        for number in [number for number in self.before if number == self.trained + 1]:
            self.before.pop(number)(self)
        return super().get_node_ids()

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        rounds = [m.content["klms"]["round"] for m in messages if m.metadata.message_type == "train"]
        self.trained = max([self.trained, *map(int, rounds)])
        return super().send_and_receive(messages, timeout=timeout)


def run(config, grid, folder, **settings):
    own = ServerSettings(run_folder=str(folder), **{"join_timeout": 0.01, **settings})
    serve(server_app(config, own, model=network, test=held_out), grid)
    return list(RunFolder(folder).records()), RunFolder(folder).state()


def by_the_local_engine(config, clients_of_rounds):
    """The same run on the local engine, with these clients in its rounds; records and the last state."""
    torch.manual_seed(config.seed)
    federation = Federation.of(config, network(), [points(client) for client in range(CLIENTS)], held_out())

    with local.clients_in(federation, 1) as clients:

        class Some:
            def __init__(self, present):
                self.present = present

            def run(self, broadcast, wanted):
                return clients.run(broadcast, [pair for pair in wanted if pair[0] in self.present])

            def __getattr__(self, name):
                return getattr(clients, name)

        state, records = federation.method.init(), []
        for present in clients_of_rounds:
            result = one_round(federation, config, state, Some(present))
            records.append(result.record)
            state = result.state
    return records, state


def agree(records, state, config):
    """The local engine, with the clients that the ledger names, has the same messages and ends in the same state."""
    expected, last = by_the_local_engine(config, [record.clients for record in records])
    assert [record.digest for record in records] == [record.digest for record in expected]
    assert state.to_bytes() == last.to_bytes()
    return expected


def offline(*nodes):
    return lambda grid: grid.offline.update(nodes)


def online(*nodes):
    return lambda grid: grid.offline.difference_update(nodes)


def held(grid, node):
    return State.from_bytes(grid.contexts[node].state[HELD]["state"].data)


def store(grid, node, data):
    grid.contexts[node].state[HELD] = ArrayRecord({"state": Array("uint8", (len(data),), "klms", data)})


EVERYBODY = tuple(range(CLIENTS))


@pytest.mark.parametrize("mode", ["auto", "snapshot", "coded"])
@pytest.mark.parametrize("method", ["fedpm-klms", "trellis"])
def test_both_engines_send_the_same_bytes_where_nothing_goes_wrong(method, mode, tmp_path):
    config = config_of(method, downlink=mode, per_round=2)
    records, state = run(config, Nodes(config), tmp_path / "run")
    expected = agree(records, state, config)
    assert [record.downlink_bytes for record in records] == [record.downlink_bytes for record in expected]
    assert [record.resyncs for record in records] == [0] * ROUNDS
    assert all(record.replies["ok"] == 2 for record in records)


@pytest.mark.parametrize(("method", "given"), [("fedpm-klms", {"reset": 3}), ("trellis", {"downlink": "coded"})])
def test_clients_that_were_away_or_come_late_train_when_they_are_there(method, given, tmp_path):
    config = config_of(method, **given)

    def start(grid):
        grid.offline = {4}  # joins in round 5

    grid = Nodes(config, {1: start, 3: offline(2), 5: online(4), 6: online(2)})
    records, state = run(config, grid, tmp_path / "run")
    away = {1: {3}, 2: {3}, 3: {1, 3}, 4: {1, 3}, 5: {1}}
    assert [set(EVERYBODY) - set(record.clients) for record in records] == [away.get(n, set()) for n in range(1, 9)]
    assert [record.resyncs for record in records] == [0] * ROUNDS  # the server knew what they lacked
    agree(records, state, config)


def tampered(grid, node):
    """Another state of the same round, which reads well: one probability, or one weight, has another bit."""
    state = held(grid, node)
    name = "theta" if "theta" in state.shared else "weights"
    vector = state.vector(name).copy()
    vector.view(np.uint32)[11] ^= 1 << 20
    store(grid, node, replace(state, shared={**state.shared, name: vector}).to_bytes())


def without_numbers(grid, node):
    state = held(grid, node)
    name = "theta" if "theta" in state.shared else "weights"
    vector = state.vector(name) * np.float32("nan")
    store(grid, node, replace(state, shared={**state.shared, name: vector}).to_bytes())


def of_another_model(grid, node):
    store(grid, node, replace(held(grid, node), shared={"other": np.zeros(3)}).to_bytes())


def of_a_later_round(grid, node):
    store(grid, node, replace(held(grid, node), round=900).to_bytes())


def damaged(grid, node):
    state = held(grid, node)
    data = bytearray(state.to_bytes())
    largest = max(state.shared.values(), key=lambda array: array.nbytes)
    data[data.index(largest.tobytes()) + 403] ^= 4  # in an exponent: the last bits of a probability change nothing
    store(grid, node, bytes(data))


def unreadable(grid, node):
    array = grid.contexts[node].state[HELD]["state"]
    grid.contexts[node].state[HELD] = ArrayRecord({"state": Array(array.dtype, array.shape, array.stype, b"")})


def wiped(grid, node):
    grid.contexts[node].state = RecordDict()


HARMS = [tampered, without_numbers, of_another_model, of_a_later_round, damaged, unreadable, wiped]


@pytest.mark.parametrize("method", ["fedpm-klms", "trellis", "trellis coded"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_client_whose_state_was_changed_gets_a_snapshot_and_trains_in_the_same_round(harm, method, tmp_path):
    config = config_of(method.split()[0], rounds=5, downlink="coded" if "coded" in method else "auto")
    grid = Nodes(config, {4: lambda grid: harm(grid, 2)})
    records, state = run(config, grid, tmp_path / "run")
    assert [record.clients for record in records] == [EVERYBODY] * 5
    assert [record.resyncs for record in records] == [0, 0, 0, 1, 0]
    expected = agree(records, state, config)
    more = [record.downlink_bytes - other.downlink_bytes for record, other in zip(records, expected, strict=True)]
    assert more[3] > 0
    assert more[:3] + more[4:] == [0, 0, 0, 0]


def test_a_wiped_client_that_never_took_part_is_not_counted(tmp_path):
    config = config_of(rounds=4)
    grid = Nodes(config, {1: offline(2), 3: lambda grid: (wiped(grid, 2), online(2)(grid))})
    records, state = run(config, grid, tmp_path / "run")
    assert [record.resyncs for record in records] == [0] * 4
    assert records[2].clients == EVERYBODY
    agree(records, state, config)


def test_a_client_that_is_further_than_the_server_knows_since_its_answers_were_lost(tmp_path):
    config = config_of(rounds=6)
    grid = Nodes(config)

    def lose(node, reply):
        return None if node == 3 and reply.metadata.message_type == "train" and grid.trained in (3, 4) else reply

    grid.tamper = lose
    records, state = run(config, grid, tmp_path / "run")
    assert [len(record.clients) for record in records] == [4, 4, 3, 3, 4, 4]
    assert [record.resyncs for record in records] == [0] * 6
    agree(records, state, config)


def test_a_client_that_asks_for_a_snapshot_and_is_gone_is_missing_and_one_that_keeps_asking_is_corrupt(tmp_path):
    config = config_of(rounds=2)
    asked = []

    def lost(node, reply):
        if reply.metadata.message_type != "train" or node not in (1, 2):
            return reply
        asked.append(node)
        if node == 1 and asked.count(1) % 2 == 0:
            return None
        content = RecordDict({"klms.out-of-sync": ConfigRecord({"reason": "of course"})})
        question = Message(RecordDict(), dst_node_id=node, message_type="train")
        return Message(content, reply_to=question)

    records, state = run(config, Nodes(config, tamper=lost), tmp_path / "run")
    for record in records:
        assert record.clients == (2, 3)
        assert record.resyncs == 2
        assert {name: count for name, count in record.replies.items() if count} == {"ok": 2, "missing": 1, "corrupt": 1}
    assert sorted(asked) == [1] * 4 + [2] * 4  # one snapshot in a round, however often a client asks
    agree(records, state, config)


def test_a_server_that_is_started_again_knows_what_its_clients_hold(tmp_path):
    config = config_of(downlink="auto", per_round=2)
    whole, last = run(config, Nodes(config), tmp_path / "whole")

    def stop(grid):
        raise KeyboardInterrupt

    grid = Nodes(config, {5: stop})
    with pytest.raises(KeyboardInterrupt):
        run(config, grid, tmp_path / "run")
    assert RunFolder(tmp_path / "run").rounds() == 4
    records, state = run(config, grid, tmp_path / "run")

    def figures(records: list[LedgerRecord]):
        return [record.model_dump(exclude={"seconds"}) for record in records]

    assert figures(records) == figures(whole)  # bytes and resyncs, too
    assert state.to_bytes() == last.to_bytes()


def test_a_server_that_lost_its_last_rounds_leads_its_clients_back(tmp_path):
    """Clients hold states that the server has never seen, from a checkpoint that is gone."""
    config = config_of(rounds=6)

    def stop(grid):
        raise KeyboardInterrupt

    grid = Nodes(config, {3: lambda grid: old.append((tmp_path / "run" / CHECKPOINT).read_bytes()), 5: stop})
    old = []
    with pytest.raises(KeyboardInterrupt):
        run(config, grid, tmp_path / "run")
    (tmp_path / "run" / CHECKPOINT).write_bytes(old[0])
    grid.trained = 2
    records, state = run(config, grid, tmp_path / "run")
    assert [record.clients for record in records] == [EVERYBODY] * 6
    assert [record.resyncs for record in records] == [0, 0, CLIENTS, 0, 0, 0]
    agree(records, state, config)


def test_a_broadcast_that_is_damaged_harms_nobody_s_state(tmp_path):
    """A client keeps what it holds when a broadcast makes no sense, so that the next one finds it there."""
    config = config_of(rounds=3)
    grid = Nodes(config)
    run(config, grid, tmp_path / "run")
    before = held(grid, 1).to_bytes()
    for data in (b"", b"KD", bytes(100), np.random.default_rng(0).bytes(300)):
        content = RecordDict({"klms": ConfigRecord({"request": data, "round": 4, "seed": 3})})
        (reply,) = grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")])
        assert reply.has_error()
        assert "not written by klms" in reply.error.reason
    assert held(grid, 1).to_bytes() == before
    assert held(grid, 1).round == 2
