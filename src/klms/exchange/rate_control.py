"""Rates round by round: those that hold a quality, or what the rates that the user named come to.

`quality.py` says what is held and how rates follow; here is what the server collects for it: the replies of a round,
the step that the strategy makes of them, and the error of what clients then hold.
"""

import math
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any

import numpy as np

from klms.compressors.base import Vector
from klms.compressors.trellis import product
from klms.errors import CorruptMessage
from klms.exchange import quality
from klms.exchange.quality import Knowledge, Measured, Rates
from klms.exchange.server_gain import gain_of

_RESOLUTION = 0.003  # of an energy: scales of pieces are rounded to powers of 2^(1/512)
_SURE = 3  # rounds after which what was measured is worth a warning


@dataclass(frozen=True)
class RoundQuality:
    """What a round came to. Energies are squared norms."""

    bits_up: float
    """Bits per parameter of the updates, without heads."""
    bits_down: float
    """Bits per parameter of the step to the next model, without heads."""
    noise: float
    """Energy of the noise in the mean update, relative to the update's own."""
    relative_error: float
    """Energy that both directions add to the model in the end, relative to the model's."""
    repair_share: float
    """Share of the progress that clients spend on taking errors back."""
    harm: float
    """The number that constant quality holds."""

    @classmethod
    def of(cls, known: Knowledge, bits: Rates, noise_up: float, noise_down: float) -> "RoundQuality":
        """Return what noise of these energies came to, in the mean update and in the model."""
        added = known.gain.total * noise_up + noise_down
        return cls(
            bits_up=bits.up,
            bits_down=bits.down,
            noise=noise_up / (known.update or 1.0),
            relative_error=added / known.weights,
            repair_share=known.repair * added / (known.progress or 1.0),
            harm=quality.harm(known, noise_up, noise_down),
        )

    def __str__(self) -> str:
        return (
            f"{self.bits_up:.3g} bits up and {self.bits_down:.3g} down; noise {self.noise:.3g}, relative error "
            f"{self.relative_error:.2g}, repair share {self.repair_share:.2g}, harm {self.harm:.2g}"
        )


@dataclass
class Energies:
    """What decoded updates, whose norms are known, show of the noise in their weighted mean."""

    weight: float = 0.0
    squares: float = 0.0
    """Sum of squared weights."""
    decoded: float = 0.0
    """Sum of the energies of all decoded updates, each times its squared weight."""
    noises: list[float] = field(default_factory=list)
    """Noise of every message, relative to what it conveys."""

    def add(self, update: Vector, norm: float, weight: float, bits: float) -> None:
        """Add an update that was decoded from so many bits per parameter; its norm was this one before."""
        energy = product(update, update)
        self.weight += weight
        self.squares += weight**2
        self.decoded += weight**2 * energy
        if energy > 0:
            noise = 1 - min(1.0, norm**2 / energy)
            self.noises.append(noise if noise > _RESOLUTION else quality.CODE / (4**bits - 1 + quality.CODE))

    @property
    def noise(self) -> float:
        """Energy of the noise in the mean update. A few clients that claim other norms do not change it."""
        return median(self.noises or [0.0]) * self.decoded / (self.weight**2 or 1.0)

    def spread(self, mean: float) -> float:
        """Return the energy by which the mean, which has this one, would change with other clients."""
        own = self.decoded / self.weight**2 - self.noise
        return max(0.0, own - max(0.0, mean - self.noise) * self.squares / self.weight**2)


@dataclass
class Replies:
    """What the replies of one round add up to."""

    round: int
    total: Vector
    energies: Energies = field(default_factory=Energies)
    bits: list[float] = field(default_factory=list)

    def add(self, update: Vector, norm: float, weight: float, bits: float) -> None:
        """Add a decoded update; `norm` is its norm before it was coded."""
        self.total += np.float32(weight) * update
        self.energies.add(update, norm, weight, bits)
        self.bits.append(bits)

    def mean(self) -> Vector:
        return np.asarray(self.total / np.float32(self.energies.weight), dtype=np.float32)


