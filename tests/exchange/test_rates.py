"""Rates by round, by client and within a budget."""

import pytest

from klms.compressors.budget import bits_within
from klms.errors import InvalidArgument
from klms.exchange.rates import Rates


def rates(scheme="auto", both=None, up=None, down=None, array_bits=None, budget=None, quality=None):
    return Rates.of(scheme, {}, both, up, down, array_bits, budget, quality)


def test_a_function_is_given_the_round_or_what_it_names():
    assert rates(up=lambda number: number / 10).policy_up(5).bits == 0.5
    by_both = rates(up=lambda round, client: round + int(client) / 10)
    assert by_both.policy_up(2, client="5").bits == 2.5
    assert rates(up=lambda client: int(client) / 10).policy_up(2, client="5").bits == 0.5
    assert rates(up=lambda client, **rest: rest["round"] / int(client)).policy_up(2, client="4").bits == 0.5
    assert not by_both.known
    assert by_both.policy_down(1).bits == 1  # one model for all clients
    assert rates(both=lambda number: number).policy_down(3).bits == 3
    assert rates(both=16).policy_down(1).bits == 8  # the most that differences are coded at
    assert rates(both=32).policy_down(1) is None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"both": lambda round, client: 1}, "with up= only"),
        ({"down": lambda client: 1}, "with up= only"),
        ({"budget": 1000, "both": 1}, "a budget sets"),
        ({"budget": 1000, "up": 1, "down": 1}, "a budget sets"),
        ({"budget": 1000, "scheme": "qsgd"}, "cannot keep to a budget"),
        ({"both": 1, "up": 1}, "use up= and down="),
    ],
)
def test_rates_that_contradict_each_other_are_explained(asked, words):
    with pytest.raises(InvalidArgument, match=words):
        rates(**asked)


def test_bits_within_a_budget():
    assert bits_within(1000, 100, 8) == 10
    assert bits_within(1000, 0, 0) == 8000
