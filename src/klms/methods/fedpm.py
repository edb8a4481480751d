"""FedPM (Isik et al., 2023) and FedPM-KLMS: frozen random weights, trained mask probabilities.

The server holds `theta`; a client trains it to `phi` and sends a sample of `Bern(phi)`: bit by bit and arithmetic-coded
(FedPM), or at the cost of its KL to `Bern(theta)` (FedPM-KLMS). BayesAgg makes the next `theta` of the masks:
`alpha += sum m`, `beta += C - sum m`, `theta = (alpha - 1) / (alpha + beta - 2)` (the paper prints another numerator),
from a prior that is reset every `reset` rounds; with the default, every round, `theta` is the mean mask. It is kept
inside `[margin, 1 - margin]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from klms.codec import Bernoulli
from klms.compressors.base import Vector
from klms.compressors.block_coder import BlockCoder
from klms.compressors.mask import MaskCoder
from klms.learning import evaluation
from klms.learning.training import Examples, Schedule, train_mask
from klms.methods.base import Decoder, Method, Outcome, Received, State, Stopwatch, Upload
from klms.methods.facts import message_facts

PRIOR = 1.0  # lambda_0 of the Beta prior
AVERAGED_MASKS = 5


@dataclass(frozen=True)
class FedPM(Method):
    """With a `coder`, FedPM-KLMS."""

    coder: BlockCoder | None
    schedule: Schedule
    margin: float
    reset: int
    gain: float = 1.0
    layer_kl: bool = False
    """Whether clients tell the ledger the KL of every layer."""

    sampled: ClassVar[bool] = True
    """Whether local training samples its masks."""

    @cached_property
    def frozen(self) -> Vector:
        """The weights that the masks are for: a function of the seed."""
        return self.network.signed_constants(self.seed, self.gain)

    def init(self) -> State:
        d = self.layout.d
        side = {} if self.coder is None else self.coder.start()
        ones = np.full(d, PRIOR, dtype=np.float32)
        return State(0, {"theta": np.full(d, 0.5, dtype=np.float32), **side}, {"alpha": ones, "beta": ones})

    def client_update(self, state: State, client: int, data: Examples, rng: np.random.Generator) -> Upload:
        clock = Stopwatch()
        theta = state.vector("theta")
        with clock("train"):
            phi = train_mask(self.network, self.frozen, theta, data, self.schedule, rng, sampled=self.sampled)
        with clock("encode"):
            if self.coder is None:
                message = MaskCoder(self.layout).encode(self.draw(phi, rng))
            else:
                key = self.key(state.round + 1, client)
                message = self.coder.encode(Bernoulli(phi), Bernoulli(theta), state.shared, key=key, rng=rng)
        facts = {}
        if self.layer_kl:
            kl = Bernoulli(phi).kl(Bernoulli(theta))
            facts["kl_by_layer"] = [round(float(kl[part].mean()), 9) for part in self.layout.parts]
        return Upload(client, message, clock.seconds, facts=facts)

    def decoder(self, state: State) -> Decoder:
        if self.coder is None:
            masks = MaskCoder(self.layout)
            return lambda upload: masks.decode(upload.message)
        coder, number, p = self.coder, state.round + 1, Bernoulli(state.shared["theta"])
        return lambda upload: coder.decode(upload.message, p, state.shared, key=self.key(number, upload.client))

    def aggregate(self, state: State, uploads: Sequence[Upload], vectors: Sequence[Received]) -> Outcome:
        messages = [upload.message for upload in uploads]
        ones: npt.NDArray[np.float64] = np.sum(vectors, axis=0, dtype=np.float64)
        side = {name: array for name, array in state.shared.items() if name != "theta"}
        fresh = state.round % self.reset == 0
        alpha = (PRIOR if fresh else state.kept("alpha")) + ones
        beta = (PRIOR if fresh else state.kept("beta")) + (len(uploads) - ones)
        theta = np.clip((alpha - 1) / (alpha + beta - 2), self.margin, 1 - self.margin)
        if self.coder is not None:
            side = dict(self.coder.learn(side, messages))
        after = state.after(
            {"theta": theta.astype(np.float32), **side},
            {"alpha": alpha.astype(np.float32), "beta": beta.astype(np.float32)},
        )
        return Outcome(after, message_facts(messages, self.layout.d))

    def sample_mask(self, state: State, number: int = 0) -> npt.NDArray[np.uint8]:
        """A mask drawn from `theta`: with the seed, the whole model."""
        rng = np.random.default_rng([self.seed, 0x3A5C, state.round, number])
        return self.draw(state.vector("theta"), rng)

    def draw(self, phi: Vector, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
        """A mask with these probabilities."""
        return (rng.random(phi.size) < phi).astype(np.uint8)

    def evaluate(self, state: State, data: Examples) -> tuple[dict[str, float], State]:
        tables = [
            evaluation.predict(self.network, self.frozen * self.sample_mask(state, number), data)
            for number in range(AVERAGED_MASKS)
        ]
        averaged = evaluation.metrics(np.mean(tables, axis=0), data)["accuracy"]
        return evaluation.metrics(tables[0], data) | {"accuracy_averaged": averaged}, state
