"""Constant quality: the rates that the next round needs so that its noise does no more harm than wanted.

Coding adds noise of energy `U` to the clients' mean update `u`, and of energy `D` to the model that clients start from.
The noise does harm in three ways, each of which the server can measure:

- In the next round, clients undo a share `c` of an error (`c = -<u, e> / |e|^2`) instead of progressing. Per unit
  of progress `<u, s>` of the server's step `s`, that is the **repair share** `c (G U + D) / <u, s>`. An optimizer at
  the server adds the noise of an update to the model with a gain `G` (`server_gain.py`); FedAvg has `G = 1`, `s = u`.
- Weights that noise has enlarged learn more slowly, above all before a normalisation layer. This harm grows with the
  **relative error of the weights** `(G U + D) / |w|^2`.
- An optimizer that divides by the size of coordinates (FedAdam) mistakes noise for size: `a (U / |u|^2 + D / |s|^2)`,
  where `a` says how much the gain of a coordinate depends on its size. For FedAvg, `a` is 0.

The **harm** is the repair share, plus `WEIGHTS` times the relative error of the weights, plus `ADAPTIVE` times the last
term. A constant quality is a harm that is kept at a target.

With an unbiased code, the error is orthogonal to the coded vector `v`, so `|v_hat|^2 - |v|^2` is the energy of the
error, and the norm `|v|` in a message is all that the server needs. The noise at `r` bits per parameter is
`k / (4^r - 1)` times the energy of the coded vector, with a constant `k` of about 1 that is also measured. Hence the
harm of any pair of rates is known, and the cheapest pair that meets the target is found by a search over one of the two
rates. Quantities that vary from round to round are averaged as logarithms.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from klms.errors import CorruptMessage

TARGET = 0.15
"""Harm at the default quality. `klms experiment run panel` shows the effects of other values and constants."""
WEIGHTS = 5.0
"""Coefficient of the model's relative error in the harm; the repair share has coefficient 1."""
ADAPTIVE = 10.0
"""Coefficient, in the harm, of the noise that an optimizer mistakes for size. It is large, because most coordinates of
an update are far smaller than the update's root mean square, while noise is spread evenly."""
MOMENTUM = 3.0
"""Gain that is assumed until steps show whether the server has momentum: about the geometric mean of the gains without
momentum (1) and at a momentum of 0.7 (11)."""
FIRST_ROUND = 1.0
"""Bits per parameter of the updates in the first round, before anything has been measured."""
LEAST, MOST = 0.02, 8.0
"""Minimum and maximum bits per parameter that may be requested."""
CODE = 1.25
"""Relative error of a code times `4^r - 1`, assumed until it is measured."""
_REPAIR = 0.1  # share of an error that clients undo, and its standard deviation, until the share is measured
_KEPT = 0.5  # weight of earlier rounds in an average of logarithms
_REMEMBERED = 0.8  # weight of earlier rounds in the estimate of the repaired share, which is noisier
_TRIED = 96  # rates that a search tries
_LEAST_PROGRESS = 0.1  # minimum progress assumed for a step, relative to the update: a step may be mostly momentum
_TINY = 1e-30


@dataclass(frozen=True)
class Gain:
    """Response of the server's optimizer to noise in the mean update."""

    total: float = 1.0
    """Energy that a unit of noise eventually adds to the model."""
    immediate: float = 1.0
    """Energy that a unit of noise adds to this round's step."""
    adaptive: float = 0.0
    """How much the gain of a coordinate depends on the size of its updates, from 0 to 1."""


@dataclass(frozen=True)
class Measured:
    """Measurements of a round, made before the server codes the step to the next model. Energies are squared norms."""

    parameters: int
    bits_up: float
    mean: float
    """Energy of the decoded mean update, including the uplink's noise."""
    noise_up: float
    """Energy of the uplink's noise in the decoded mean update: the sum of squared weights times `|v_hat|^2 - |v|^2`."""
    weights: float
    """Energy of the model."""
    step: float
    """Energy of the server's step, which the downlink codes."""
    progress: float
    """Inner product of the decoded mean update and the server's step."""
    error: float = 0.0
    """Energy of the downlink's error in the model that clients started from."""
    echo: float = 0.0
    """Inner product of the downlink's error and the decoded mean update."""
    gain: Gain = field(default_factory=Gain)
    spread: float = 0.0
    """Energy of the change in the mean update that other clients would cause."""

    @property
    def update(self) -> float:
        """Energy of the clients' mean update without noise, but at least the energy that could go unnoticed in it."""
        return max(self.mean - self.noise_up, 2 * self.noise_up / math.sqrt(self.parameters), _TINY)

    @property
    def noiseless_progress(self) -> float:
        """Progress without noise.

        It is at least `spread`, the change that other clients would cause, times the factor by which the step amplifies
        the update.
        """
        slope = math.sqrt(self.gain.immediate)
        return max(self.progress - slope * self.noise_up, slope * self.spread, _LEAST_PROGRESS * slope * self.update)