class RateControl:
    """Knows the rates of the next messages. With a `target`, it chooses them."""

    def __init__(self, target: float | None) -> None:
        self.target = target
        self.up = quality.FIRST_ROUND
        """Bits per parameter of the next updates, if there is a target."""
        self.down = quality.first_model(target or quality.TARGET)
        """Bits per parameter of the next step of the model, if there is a target."""
        self.known = Knowledge()
        self.latest: RoundQuality | None = None
        self._replies: Replies | None = None
        self._seen: Measured | None = None
        self._step: Vector | None = None

    def add(self, round_: int, update: Vector, norm: float, weight: float, bits: float) -> None:
        """Take note of a decoded update. `norm` is what the client says its norm was."""
        if weight <= 0:
            return
        if self._replies is None or self._replies.round != round_ or self._replies.total.size != update.size:
            self._replies = Replies(round_, np.zeros(update.size, dtype=np.float32))
        self._replies.add(update, norm, weight, bits)

    @property
    def bearable(self) -> float:
        """Energy of an error that may become part of the model, once."""
        return quality.bearable(self.known, self.target or quality.TARGET)

    def received(self, step: Vector, off: float, weights: float, error: Vector, bounds: list[int]) -> None:
        """Learn from the replies of the round, once it is known what the strategy makes of them.

        `step` leads from the model to the next one, whose energy is `weights`. Clients started from another model than
        the server's own, at a distance whose square is `off`; `error` is the difference to the model that they should
        have had. `bounds` are where arrays begin and end.
        """
        replies, self._replies, self._seen = self._replies, None, None
        if replies is None or replies.energies.weight <= 0 or replies.total.size != step.size:
            return
        mean = replies.mean()
        has_error = error.size == mean.size
        energy = product(mean, mean)
        self._seen = Measured(
            parameters=mean.size,
            bits_up=fmean(replies.bits),
            mean=energy,
            noise_up=replies.energies.noise,
            spread=replies.energies.spread(energy),
            weights=weights,
            step=product(step, step),
            progress=product(mean, step),
            error=product(error, error) if has_error else 0.0,
            echo=product(error, mean) if has_error else 0.0,
            gain=gain_of(mean, step, self._step, bounds),
        )
        self._step = step
        self.known = quality.learned(self.known, self._seen)
        if off > self.bearable:  # then it must be coded, too
            self._seen = replace(self._seen, step=self._seen.step + off)
        if self.target is not None:
            rates = quality.chosen(self.known, self._seen, self.target)
            self.up = _three_digits(rates.up)
            self.down = _three_digits(rates.down)

    def stepped(self, bits: float, error: Vector, *, unbiased: bool) -> None:
        """Take note of the error of the step that was coded, with so many bits per parameter."""
        seen, self._seen = self._seen, None
        if seen is None:
            return
        lost = product(error, error)
        self.latest = RoundQuality.of(self.known, Rates(seen.bits_up, bits), seen.noise_up, lost)
        if unbiased:
            self.known = quality.stepped(self.known, seen.step, lost, bits)

    def advice(self) -> str:
        """Return what to say of rates that do more harm than the default quality allows; empty if they do not."""
        latest = self.latest
        if latest is None or self.target is not None or self.known.rounds < _SURE or latest.harm < 2 * quality.TARGET:
            return ""
        rates = quality.rates_for(latest.bits_up, latest.bits_down, latest.harm)
        return (
            f"the noise of these rates does {latest.harm / quality.TARGET:.1f} times the harm that the default quality "
            f"allows, and the model will learn less. About {rates.up:.2g} bits up and {rates.down:.2g} down would hold "
            "it; without any bits, klms finds them itself"
        )

    def to_json(self) -> dict[str, Any]:
        """Return what a server needs to go on after a restart."""
        return {"known": asdict(self.known), "up": self.up, "down": self.down}

    def restore(self, kept: Any) -> None:
        """Undo `to_json`."""
        try:
            self.known = Knowledge.from_json(kept["known"])
            self.up = float(kept["up"])
            self.down = float(kept["down"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptMessage(f"what the server has learned of rates cannot be read: {error!r}") from error


def _three_digits(bits: float) -> float:
    """Return rates that are short to write."""
    return float(f"{bits:.3g}") if math.isfinite(bits) else quality.MOST
