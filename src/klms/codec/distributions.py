"""The interface of distributions. Each family has a file with its classes and the kernels that score and decode.

One class serves both roles. As `p` (the side information) a distribution is reduced to a fixed-point form before any
randomness is used, and turns shared words into candidates. As `q` (the client's own distribution) it consists of
parameters that only the encoder sees. The encoder scores candidates with the same quantised `p` from which the decoder
generates them, so quantisation costs a little KL but causes no bias. KL divergences are per coordinate and in bits.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from klms.codec.blocks import Blocks
from klms.codec.candidates import MAX_BITS, SharedWords
from klms.codec.selection import Batch
from klms.errors import InvalidArgument
from klms.numerics.checks import frozen
from klms.numerics.jit import Float32, Float64, UInt8, UInt16

Values = UInt8 | Float32

FAMILIES: dict[int, str] = {}
"""Names of all families, by number."""
_KL_PART = 1 << 20  # 8 MB


class Distribution(ABC):
    """A distribution over independent coordinates. Instances are immutable."""

    family: ClassVar[str]
    number: ClassVar[int]
    """Number of the family in messages."""
    d: int

    def __init_subclass__(cls) -> None:
        """Register the family, so that its messages can be read."""
        if "family" in vars(cls) and FAMILIES.setdefault(cls.number, cls.family) != cls.family:
            raise TypeError(f"{cls.family} has number {cls.number}, which is that of {FAMILIES[cls.number]}")

    def kl(self, p: Self) -> Float64:
        """Return `D(self || p)` in bits for each coordinate; at least 0 and finite."""
        self.check_same_family(p)
        out = np.empty(self.d)
        self._write_kl(p, 0, out, threads=1)
        return out

    def kl_in_parts(self, p: Self, *, threads: int | None = 1) -> Iterator[Float64]:
        """Yield the KL in consecutive parts; each part overwrites the previous one. By default, one thread is used."""
        self.check_same_family(p)
        buffer = np.empty(min(self.d, _KL_PART))
        for start in range(0, self.d, _KL_PART):
            part = buffer[: self.d - start]
            self._write_kl(p, start, part, threads)
            yield part

    @abstractmethod
    def _write_kl(self, p: Self, start: int, out: Float64, threads: int | None) -> None:
        """Write the KL of the coordinates from `start` onwards to `out`."""

    @abstractmethod
    def score(self, p: Self, blocks: Blocks, shared: SharedWords, batch: Batch) -> None:
        """Write to the batch the score of every candidate of `p`, and the expected score and the KL of every block."""

    @abstractmethod
    def candidates(self, indices: UInt16, blocks: Blocks, shared: SharedWords, threads: int | None) -> Values:
        """Generate the candidates with these indices, one per block."""

    @cached_property
    def most_kl(self) -> float:
        """Largest KL to this distribution, in bits over all coordinates, that can be coded.

        At a larger KL, a sample would need more bits per coordinate than the longest index has.
        """
        return float(MAX_BITS * self.d)

    @property
    def plain_bits(self) -> float:
        """Size in bits of a sample that is written value by value, without any `p`."""
        return 32.0 * self.d

    @property
    @abstractmethod
    def fixed_point(self) -> tuple[npt.NDArray[np.generic], ...]:
        """Arrays that determine the candidates."""

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the fixed-point form. Equal digests mean equal candidates."""
        state = hashlib.sha256(f"{self.family} {self.d} ".encode())
        for array in self.fixed_point:
            state.update(array.data)
        return state.digest()

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a pickled copy, with arrays that are read-only like the original's."""
        self.__dict__.update(state)
        for value in state.values():
            if isinstance(value, np.ndarray):
                frozen(value)

    def check_same_family(self, p: "Distribution") -> None:
        """Raise `InvalidArgument` unless `p` can be the side information for this distribution."""
        if type(p) is not type(self):
            raise InvalidArgument(f"p must be a {type(self).__name__} like q, got a {type(p).__name__}")
        if p.d != self.d:
            raise InvalidArgument(f"p has {p.d} coordinates, q has {self.d}")


def parameters(name: str, values: npt.ArrayLike) -> Float32:
    """Return a read-only copy of a finite vector of parameters."""
    with np.errstate(over="ignore"):  # an overflow becomes infinite and is reported below
        array = np.array(values, dtype=np.float32)
    if array.ndim != 1 or array.size == 0:
        raise InvalidArgument(f"{name} must be a non-empty vector, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidArgument(f"{name} must be finite")
    array += 0  # turns -0 into +0: equal parameters must have equal digests
    return frozen(array)