@dataclass(frozen=True)
class Knowledge:
    """The server's estimates from all rounds so far: averages of logarithms, unless stated otherwise."""

    update: float | None = None
    progress: float | None = None
    step: float | None = None
    uplink: float = CODE
    """Noise of the mean update times `4^r - 1`, relative to the update: a code's error over the number of clients."""
    downlink: float = CODE
    """Noise of the downlink times `4^r - 1`, relative to the step."""
    uplink_at: float = FIRST_ROUND
    """Bits per parameter at which `uplink` was last measured."""
    downlink_at: float = FIRST_ROUND
    repaired: float = _REPAIR / _REPAIR**2
    """Sum of the measured shares `c`, each divided by its variance; earlier rounds have lower weights."""
    certainty: float = 1 / _REPAIR**2
    """Sum of the inverse variances; earlier rounds have lower weights."""
    gain: Gain = field(default_factory=Gain)
    weights: float = 1.0
    rounds: int = 0
    """Number of rounds that were learned from."""

    @property
    def repair(self) -> float:
        """Share of an error that clients undo: the estimate plus one standard deviation."""
        return max(0.0, self.repaired / self.certainty) + 1 / math.sqrt(self.certainty)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Knowledge":
        """Undo `dataclasses.asdict`; raise `CorruptMessage` for anything else."""
        try:
            values: dict[str, Any] = {"gain": Gain(**{name: _size(value) for name, value in kept["gain"].items()})}
            for name in ("uplink", "downlink", "uplink_at", "downlink_at", "certainty", "weights"):
                values[name] = max(_TINY, _size(kept[name]))
            for name in ("update", "progress", "step"):
                values[name] = None if kept[name] is None else _size(kept[name])
            return cls(**values, repaired=_number(kept["repaired"]), rounds=int(kept["rounds"]))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CorruptMessage(f"what was learned about rates cannot be read: {error!r}") from error

    def prices(self) -> tuple[float, float]:
        """Return the harm of a unit of noise in the mean update, and in the model.

        >>> up, down = Knowledge(update=1.0, progress=1.0, weights=100.0, gain=Gain()).prices()
        >>> up == down, round(down, 2)
        (True, 0.25)
        """
        adaptive = ADAPTIVE * self.gain.adaptive
        up = self.gain.total * self.price_of_error + adaptive / (self.update or 1.0)
        return up, self.price_of_error + adaptive / (self.step or 1.0)

    @property
    def price_of_error(self) -> float:
        """Harm of a unit of error in the model, whatever the origin of the error."""
        return self.repair / (self.progress or 1.0) + WEIGHTS / self.weights


@dataclass(frozen=True)
class Rates:
    """Bits per parameter of the next updates, and of the step to the next model."""

    up: float
    down: float


def first_model(target: float = TARGET) -> float:
    """Return the bits per parameter at which the first model's relative error alone does the harm of the target.

    >>> round(first_model(0.15), 2)
    2.71
    """
    return _bits(CODE, target / WEIGHTS)


def bearable(known: Knowledge, target: float = TARGET) -> float:
    """Return the largest energy that one error in the model may have: it then does twice the harm allowed per round."""
    return 2 * target / known.price_of_error


def learned(known: Knowledge, seen: Measured) -> Knowledge:
    """Return the knowledge after the replies of a round."""
    repaired = known.repaired
    certainty = known.certainty
    if seen.error > 0:  # where nothing can be measured, nothing is forgotten
        precision = seen.error * seen.parameters / max(seen.mean, _TINY)
        repaired = _REMEMBERED * repaired + precision * -seen.echo / seen.error
        certainty = _REMEMBERED * certainty + precision
    code = seen.noise_up * (4**seen.bits_up - 1) / seen.update
    first = known.update is None
    return replace(
        known,
        update=_averaged(known.update, seen.update),
        progress=_averaged(known.progress, seen.noiseless_progress),
        step=_averaged(known.step, seen.step),
        uplink=max(code, _TINY) if first else _averaged_code(known.uplink, known.uplink_at, code, seen.bits_up),
        uplink_at=seen.bits_up,
        repaired=repaired,
        certainty=certainty,
        gain=_gain_after(known, seen.gain),
        rounds=known.rounds + 1,
        weights=max(seen.weights, _TINY),
    )


