"""Server and clients of the exchange, without any framework."""

from dataclasses import replace

import numpy as np
import pytest

from klms.compressors.trellis import chunks
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, OutOfSync, SideInformationMismatch
from klms.exchange.client import Client
from klms.exchange.held import JUMP_RATE
from klms.exchange.server import Server
from klms.frame import Frame, Kind, LostAgain, WrongRound
from tests.exchange.loop import D, Fleet, distance, model, same, trained


def test_both_directions_keep_to_their_bits_and_the_model_is_learned():
    server, fleet = Server(model(), up=2, down=1, seed=1), Fleet()
    for _ in range(12):
        fleet.round(server, ["a", "b", "c"])
    assert distance(server.model) < 0.02
    assert server.uplink_bytes == pytest.approx(12 * 3 * 2 * D / 8, rel=0.03)
    first = 3 * JUMP_RATE * D / 8
    assert server.downlink_bytes == pytest.approx(first + 11 * 3 * D / 8, rel=0.05)


def test_clients_that_join_late_or_lose_their_state_follow_at_once():
    server, fleet = Server(model(), bits_per_parameter=1, seed=1), Fleet()
    for number in range(1, 9):
        if number == 4:
            del fleet.states["b"]
        if number == 5:
            state = bytearray(fleet.states["c"])
            state[len(state) // 2] ^= 0xFF  # a last bit might be rounded away by the next step
            fleet.states["c"] = bytes(state)
        fleet.round(server, ["a", "b", "c"] + ["late"] * (number >= 3))
    assert fleet.resyncs == 2
    assert set(server.held.by_client.values()) == {server.held.number - 1}


def test_a_client_that_always_claims_to_have_lost_its_model_is_left_out():
    server, fleet = Server(model(), bits_per_parameter=1, seed=1), Fleet(noise=0.1)
    causes = []
    for _ in range(40):
        asked = Frame.from_bytes(server.request("liar"), Kind.REQUEST)
        with pytest.raises(KLMSError) as refused:
            server.receive("liar", replace(asked, kind=Kind.LOST, body=b"").to_bytes())
        causes.append(refused.type)
        if refused.type is OutOfSync:
            assert len(server.request("liar")) > 4 * D  # a snapshot
        fleet.round(server, ["a"])
    assert 1 < causes.count(OutOfSync) < 6
    assert causes.count(OutOfSync) + causes.count(LostAgain) == 40


def test_a_server_that_is_started_again_goes_on():
    server, fleet = Server(model(), bits_per_parameter=1, seed=1), Fleet()
    for _ in range(3):
        fleet.round(server, ["a", "b"])
    outstanding = server.request("a")
    held, spent = server.model, server.downlink_bytes
    server = Server.restored(server.state, bits_per_parameter=1)
    assert same(server.model, held)
    assert server.downlink_bytes == spent
    _, reply = fleet.answer(server, "a", outstanding)
    with pytest.raises(SideInformationMismatch):
        server.receive("a", reply)
    for _ in range(3):
        fleet.round(server, ["a", "b"])
    assert fleet.resyncs == 0
    with pytest.raises(CorruptMessage):
        Server.restored(server.state[:-1])


def test_a_reply_counts_once_for_its_client_round_and_message():
    server, fleet = Server(model(), bits_per_parameter=1, seed=1), Fleet()
    requests = {name: server.request(name) for name in ("a", "b")}
    replies = {name: fleet.answer(server, name, request)[1] for name, request in requests.items()}
    for data in (
        replies["a"][:-1],
        replies["a"] + b"0",
        b"",
        requests["a"],
        bytes([*replies["a"][:-9], 0, *replies["a"][-8:]]),
    ):
        with pytest.raises(KLMSError):
            server.receive("a", data)
    with pytest.raises(SideInformationMismatch):
        server.receive("a", replies["b"])
    with pytest.raises(SideInformationMismatch):
        server.receive("nobody", replies["a"])
    server.receive("a", replies["a"])
    with pytest.raises(SideInformationMismatch):
        server.receive("a", replies["a"])
    server.step(model())
    with pytest.raises(WrongRound):
        server.receive("b", replies["b"])
    server.request("b")
    with pytest.raises(WrongRound):
        server.receive("b", replies["b"])


def test_a_late_reply_is_added_to_the_model_of_the_round_in_which_it_comes():
    server, client = Server(model(), bits_per_parameter=8, down=32, late=2), Client()
    began = client.receive(server.request("slow"))
    reply = client.reply(trained(began))
    for _ in range(2):
        server.step({name: array + 1 for name, array in server.model.items()})
    opened = server.open("slow", reply)
    assert (opened.round, server.round) == (1, 3)
    arrays = server.decode(opened, weight=1 / (1 + server.round - opened.round) ** 0.5)
    moved = arrays["weight"] - server.model["weight"]
    np.testing.assert_allclose(moved, trained(began)["weight"] - began["weight"], atol=0.01)


def test_buffered_updates_of_any_age_teach_the_model():
    """FedBuff: a step after every three replies, whichever come; clients take 1 to 3 rounds."""
    server, fleet, waiting = Server(model(), bits_per_parameter=2, seed=1, late=3), Fleet(), []
    ages = set()
    for _ in range(20):
        for name in "abcdef":
            if name not in {one for _, one, _ in waiting}:
                due = server.round + "abcdef".index(name) % 3
                waiting.append((due, name, fleet.answer(server, name, server.request(name))[1]))
        total, weights = {}, 0.0
        for one in sorted(waiting)[:3]:
            waiting.remove(one)
            opened = server.open(one[1], one[2])
            age = server.round - opened.round
            ages.add(age)
            weight = (1 + age) ** -0.5
            weights += weight
            for key, array in server.decode(opened, weight=weight).items():
                total[key] = total.get(key, 0) + weight * array
        server.step({key: (array / weights).astype(server.model[key].dtype) for key, array in total.items()})
    assert len(ages) > 1
    assert fleet.resyncs == 0
    assert distance(server.model) < 0.1


def test_no_key_is_used_twice_whatever_is_asked():
    server, seen = Server(model(), bits_per_parameter=1, seed=1), set()
    for _ in range(3):
        for name in ("a", "a", "b"):
            frame = server.request(name)[4:12]
            assert frame not in seen
            seen.add(frame)
        server.step(server.model)  # nobody answered, and the model stays
    with pytest.raises(InvalidArgument, match="keys of an earlier one"):
        server.begin(1)
    server.begin(server.round)  # nobody was asked in this round yet
    server.request("a")
    with pytest.raises(InvalidArgument, match="keys of an earlier one"):
        server.begin(server.round)
    server.begin(server.unused_round)


def test_another_model_does_not_use_the_keys_of_the_first():
    server, keys = Server(bits_per_parameter=1, seed=1), []
    for size, value in ((50, 1), (50, 2), (60, 3), (60, 4), (50, 5)):
        server.lead({"w": np.full((size, size), value, np.float32)})
        keys.append(server._rule().key(server.held.number).round)
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("lost", [2, 3])
def test_a_lost_reply_to_a_request_with_other_terms_costs_no_snapshot(lost):
    server, fleet = Server(model(), up=lambda round_: 2 if round_ == lost else 1, down=1, seed=1), Fleet()
    for number in range(1, 7):
        if number == lost:
            fleet.answer(server, "a", server.request("a"))  # the reply is lost on its way
            server.step({name: array * 2 for name, array in server.model.items()})
        else:
            fleet.round(server, ["a"])
    assert fleet.resyncs == 0


def test_late_and_reordered_replies_do_not_take_back_what_the_server_knows():
    rates = {1: 1, 2: 2, 3: 1.5, 4: 1}
    server, fleet = Server(model(), up=lambda round_: rates.get(round_, 1), down=1, late=4, seed=1), Fleet()
    replies = []
    for _ in range(4):
        replies.append(fleet.answer(server, "a", server.request("a"))[1])
        server.step({name: array * 1.5 for name, array in server.model.items()})
    server.receive("a", replies[3])
    known = server.held.by("a")
    for reply in replies[:3]:
        server.receive("a", reply)
    assert server.held.by("a") == known
    fleet.round(server, ["a"])
    assert fleet.resyncs == 0


@pytest.mark.parametrize("scheme", ["qsgd-klms", "signsgd-klms"])
def test_a_late_reply_changes_nothing_of_the_round_in_which_it_comes(scheme):
    step = {"step": 0.002} if scheme == "signsgd-klms" else {}
    server, fleet = Server(model(), scheme=scheme, late=1, down=2, seed=1, **step), Fleet(noise=0.1)
    late = fleet.answer(server, "a", server.request("a"))[1]
    for name in ("b", "c"):
        server.receive(name, fleet.answer(server, name, server.request(name))[1])
    server.step({name: array + 1 for name, array in server.model.items()})
    answers = [(name, fleet.answer(server, name, server.request(name))[1]) for name in ("b", "c")]
    server.receive("a", late)
    for name, answer in answers:
        server.receive(name, answer)


def test_the_server_s_model_cannot_be_changed_by_accident():
    server = Server(model(), seed=1)
    for arrays in (server.model, server.view, server.lead(model())):
        with pytest.raises(ValueError, match="read-only"):
            arrays["weight"] += 1


def test_received_arrays_belong_to_the_caller():
    server, fleet = Server(model(), bits_per_parameter=1, seed=1), Fleet()
    found = server.receive("a", fleet.answer(server, "a", server.request("a"))[1])
    for array in found.values():
        array += 1


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1, 1e200, "3", None])
def test_a_weight_that_would_spoil_the_average_is_refused(weight):
    server, fleet = Server(model(), seed=1), Fleet()
    reply = fleet.answer(server, "a", server.request("a"))[1]
    with pytest.raises(InvalidArgument, match="weight"):
        server.receive("a", reply, weight=weight)


