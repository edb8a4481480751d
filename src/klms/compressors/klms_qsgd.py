"""QSGD-KLMS (paper, section 4.3): the ternary QSGD law (`s = 1`, eq. 4) against last round's frequencies.

`q` is over `{-1, 0, +1}` times the norm of the bucket, which travels as a side scalar. `p` is, coordinate by
coordinate, `(n_a + prior f_a) / (C + prior)`: how often symbol `a` came in the last round, smoothed towards its
expected frequency in the bucket, so that no symbol has probability 0 and round 1 has a `p` at all. For a Gaussian
update the expected share of non-zero entries in a bucket of `n` is `sqrt(2 / (pi n))`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt

from klms.codec import Categorical, CorruptMessage, SharedKey, inspect
from klms.compressors.base import Side, Vector, checked
from klms.compressors.block_coder import BlockCoder
from klms.compressors.layout import Layout
from klms.compressors.qsgd import bucket_norms, normalised

VALUES = (-1.0, 0.0, 1.0)
_SMALLEST_NORM = 6e-6  # float16 is within 1 % from here on


def round_up(norms: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """To the next float16, which a message carries in half the bits.

    Any number from the norm up serves as the norm: `E[v_hat] = v` holds with the same one in the law and in the
    message. Where norms are beyond float16, or so small that it has few bits left for them, all stay as they are.
    """
    with np.errstate(over="ignore"):
        short = norms.astype(np.float16)
    short = np.where(short < norms, np.nextafter(short, np.float16(np.inf)), short)
    fits = np.isfinite(short) & ((norms == 0) | (norms >= _SMALLEST_NORM))
    return short.astype(np.float32) if fits.all() else norms


@dataclass(frozen=True)
class KLMSQSGD:
    """`prior` is how many clients the expected frequencies are worth."""

    layout: Layout
    bucket: int
    prior: float
    coder: BlockCoder
    _made: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Where the buckets are."""
        return self.layout.buckets(self.bucket)

    def start(self) -> Side:
        counts = np.zeros((2, self.layout.d), dtype=np.uint16)
        return {**self.coder.start(), "counts": counts, "count_of": np.array(0)}

    def encode(self, vector: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        vector = checked(vector, self.layout.d)
        norms = round_up(bucket_norms(vector, self.bounds))
        ratio = normalised(vector, norms, self.bounds)
        minus, plus = np.clip(-ratio, 0, 1), np.clip(ratio, 0, 1)
        q = Categorical(np.stack([minus, 1 - minus - plus, plus], axis=1), VALUES)
        return self.coder.encode(q, self._p(side), side, key=key, rng=rng, scalars=norms.tolist())

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Vector:
        symbols = self.coder.decode(message, self._p(side), side, key=key, scalars=self.bounds.size - 1)
        norms = np.array(inspect(message).scalars, dtype=np.float32)
        if (norms < 0).any():
            raise CorruptMessage("a norm is negative")
        return np.asarray(symbols * np.repeat(norms, np.diff(self.bounds)), dtype=np.float32)

    def learn(self, side: Side, messages: Sequence[bytes], vectors: Sequence[Vector]) -> Side:
        counts = np.zeros((2, self.layout.d), dtype=np.uint16)
        for vector in vectors:
            counts[0] += vector < 0
            counts[1] += vector > 0
        return {**self.coder.learn(side, messages), "counts": counts, "count_of": np.array(len(vectors))}

    def _p(self, side: Side) -> Categorical:
        """Made once for all messages of a round: they share the very array of counts."""
        if self._made.get("of") is not side["counts"]:
            self._made.update({"of": side["counts"], "p": self._make_p(side)})
        return cast(Categorical, self._made["p"])

    def _make_p(self, side: Side) -> Categorical:
        sizes = np.diff(self.bounds)
        each = np.repeat(np.minimum(np.sqrt(2 / (np.pi * sizes)), 0.9) / 2, sizes)
        minus, plus = (side["counts"].astype(np.float64) + self.prior * each) / (int(side["count_of"]) + self.prior)
        return Categorical(np.stack([minus, 1 - minus - plus, plus], axis=1), VALUES)
