"""Rates by round, by client and within a budget."""

import numpy as np
import pytest

from klms.compressors.budget import bits_within
from klms.errors import InvalidArgument
from klms.exchange.client import Client
from klms.exchange.rates import Moment, RateArguments, RateRule
from klms.exchange.server import Server


def rule(**asked):
    return RateArguments(**asked).rule()


def test_a_function_is_given_the_round_or_what_it_names():
    def up(asked, round_, client=""):
        return rule(up=asked).up(Moment(round_, client=client))

    assert up(lambda number: number / 10, 5) == 0.5
    assert up(lambda round, client: round + int(client) / 10, 2, "5") == 2.5
    assert up(lambda client: int(client) / 10, 2, "5") == 0.5
    assert up(lambda client, **rest: rest["round"] / int(client), 2, "4") == 0.5


def test_a_direction_without_bits_follows_the_other():
    by_client = rule(up=lambda round, client: round + int(client))
    assert not by_client.known
    assert by_client.down(Moment(1)) == 1  # one model for all clients
    assert rule(both=lambda number: number).down(Moment(3)) == 3
    assert rule(up=0.2).down(Moment(1)) == 0.2
    assert rule(down=0.2).up(Moment(1)) == 1
    assert rule(scheme="qsgd").down(Moment(1)) == 32


def test_models_have_at_most_the_bits_of_their_scheme():
    assert Server(bits_per_parameter=16).rates.down(1, 100, 1).bits == 8
    assert Server(bits_per_parameter=32).rates.down(1, 100, 1) is None


class ByHarm(RateRule):
    """A rule as a user would write it."""

    def __init__(self):
        self.seen = []

    def up(self, now):
        self.seen.append(now)
        return 2.0 if now.client == "0" else 0.5

    def down(self, now):
        return 4.0 if now.latest is None else 1.0


def test_a_rule_of_the_users_own_sets_all_bits():
    asked = ByHarm()
    server = Server({"w": np.zeros((100, 200), np.float32)}, rates=asked, seed=1)
    clients = {name: Client(seed=int(name)) for name in "012"}
    for number in range(3):
        trained, lengths = [], {}
        for name, client in clients.items():
            arrays = client.receive(server.request(name))
            arrays["w"] += np.random.default_rng(number).normal(0, 1, (100, 200)).astype(np.float32)
            reply = client.reply(arrays)
            lengths[name] = 8 * len(reply) / 20_000
            trained.append(server.receive(name, reply)["w"])
        assert lengths == pytest.approx({"0": 2, "1": 0.5, "2": 0.5}, abs=0.03)
        server.step({"w": np.mean(trained, axis=0)})
    assert [now.round for now in asked.seen] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {(now.parameters, now.clients) for now in asked.seen[3:]} == {(20_000, 3)}
    assert server.quality.bits_down == pytest.approx(1, abs=0.1)
    assert "ByHarm" in server.rates.described(1)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"both": lambda round, client: 1}, "with up= only"),
        ({"down": lambda client: 1}, "with up= only"),
        ({"budget": 1000, "both": 1}, "a budget sets"),
        ({"budget": 1000, "up": 1, "down": 1}, "a budget sets"),
        ({"budget": 1000, "scheme": "qsgd"}, "cannot keep to a budget"),
        ({"both": 1, "up": 1}, "use up= and down="),
        ({"both": 1, "quality": 2}, "finds the bits itself"),
        ({"scheme": "qsgd", "quality": 2}, "finds the bits itself"),
        ({"quality": -1}, "above 0"),
        ({"rates": ByHarm(), "both": 1}, "omit all bits"),
        ({"rates": object()}, "rates= takes a rule, got object: derive a class with up and down from"),
        ({"rates": ByHarm}, "an instance of your rule, got the class ByHarm"),
        ({"up": "0.1"}, "up must be a number, got '0.1'"),
        ({"rates": ByHarm(), "scheme": "qsgd"}, "cannot keep to rates="),
    ],
)
def test_rates_that_contradict_each_other_are_explained(asked, words):
    with pytest.raises(InvalidArgument, match=words):
        rule(**asked)


def test_bits_within_a_budget():
    both = rule(budget=1000)
    assert both.up(Moment(1, 100, 8)) == both.down(Moment(1, 100, 8)) == 5
    assert rule(budget=1000, up=1).down(Moment(1, 100, 8)) == 10
    with pytest.raises(InvalidArgument, match=r"leaves 8e-05 bits .* which takes 1,250 bytes"):
        both.up(Moment(1, 10_000_000, 5))
    assert bits_within(1000, 100, 8) == 10
    assert bits_within(1000, 0, 0) == 8000
