"""Rates that change over the rounds, as text: `1:5,0.1` means 1 bit per parameter for 5 rounds, then 0.1."""

from dataclasses import dataclass

from klms.compressors.trellis import MAX_RATE, MIN_RATE


@dataclass(frozen=True)
class RateSchedule:
    """Bits per parameter by round.

    >>> schedule = RateSchedule.parse("1:5,0.3:10,0.1")
    >>> [schedule.in_round(number) for number in (1, 5, 6, 15, 16, 1000)]
    [1.0, 1.0, 0.3, 0.3, 0.1, 0.1]
    """

    parts: tuple[tuple[int, float], ...]
    """Last round and rate of each part, except for the last part, whose rate is `last`."""
    last: float

    @classmethod
    def parse(cls, text: str) -> "RateSchedule":
        """Read `RATE:ROUNDS,...,RATE`; raise a `ValueError` that says what is wrong."""
        *before, last = text.split(",")
        parts, end = [], 0
        for part in before:
            rate, _, rounds = part.partition(":")
            if not rounds.strip().isdecimal() or int(rounds) < 1:
                raise ValueError(f"{part!r} is not RATE:ROUNDS; a schedule looks like 1:5,0.1")
            end += int(rounds)
            parts.append((end, _rate(rate)))
        if ":" in last:
            raise ValueError(f"the last rate holds for all further rounds: write {last.partition(':')[0]}, not {last}")
        return cls(tuple(parts), _rate(last))

    def in_round(self, number: int) -> float:
        """Return the rate of a round; rounds count from 1."""
        return next((rate for end, rate in self.parts if number <= end), self.last)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of bits per parameter") from None
    if not MIN_RATE <= rate <= MAX_RATE:  # also true for NaN
        raise ValueError(f"a rate must be from {MIN_RATE:g} to {MAX_RATE:g} bits per parameter, got {text.strip()}")
    return rate