def chosen(known: Knowledge, seen: Measured, target: float = TARGET, messages: tuple[float, float] = (1, 1)) -> Rates:
    """Return the cheapest rates that meet the target; `messages` are a round's numbers of messages up and down.

    >>> seen = Measured(10_000, 1.0, mean=1.1, noise_up=0.1, weights=100.0, step=1.1, progress=1.1)
    >>> rates = chosen(learned(Knowledge(), seen), seen)
    >>> harm(learned(Knowledge(), seen), *noise(learned(Knowledge(), seen), seen, rates)) < 0.16
    True
    """
    price_up, price_down = known.prices()
    best = Rates(MOST, MOST)
    cost = math.inf
    for n in range(_TRIED):
        up = LEAST * (MOST / LEAST) ** (n / (_TRIED - 1))
        noise_up = _noise_up(known, up)
        left = (target - price_up * noise_up) / price_down
        if left <= 0:
            continue
        down = min(MOST, max(LEAST, _bits(known.downlink * _next_step(known, seen, noise_up), left)))
        spent = messages[0] * up + messages[1] * down
        if spent < cost:
            best, cost = Rates(up, down), spent
    left = (target - price_up * _noise_up(known, best.up)) / price_down
    now = MOST if left <= 0 else min(MOST, max(LEAST, _bits(known.downlink * seen.step, left)))
    return Rates(best.up, now)


def rates_for(up: float, down: float, found: float, target: float = TARGET) -> Rates:
    """Return rates that would approximately meet the target, if `up` and `down` bits per parameter do the harm `found`.

    The noise of both directions is divided by the same factor.

    >>> round(rates_for(0.1, 0.1, 10 * TARGET).up, 2)
    0.66
    """
    factor = max(1.0, found / target)
    return Rates(*(min(MOST, _bits(factor * (4**bits - 1), 1.0)) for bits in (up, down)))


def stepped(known: Knowledge, step: float, error: float, bits: float) -> Knowledge:
    """Return the knowledge after a step was coded at `bits` per parameter; `step` and `error` are energies."""
    if step <= 0 or error <= 0:
        return known
    code = error * (4**bits - 1) / step
    return replace(known, downlink=_averaged_code(known.downlink, known.downlink_at, code, bits), downlink_at=bits)


def noise(known: Knowledge, seen: Measured, rates: Rates) -> tuple[float, float]:
    """Return the energies of noise that are expected at these rates, in the mean update and in the model."""
    return _noise_up(known, rates.up), known.downlink * seen.step / (4**rates.down - 1)


def harm(known: Knowledge, noise_up: float, noise_down: float) -> float:
    """Return the harm of noise with these energies, in the mean update and in the model."""
    price_up, price_down = known.prices()
    return price_up * noise_up + price_down * noise_down


def _noise_up(known: Knowledge, bits: float) -> float:
    return known.uplink * (known.update or 1.0) / (4**bits - 1)


def _next_step(known: Knowledge, seen: Measured, noise_up: float) -> float:
    """Return the energy that the server's step would have with this noise in the mean update."""
    own = max(seen.step - known.gain.immediate * seen.noise_up, 0.1 * seen.step)
    return own + known.gain.immediate * noise_up


def _size(value: Any) -> float:
    if _number(value) < 0:
        raise ValueError(f"{value!r} is not a size")
    return _number(value)


def _number(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _averaged(before: float | None, now: float, kept: float = _KEPT) -> float:
    now = max(now, _TINY)
    if before is None:
        return now
    return math.exp(kept * math.log(before) + (1 - kept) * math.log(now))


def _averaged_code(before: float, bits_before: float, now: float, bits: float) -> float:
    """Return the weighted average of the earlier and the new estimate of a code's constant `k`.

    If the coded vector has structure, `k` falls as the rate rises, so an earlier estimate from half or twice the rate
    counts half as much.
    """
    octaves = abs(math.log2(bits / bits_before))
    return _averaged(before, now, _KEPT * 2**-octaves)


def _gain_after(known: Knowledge, seen: Gain) -> Gain:
    """Return the gain to assume; the first step does not show whether the server has momentum."""
    if known.rounds == 0:
        return replace(seen, total=MOMENTUM * seen.immediate)
    return seen if known.rounds == 1 else _averaged_gain(known.gain, seen)


def _averaged_gain(before: Gain, now: Gain) -> Gain:
    return Gain(
        _averaged(before.total, now.total),
        _averaged(before.immediate, now.immediate),
        _KEPT * before.adaptive + (1 - _KEPT) * now.adaptive,
    )


def _bits(energy: float, error: float) -> float:
    """Return the bits per parameter at which `energy / (4^bits - 1)` equals the error."""
    return math.log2(1 + energy / error) / 2
