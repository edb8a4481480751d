"""What a run that diverged says of its causes: the learning rate, and the noise of few bits from few clients."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from klms.compressors.base import DIVERGED, LOWER_LR
from klms.errors import TrainingDiverged
from klms.exchange.step_length import noise_of_steps
from klms.methods.entry import RunSettings
from klms.methods.table import METHODS


@contextmanager
def explained(settings: RunSettings, round_: int, d: int) -> Iterator[None]:
    """Name the noise of the run's rates in the error of a client that diverged, if it outweighs what clients learn.

    Round 1 starts from a model without noise.
    """
    try:
        yield
    except TrainingDiverged as error:
        raise TrainingDiverged("; ".join([DIVERGED, LOWER_LR, *_of_noise(settings, round_, d)])) from error


def _of_noise(settings: RunSettings, round_: int, d: int) -> list[str]:
    up = settings.up_rate_in(round_, d) if METHODS[settings.method].takes_rate else None
    down = settings.down_rate_in(round_, d) if settings.downlink == "coded" else None
    clients = settings.participants
    noise = noise_of_steps([math.inf if up is None else up] * clients, math.inf if down is None else down)
    if round_ == 1 or noise <= 1:
        return []
    rates = [f"{rate:g} {way}" for rate, way in ((up, "up"), (down, "down")) if rate is not None]
    return [
        f"or raise the bits per parameter: at {' and '.join(rates)} with {clients} clients, the noise of a step has "
        f"{noise:.2g} times the energy of what the clients learned, or more"
    ]