def test_the_type_of_a_weight_does_not_matter():
    rates = []
    for weight in (60_000, np.int32(60_000), np.uint16(60_000), 60_000.0):
        server, fleet = Server(model(), seed=1), Fleet(seed=1)
        for _ in range(2):
            for name in ("a", "b"):
                server.receive(name, fleet.answer(server, name, server.request(name))[1], weight=weight)
            server.step({name: array * np.asarray(1.1, array.dtype) for name, array in server.model.items()})
        rates.append((server.rates.control.up, server.rates.control.down))
    assert len(set(rates)) == 1


def test_a_reply_that_is_refused_teaches_the_server_nothing():
    server, client = (
        Server({"running_var": np.ones(5, np.float32), "w": np.ones((90, 90), np.float32)}, seed=1),
        Client(),
    )
    received = client.receive(server.request("hostile"))
    reply = Frame.from_bytes(client.reply({**received, "w": received["w"] + 1e4}), Kind.REPLY)
    body = bytearray(reply.body)
    at = 9 + 1  # after flags, norm and length, and a byte for the types, comes the step of the variances
    body[at : at + 4] = np.float32(np.inf).tobytes()
    with pytest.raises(CorruptMessage, match="not finite"):
        server.receive("hostile", replace(reply, body=bytes(body)).to_bytes())
    assert server.rates.control._replies is None


