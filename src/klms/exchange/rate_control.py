"""Rates, round by round. They are chosen to keep a constant quality; if the user named them, their effect is measured.

`quality.py` defines the quality and how rates follow from it. This module collects the measurements for that: the
replies of a round, the step that the strategy makes of them, and the error of the state that clients then hold.
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

_RESOLUTION = 0.003  # relative resolution of an energy: scales of pieces are rounded to powers of 2^(1/512)
_SURE = 3  # rounds after which measurements are worth a warning


@dataclass(frozen=True)
class RoundQuality:
    """Rates and noise of a round, and the harm of the noise. Energies are squared norms."""

    bits_up: float
    """Bits per parameter of the updates; headers are not counted."""
    bits_down: float
    """Bits per parameter of the step to the next model; headers are not counted."""
    noise: float
    """Energy of the noise in the mean update, relative to the energy of the update."""
    relative_error: float
    """Energy of the noise that both directions eventually add to the model, relative to the energy of the model."""
    repair_share: float
    """Effort of clients to undo the noise of earlier rounds, relative to a step's progress (`quality.py`)."""
    harm: float
    """Harm of the noise, which a constant quality keeps at a target."""

    @classmethod
    def of(cls, known: Knowledge, bits: Rates, noise_up: float, noise_down: float) -> "RoundQuality":
        """Return the quality of a round with these energies of noise in the mean update and in the model."""
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
    """Estimate of the noise in the weighted mean of decoded updates, from their norms before and after coding."""

    weight: float = 0.0
    squares: float = 0.0
    """Sum of squared weights."""
    decoded: float = 0.0
    """Sum of the energies of all decoded updates, each times its squared weight."""
    noises: list[float] = field(default_factory=list)
    """Noise of every message, relative to the energy of the decoded update."""

    def add(self, update: Vector, norm: float, weight: float, bits: float) -> None:
        """Add an update that was coded at `bits` bits per parameter; `norm` is its norm before coding."""
        energy = product(update, update)
        self.weight += weight
        self.squares += weight**2
        self.decoded += weight**2 * energy
        if energy > 0:
            noise = 1 - min(1.0, norm**2 / energy)
            self.noises.append(noise if noise > _RESOLUTION else quality.CODE / (4**bits - 1 + quality.CODE))

    @property
    def noise(self) -> float:
        """Energy of the noise in the mean update. A few clients that report wrong norms do not change it."""
        return median(self.noises or [0.0]) * self.decoded / (self.weight**2 or 1.0)

    def spread(self, mean: float) -> float:
        """Return the energy of the change in the mean that other clients would cause.

        `mean` is the energy of the mean.
        """
        own = self.decoded / self.weight**2 - self.noise
        return max(0.0, own - max(0.0, mean - self.noise) * self.squares / self.weight**2)


@dataclass
class Replies:
    """Sums over the replies of one round."""

    round: int
    total: Vector
    energies: Energies = field(default_factory=Energies)
    bits: list[float] = field(default_factory=list)

    def add(self, update: Vector, norm: float, weight: float, bits: float) -> None:
        """Add a decoded update; `norm` is its norm before coding."""
        self.total += np.float32(weight) * update
        self.energies.add(update, norm, weight, bits)
        self.bits.append(bits)

    def mean(self) -> Vector:
        return np.asarray(self.total / np.float32(self.energies.weight), dtype=np.float32)


class RateControl:
    """Measures the effect of the rates and, if there is a `target`, chooses the rates of the next messages."""

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
        """Record a decoded update. `norm` is its norm before coding, as reported by the client."""
        if weight <= 0:
            return
        if self._replies is None or self._replies.round != round_ or self._replies.total.size != update.size:
            self._replies = Replies(round_, np.zeros(update.size, dtype=np.float32))
        self._replies.add(update, norm, weight, bits)

    @property
    def bearable(self) -> float:
        """Largest energy of a single error that may become part of the model."""
        return quality.bearable(self.known, self.target or quality.TARGET)

    def received(self, step: Vector, off: float, weights: float, error: Vector, bounds: list[int]) -> None:
        """Learn from the replies of the round, once the strategy has made a step of them.

        `step` leads from the model to the next one, and `weights` is the energy of the next model. `off` is the squared
        distance between the server's own model and the model that clients started from, and `error` is the error of the
        clients' model. `bounds` are the positions at which arrays begin and end.
        """
        replies, self._replies, self._seen = self._replies, None, None
        if replies is None or replies.energies.decoded <= 0 or replies.total.size != step.size:
            return  # nothing was sent, or only zeros, which say nothing about the updates to come
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
        if off > self.bearable:  # then the next step must code this distance, too
            self._seen = replace(self._seen, step=self._seen.step + off)
        if self.target is not None:
            rates = quality.chosen(self.known, self._seen, self.target)
            self.up = _three_digits(rates.up)
            self.down = _three_digits(rates.down)

    def stepped(self, bits: float, error: Vector, *, unbiased: bool) -> None:
        """Record the error of a step that was coded at `bits` bits per parameter."""
        seen, self._seen = self._seen, None
        if seen is None:
            return
        lost = product(error, error)
        self.latest = RoundQuality.of(self.known, Rates(seen.bits_up, bits), seen.noise_up, lost)
        if unbiased:
            self.known = quality.stepped(self.known, seen.step, lost, bits)

    def advice(self) -> str:
        """Return a warning if the rates do more harm than the default quality allows; otherwise an empty string."""
        latest = self.latest
        if latest is None or self.target is not None or self.known.rounds < _SURE or latest.harm < 2 * quality.TARGET:
            return ""
        rates = quality.rates_for(latest.bits_up, latest.bits_down, latest.harm)
        return (
            f"the noise of these rates does {latest.harm / quality.TARGET:.1f} times the harm that the default quality "
            f"allows, and the model will learn less. About {rates.up:.2g} bits up and {rates.down:.2g} down would keep "
            "to that quality; if you set no rate, klms chooses it itself"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the values that a server needs to resume after a restart."""
        return {"known": asdict(self.known), "up": self.up, "down": self.down}

    def restore(self, kept: Any) -> None:
        """Undo `to_json`."""
        try:
            self.known = Knowledge.from_json(kept["known"])
            self.up = float(kept["up"])
            self.down = float(kept["down"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptMessage(f"what the server has learned about rates cannot be read: {error!r}") from error


def _three_digits(bits: float) -> float:
    """Return a rate rounded to three digits, so that it is short to write."""
    return float(f"{bits:.3g}") if math.isfinite(bits) else quality.MOST
