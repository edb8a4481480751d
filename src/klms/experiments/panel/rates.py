"""The rates of both directions as a run of the panel goes on: fixed, or those that hold a quality."""

from collections.abc import Sequence
from dataclasses import dataclass

from klms.exchange import quality
from klms.exchange.quality import Gain, Knowledge, Measured
from klms.exchange.server_gain import gain_of
from klms.experiments.panel.cells import Coding
from klms.numerics.jit import Float64


@dataclass(frozen=True)
class Replies:
    """What the server has decoded in a round, and what it makes of it; all but the energies are vectors."""

    held: Float64
    """The model that clients started from."""
    error: Float64
    """How far that is from the model that they should have started from."""
    mean: Float64
    step: Float64
    """What leads from the held model to the next one."""
    noise: float
    """Energy of the uplink's noise in the mean."""
    bounds: Sequence[int]


class Rates:
    """Bits per parameter of the updates (`up`) and of the next step of the model (`down`)."""

    def __init__(self, coding: Coding) -> None:
        self.target = coding.quality
        start = quality.FIRST_ROUND if coding.bits is None else coding.bits
        self.up = start
        self.down = start
        self.known = Knowledge()
        self._next = start
        self._step: Float64 | None = None

    def received(self, replies: Replies) -> Gain:
        """Set `down` for the step that these replies lead to."""
        gain = gain_of(replies.mean, replies.step, self._step, list(replies.bounds))
        seen = Measured(
            parameters=replies.mean.size,
            bits_up=self.up,
            mean=float(replies.mean @ replies.mean),
            noise_up=replies.noise,
            weights=float(replies.held @ replies.held),
            step=float(replies.step @ replies.step),
            progress=float(replies.mean @ replies.step),
            error=float(replies.error @ replies.error),
            echo=float(replies.error @ replies.mean),
            gain=gain,
        )
        self._step = replies.step
        self.known = quality.learned(self.known, seen)
        if self.target is not None:
            rates = quality.chosen(self.known, seen, self.target)
            self._next = _three_digits(rates.up)
            self.down = _three_digits(rates.down)
        return gain

    def stepped(self, step: float, error: float) -> None:
        """Set `up` for the next round, after a step of this energy with this energy of its error."""
        self.known = quality.stepped(self.known, step, error, self.down)
        self.up = self._next


def _three_digits(bits: float) -> float:
    return float(f"{bits:.3g}")