@pytest.mark.parametrize("idle", [1, 4])
def test_a_round_in_which_nothing_was_trained_says_nothing_about_rates(idle):
    def distances(idle: int) -> float:
        server, fleet = Server(model(), seed=1), Fleet()
        for number in range(1, 9):
            if number == idle:
                for name in ("a", "b", "c"):
                    client = Client(fleet.states.get(name, b""))
                    server.receive(name, client.reply(client.receive(server.request(name))))
                    fleet.states[name] = client.state
                server.step(server.model)
            else:
                fleet.round(server, ["a", "b", "c"])
        return distance(server.model)

    assert distances(idle) < 2 * distances(0) + 0.02


def test_a_budget_counts_each_client_once_and_remembers_their_number():
    names = [f"client {n}" for n in range(10)]
    budget = 20_000
    server, fleet = Server(model(), budget=budget, seed=1), Fleet()
    fleet.round(server, names)
    restored = Server.restored(server.state, budget=budget)
    for one in (server, restored):
        states = dict(fleet.states)
        for _ in range(2):
            before = one.uplink_bytes + one.downlink_bytes
            fleet.round(one, names)
            assert one.clients == 10
            spent = one.uplink_bytes + one.downlink_bytes - before
        assert 0.5 * budget < spent < 1.2 * budget
        fleet.states = states
    server.request(names[0])
    server.request(names[0])
    server.step({name: array * 2 for name, array in server.model.items()})
    assert server.clients == 1


