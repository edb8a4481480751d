"""Constant quality in a run: the server's measurements of a round, and the rates that follow for the next one.

`klms.exchange.quality` defines the quality. Two numbers may have other sources than in `klms.Server`. The first is the
gain of a step: where a step is the mean update times the server's learning rate, its gain is the square of that rate;
for other methods, it is measured from their steps, as in `klms.Server`. The second is the share of an error that
clients undo: relayed messages add no noise to the model, so nothing shows this share, and the assumed value is kept.

The rates of messages include their heads: headers and tables, which are a large part of a small message and convey
nothing of the update. The bits per parameter that are learned and chosen here do not include the heads.
"""

from dataclasses import asdict, replace

import numpy as np

from klms.compressors.base import Vector
from klms.compressors.layout import Layout
from klms.compressors.trellis import MAX_RATE, Trellis, product
from klms.errors import InvalidArgument
from klms.exchange import quality
from klms.exchange.held import Held
from klms.exchange.quality import LEAST, TARGET, Gain, Knowledge, Measured, Rates
from klms.exchange.rate_control import RoundQuality
from klms.exchange.server_gain import gain_of
from klms.methods.base import Method, Outcome, Received
from klms.methods.dense import Dense
from klms.methods.entry import RunSettings
from klms.methods.state import RATE, Learned, State, rate_array


def bearable(known: Knowledge, settings: RunSettings) -> float:
    """Return the largest energy of a single error that may become part of the model."""
    return quality.bearable(known, settings.rates.target or TARGET)


def after_step(learned: Learned, layout: Layout, step: Vector, held: Held[State]) -> Learned:
    """Return what the server knows about rates once a step is coded; `held` is the clients' state after this step."""
    if held.own is not None:  # a jump, or a step soon after a jump, whose error says nothing about the next step
        return learned
    bits = without_heads(layout, learned.down)
    known = quality.stepped(learned.known, _square(step), _square(held.error), bits)
    return replace(learned, known=known)


def needs_mean(method: Method, state: State) -> bool:
    """Return whether the gain of the step after `state` is measured, which requires that the mean update be kept."""
    return state.learned is not None and isinstance(method, Dense) and not method.scales_mean


def after_round(
    method: Method, settings: RunSettings, held: Held[State], outcome: Outcome, received: Received
) -> Outcome:
    """Return the outcome of a round with the rates of the next round, and with the quality of this round as metrics.

    `held` has the state from which clients trained, and `received` are their updates.
    """
    learned = outcome.state.learned
    if learned is None or outcome.undone or not isinstance(method, Dense):
        return outcome
    coded = held.error.size > 0
    rate = held.state.rate
    bits = Rates(without_heads(method.layout, rate), without_heads(method.layout, learned.down) if coded else 0.0)
    name = str(method.vector_name)
    step = outcome.state.vector(name) - held.model.vector(name)
    seen = _measured(method, held, outcome.state, step, bits.up, received)
    known = quality.learned(learned.known, seen)
    if method.scales_mean:
        known = replace(known, gain=seen.gain)  # exact, so that no average is needed
    found = RoundQuality.of(known, bits, seen.noise_up, seen.error)

    away = _square(held.model.vector(name) - held.state.vector(name))
    if away > bearable(known, settings):  # then the next step must code this distance, too
        seen = replace(seen, step=seen.step + away)
    messages = (1, 1) if settings.downlink == "coded" else (1, 0)
    chosen = quality.chosen(known, seen, settings.rates.target or TARGET, messages)
    shared = {**outcome.state.shared, RATE: rate_array(with_heads(method.layout, chosen.up))}
    learned = Learned(known, with_heads(method.layout, chosen.down))
    state = replace(outcome.state, shared=shared, learned=learned)
    if not method.scales_mean:
        state = replace(state, last_step=step)
    return replace(outcome, state=state, metrics={**outcome.metrics, **asdict(found)})


def without_heads(layout: Layout, rate: float) -> float:
    """Return the bits per parameter that a message of this rate has without its headers and tables."""
    return max(LEAST, Trellis(layout, rate).free_bits / layout.d)


def with_heads(layout: Layout, bits: float) -> float:
    """Return the rate of whole messages, given their bits per parameter without headers and tables."""
    heads = bits - Trellis(layout, bits).free_bits / layout.d
    return min(MAX_RATE, bits + heads)


def _measured(
    method: Dense, held: Held[State], after: State, step: Vector, bits_up: float, received: Received
) -> Measured:
    if method.scales_mean:
        mean = step
        factor = method.server_lr  # `mean` is the mean update times this
        gain = Gain(factor**2, factor**2)
    else:
        mean = _mean_of(method, received)
        factor = 1.0
        before = after.last_step if after.last_step.size else None
        gain = gain_of(mean, step, before, np.cumsum([0, *method.layout.sizes]).tolist())
    energy = _square(mean) / factor**2
    weights = after.vector(str(method.vector_name))
    coded = held.error.size > 0
    return Measured(
        parameters=weights.size,
        bits_up=bits_up,
        mean=energy,
        noise_up=received.energies.noise,
        spread=received.energies.spread(energy),
        weights=_square(weights),
        step=_square(step),
        progress=product(mean, step) / factor,
        error=_square(held.error) if coded else 0.0,
        echo=product(held.error, mean) / factor if coded else 0.0,
        gain=gain,
    )


def _mean_of(method: Dense, received: Received) -> Vector:
    if received.mean is None:
        name = type(method).__name__
        raise InvalidArgument(
            f"{name}.aggregate must call received.take_mean(): the rates that hold a quality follow from the mean"
        )
    return received.mean


def _square(vector: Vector) -> float:
    return product(vector, vector)