def test_big_endian_models_are_served():
    start = {"w": np.ones((40, 40), dtype=">f4"), "n": np.array(3, dtype=">i8")}
    server = Server(start, bits_per_parameter=2, seed=1)
    client = Client()
    for _ in range(3):
        received = client.receive(server.request("a"))
        server.receive("a", client.reply({"w": received["w"] + 1, "n": received["n"]}))
        server.step({"w": (server.model["w"] + 1).astype(">f4"), "n": np.array(3, dtype=">i8")})
    assert server.model["w"].mean() == pytest.approx(4, abs=0.2)


def test_float16_models_with_the_largest_numbers_are_served():
    mask = np.triu(np.full((64, 64), -65504, np.float16), 1)
    server, client = Server({"w": np.ones((64, 64), np.float16), "mask": mask}, bits_per_parameter=2, seed=1), Client()
    server.receive("a", client.reply(client.receive(server.request("a"))))


def test_damaged_states_are_recognised():
    server, fleet = Server(model(), bits_per_parameter=1, seed=1), Fleet()
    fleet.round(server, ["a"])
    state, kept = server.state, fleet.states["a"]
    for place in np.random.default_rng(0).integers(0, 8 * len(state), 50):
        damaged = bytearray(state)
        damaged[place // 8] ^= 1 << (place % 8)
        with pytest.raises(KLMSError):
            Server.restored(bytes(damaged), bits_per_parameter=1)
    for place in np.random.default_rng(0).integers(0, 8 * len(kept), 50):
        damaged = bytearray(kept)
        damaged[place // 8] ^= 1 << (place % 8)
        assert Client(bytes(damaged)).state == Client().state


def test_a_residual_is_not_sent_to_another_server():
    client = Client()
    for seed in (1, 2):
        server = Server(model(), scheme="topk", down=32, seed=seed)
        received = client.receive(server.request("a"))
        sent = {**received, "weight": received["weight"] + np.float32(1)} if seed == 1 else received
        found = server.receive("a", client.reply(sent))
    np.testing.assert_array_equal(found["weight"], received["weight"])


def test_restored_says_which_argument_is_wrong():
    state = Server(model(), bits_per_parameter=1, seed=1).state
    Server.restored(state, bits_per_parameter=1, seed=1)
    with pytest.raises(InvalidArgument, match="bits_per_parameter"):
        Server.restored(state, bits_per_paramter=1)


def test_an_answer_that_cannot_be_sent_may_be_repaired():
    server, client = Server(model(), bits_per_parameter=1, seed=1), Client()
    received = client.receive(server.request("a"))
    with pytest.raises(KLMSError):
        client.reply({**received, "weight": received["weight"] * np.float32(np.nan)})
    server.receive("a", client.reply(received))


@pytest.mark.parametrize("late", [-1, "3", 1.5])
def test_late_is_a_number_of_rounds(late):
    with pytest.raises(InvalidArgument, match="late"):
        Server(model(), late=late)


def test_the_same_model_is_not_sent_again_whatever_objects_hold_it():
    server = Server(model(), bits_per_parameter=1, seed=1)
    number = server.held.number
    server.lead(model())
    assert server.held.number == number
    server.lead(trained(model()))
    assert server.held.number == number + 1


def test_a_pre_trained_model_loses_nothing_to_speak_of():
    start = model()
    held = Server(start, bits_per_parameter=0.1).model
    error = np.sum((held["weight"] - start["weight"]) ** 2) / np.sum(start["weight"] ** 2)
    assert error < 1e-4


def test_differences_are_recognised_and_taken_if_announced(caplog):
    server, client = Server(model(), bits_per_parameter=4, seed=1), Client()
    received = client.receive(server.request("a"))
    difference = {name: (0.05 * array).astype(array.dtype) for name, array in received.items()}
    server.receive("a", client.reply(difference))
    assert 'replies="updates"' in caplog.text
    caplog.clear()
    server, client = Server(model(), bits_per_parameter=4, seed=1, replies="updates"), Client()
    received = client.receive(server.request("a"))
    difference = {name: array - received[name] for name, array in trained(received).items()}
    decoded = server.receive("a", client.reply(difference))
    error = np.sum((decoded["weight"] - difference["weight"]) ** 2) / np.sum(difference["weight"] ** 2)
    assert error < 0.02
    assert int(decoded["steps"][0]) == 1
    assert 'replies="updates"' not in caplog.text


def test_some_arrays_none_at_all_and_arrays_that_were_not_received():
    server, client = Server(model(), bits_per_parameter=2, seed=1), Client()
    received = client.receive(server.request("a"))
    with pytest.raises(InvalidArgument, match="not received: other"):
        client.reply({"other": received["bias"]})
    with pytest.raises(InvalidArgument, match=r"shape|received as"):
        client.reply({"bias": received["weight"]})
    decoded = server.receive("a", client.reply({"weight": trained(received)["weight"]}))
    assert decoded.keys() == {"weight"}
    with pytest.raises(InvalidArgument, match="no request"):
        client.reply({})
    client.receive(server.request("a"))
    assert server.receive("a", client.reply({})) == {}


def test_arrays_beside_the_request_are_part_of_what_is_trained():
    server, client = Server(model(), bits_per_parameter=4, seed=1), Client()
    control = {"control/weight": np.ones((120, 90), np.float32)}
    base = server.base(control)
    request = server.request("a", base)
    with pytest.raises(OutOfSync):
        Client().receive(request, {"control/weight": np.zeros((120, 90), np.float32)})
    received = client.receive(request, control)
    assert received.keys() == {*model(), "control/weight"}
    answer = {**trained(received), "control/weight": 1.5 * received["control/weight"]}
    decoded = server.receive("a", client.reply(answer))
    assert np.mean((decoded["control/weight"] - 1.5) ** 2) < 0.02


def test_requests_repeat_no_terms_that_a_client_holds():
    server, fleet = Server(model(), up=lambda round: 1 + 0.01 * round, down=1, seed=1), Fleet()
    fleet.round(server, ["a"])
    sizes = []
    for _ in range(3):
        request = server.request("a")
        sizes.append(len(request) - len(server.held.trail.steps[-1]))
        fleet.round(server, ["a"])
    assert max(sizes) < 180


def test_clients_that_come_rarely_jump():
    names = [f"client {n}" for n in range(40)]
    server, fleet = Server(model(), bits_per_parameter=1, seed=1), Fleet(noise=0.05)
    spent = []
    for number in range(30):
        before = server.downlink_bytes
        fleet.round(server, names[4 * number % 40 : 4 * number % 40 + 4])
        spent.append(8 * (server.downlink_bytes - before) / (4 * D))
    assert server.held.trail.anchored
    assert np.mean(spent[15:]) < 7  # ten steps would take ten bits, and a snapshot 32


def test_one_line_of_arguments_that_cannot_be_met():
    with pytest.raises(InvalidArgument, match="did you mean 'bits_per_parameter'"):
        Server(model(), bits=1)
    for name in ("bits_per_parameter", "up", "down", "budget", "quality", "step"):
        with pytest.raises(InvalidArgument, match=f"{name} must be a number, got '0.1'"):
            Server(model(), **{name: "0.1"})
    for wrong in ({"rounds_before": -1}, {"step": 0.0}, {"seed": -1}, {"replies": "nothing"}, {"up": 0}):
        with pytest.raises(InvalidArgument):
            Server(model(), **wrong)
    with pytest.raises(InvalidArgument, match="no model yet"):
        Server().request("a")


def test_the_next_model_has_the_names_and_shapes_of_the_held_one():
    server = Server({"w": np.ones((300, 30), np.float32), "b": np.ones(30, np.float32)}, down=1, seed=1)
    held = server.model
    for wrong, words in (
        ({**held, "w": np.zeros(3)}, r"array 'w' has shape \(3,\), and \(300, 30\) in the server's model"),
        ({**held, "w": 3}, r"array 'w' has shape \(\)"),
        ({"w": held["w"]}, "array 'b' of the server's model is missing"),
        ({**held, "c": held["w"]}, "has no array 'c'"),
        ({**held, "b": np.full(30, np.nan, np.float32)}, "array 'b' has entries that are infinite or not a number"),
        (None, "a dictionary of arrays is expected, got NoneType"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            server.step(wrong)
        assert (server.round, same(server.model, held)) == (1, True)
    for model_ in ({"w": np.array([[np.inf]])}, [np.zeros(3)]):
        with pytest.raises(InvalidArgument, match="array"):
            Server(model_)


def test_integers_and_another_order_are_a_step_like_any_other():
    server = Server({"w": np.ones((300, 30), np.float32), "b": np.ones(30, np.float32)}, down=1, seed=1)
    server.step({"b": np.full(30, 2), "w": np.full((300, 30), 3)})
    assert {name: array.dtype for name, array in server.model.items()} == {"w": np.float32, "b": np.float32}
    assert list(server.model) == ["w", "b"]
    assert len(server.held.trail.steps[-1]) < 9030 / 2


def test_a_framework_may_change_the_model_altogether():
    server = Server(model(), bits_per_parameter=1, seed=1)
    server.lead({"other": np.ones((50, 50), np.float32)})
    assert Client().receive(server.request("a")).keys() == {"other"}


@pytest.mark.parametrize("path", ["file.state", None])
def test_what_is_not_bytes_is_refused_on_both_sides(path):
    server = Server(model(), bits_per_parameter=1, seed=1)
    server.request("a")
    for use in (lambda: server.receive("a", path), lambda: Client().receive(path), lambda: Client(path)):
        with pytest.raises(InvalidArgument, match="must be bytes"):
            use()
    client = Client()
    received = client.receive(server.request("a"))
    with pytest.raises(InvalidArgument, match="a dictionary of arrays is expected, got list"):
        client.reply([*received.values()])


def test_large_models_are_coded_in_chunks_in_both_directions(monkeypatch):
    fleets = []
    for most in (1 << 25, 4000):
        monkeypatch.setattr(chunks, "CHUNK", most)
        server = Server(model(), bits_per_parameter=1, seed=1)
        fleet = Fleet()
        for _ in range(6):
            fleet.round(server, "abc")
        fleets.append((distance(server.model), server.uplink_bytes, server.downlink_bytes))
    whole, cut = fleets
    assert cut[0] == pytest.approx(whole[0], rel=0.5)
    assert cut[1] == pytest.approx(whole[1], rel=0.1)
    assert cut[2] == pytest.approx(whole[2], rel=0.1)
