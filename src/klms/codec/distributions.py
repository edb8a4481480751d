"""The distributions and their fixed-point forms.

One class serves both roles. As `p` (the side information), a discrete distribution is reduced to integers before
anything random happens: cumulative 16-bit thresholds, where a word `u` stands for symbol `a` iff
`thresholds[a-1] <= u < thresholds[a]`. As `q` (the client's own distribution) it consists of probabilities, which only
the encoder sees. The encoder scores with the quantised `p` that the decoder samples, so quantisation costs a little KL
but causes no bias. KL divergences are per coordinate and in bits.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from klms.errors import InvalidArgument
from klms.numerics.checks import frozen
from klms.numerics.elementary import LN_2, take_logarithms
from klms.numerics.jit import Float32, Float64, Int64, UInt8, UInt16, inlined, kernel
from klms.numerics.parallel import over

Values = UInt8 | Float32

MAX_ALPHABET = 256
SMALLEST_PROBABILITY = 2.0**-24
"""Replaces 0 in logarithms of `q`: a candidate that `q` excludes loses 24 bits of score and stays comparable."""

_KL_CHUNK = 4096
_KL_PART = 1 << 20  # 8 MB


class Distribution(ABC):
    """A distribution over independent coordinates. Instances are immutable."""

    family: ClassVar[str]
    d: int

    def kl(self, p: Self, *, threads: int | None = 1) -> Float64:
        """Return `D(self || p)` in bits for each coordinate; at least 0 and finite. With None, all cores are used."""
        self.check_same_family(p)
        out = np.empty(self.d)
        self._write_kl(p, 0, out, threads)
        return out

    def kl_in_parts(self, p: Self, *, threads: int | None = 1) -> Iterator[Float64]:
        """Yield what `kl` returns in consecutive parts, each of which overwrites the one before."""
        self.check_same_family(p)
        buffer = np.empty(min(self.d, _KL_PART))
        for start in range(0, self.d, _KL_PART):
            part = buffer[: self.d - start]
            self._write_kl(p, start, part, threads)
            yield part

    @abstractmethod
    def _write_kl(self, p: Self, start: int, out: Float64, threads: int | None) -> None:
        """Write the KL of the coordinates from `start` onwards to `out`."""

    @cached_property
    def most_kl(self) -> float:
        """KL in bits, summed over coordinates, that no distribution has to this one, or none that could be coded.

        Here a coordinate has as many bits as the longest index: what is further away than that is far from every
        candidate.
        """
        return 16.0 * self.d

    @property
    def plain_bits(self) -> float:
        """Bits of a sample that is written value by value, without any `p`."""
        return 32.0 * self.d

    @cached_property
    @abstractmethod
    def digest(self) -> bytes:
        """SHA-256 of the fixed-point form. Equal digests mean equal candidates."""

    def check_same_family(self, p: "Distribution") -> None:
        """Raise `InvalidArgument` unless `p` can be the side information for this distribution."""
        if type(p) is not type(self):
            raise InvalidArgument(f"p must be a {type(self).__name__} like q, got a {type(p).__name__}")
        if p.d != self.d:
            raise InvalidArgument(f"p has {p.d} coordinates, q has {self.d}")


class Discrete(Distribution):
    """A distribution over a small alphabet at each coordinate. Symbol `a` stands for `values[a]`."""

    values: Values

    @cached_property
    def probabilities(self) -> Float32:
        """One row per symbol; the last may be missing: it is 1 minus the others."""
        cumulated = self.thresholds / np.float32(65536)
        return frozen(np.diff(cumulated, axis=0, prepend=np.float32(0), append=np.float32(1)))

    @cached_property
    def thresholds(self) -> UInt16:
        """Entry `[a, i]` is the first word beyond symbol `a` at coordinate `i`. Every symbol keeps at least 1/65536."""
        out = np.empty((self.values.size - 1, self.d), dtype=np.uint16)
        _cumulate(self.probabilities, out)
        return frozen(out)

    def _write_kl(self, p: Self, start: int, out: Float64, threads: int | None) -> None:
        probabilities, thresholds = self.probabilities, p.thresholds

        def write(first: int, end: int, bounds: Int64) -> None:
            scratch = np.empty(_KL_CHUNK)
            for place in bounds[first:end].tolist():
                nats = out[place : place + _KL_CHUNK]
                nats[:] = 0.0
                q, ratio = np.empty((2, self.values.size, nats.size))
                log_ratios(probabilities, thresholds, start + place, q, ratio, scratch)
                for own, logarithms in zip(q, ratio, strict=True):
                    nats += own * logarithms
                np.maximum(nats, 0.0, out=nats)
                np.divide(nats, LN_2, out=nats)

        over(np.array([*range(0, out.size, _KL_CHUNK), out.size]), threads, write)

    @cached_property
    def most_kl(self) -> float:
        """KL of the distribution that is sure of the least likely symbol everywhere."""
        counts = np.zeros(65537, dtype=np.int64)
        _count_least(self.thresholds, counts)
        widths = np.flatnonzero(counts)
        return float(counts[widths] @ (16.0 - np.log2(widths)))

    @property
    def plain_bits(self) -> float:
        return math.log2(self.values.size) * self.d

    @cached_property
    def digest(self) -> bytes:
        header = f"{self.family} {self.d} ".encode() + self.values.astype(self.values.dtype.newbyteorder("<")).tobytes()
        return _sha256(header, self.thresholds)


class Bernoulli(Discrete):
    """Bits with `P(y_i = 1) = probability[i]`. As `p`, `y = 1` iff `u < clip(rint(65536 probability), 1, 65535)`.

    >>> Bernoulli([0.9, 0.5]).kl(Bernoulli([0.5, 0.5])).round(3).tolist()
    [0.531, 0.0]
    """

    family = "bernoulli"
    values = frozen(np.array([1, 0], dtype=np.uint8))

    def __init__(self, probability: npt.ArrayLike) -> None:
        vector = _vector("probability", probability)
        if vector.min() < 0 or vector.max() > 1:
            raise InvalidArgument("probability must be in [0, 1]")
        self.d, self.probabilities = vector.size, frozen(vector.reshape(1, -1))

    def __reduce__(self) -> tuple[type["Bernoulli"], tuple[Float32]]:
        return Bernoulli, (self.probability,)

    @property
    def probability(self) -> Float32:
        row: Float32 = self.probabilities[0]
        return row


class Categorical(Discrete):
    """Symbols with `P(y_i = values[a]) = probabilities[i, a]`, for 2 to 256 values that all coordinates share.

    >>> q = Categorical([[0.1, 0.8, 0.1]], values=[-1.0, 0.0, 1.0])
    >>> q.kl(q).item() < 1e-6
    True
    """

    family = "categorical"

    def __init__(self, probabilities: npt.ArrayLike, values: npt.ArrayLike) -> None:
        table = np.asarray(probabilities)
        if table.ndim != 2 or table.shape[0] == 0:
            raise InvalidArgument("probabilities must be a table with one row per coordinate and one column per value")
        if not 2 <= table.shape[1] <= MAX_ALPHABET:
            raise InvalidArgument(f"probabilities must have 2 to {MAX_ALPHABET} columns, got {table.shape[1]}")
        self.values = frozen(_vector("values", values))
        if self.values.size != table.shape[1]:
            raise InvalidArgument(f"values must have one entry per column of probabilities ({table.shape[1]})")
        rows = np.empty(table.shape[::-1], dtype=np.float32)
        fault = _normalise(table if table.dtype in (np.float32, np.float64) else table.astype(np.float64), rows)
        if fault:
            raise InvalidArgument("probabilities must " + ("be in [0, 1]" if fault == 1 else "sum to 1 in every row"))
        self.d, self.probabilities = len(table), frozen(rows)

    @classmethod
    def of_rows(cls, rows: Float32, values: npt.ArrayLike) -> "Categorical":
        """Return the law whose probabilities are these rows, one per value, which become read-only: no copy is made."""
        law = cls.__new__(cls)
        law.d, law.values, law.probabilities = rows.shape[1], frozen(_vector("values", values)), frozen(rows)
        if len(rows) != law.values.size:
            raise InvalidArgument(f"there must be one row per value ({law.values.size}), got {len(rows)}")
        return law

    @classmethod
    def quantised(cls, thresholds: UInt16, values: npt.ArrayLike) -> "Categorical":
        """Return the law with these thresholds, which become read-only: as `p` it takes less memory."""
        law = cls.__new__(cls)
        law.d, law.values, law.thresholds = thresholds.shape[1], frozen(_vector("values", values)), frozen(thresholds)
        if len(thresholds) != law.values.size - 1:
            raise InvalidArgument(f"thresholds must have one row per value but the last ({law.values.size - 1})")
        if not (thresholds[0] > 0).all() or not (thresholds[1:] > thresholds[:-1]).all():
            raise InvalidArgument("thresholds must be positive and increase from row to row")
        return law

    def __reduce__(self) -> tuple[type["Categorical"], tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]]:
        return Categorical, (self.probabilities.T, self.values)

    def check_same_family(self, p: Distribution) -> None:
        super().check_same_family(p)
        if isinstance(p, Categorical) and not np.array_equal(p.values, self.values):
            raise InvalidArgument("p must have the same values as q")


class Gaussian(Distribution):
    """Independent normal distributions. As `p`, `y = mean + std * Q[u]` with the quantile table `Q` of `quantiles.py`.

    >>> Gaussian([1.0], [1.0]).kl(Gaussian([0.0], [1.0])).round(4).item()
    0.7213
    """

    family = "gaussian"

    def __init__(self, mean: npt.ArrayLike, std: npt.ArrayLike) -> None:
        self.mean: Float32 = frozen(_vector("mean", mean))
        spread = np.asarray(std, dtype=np.float64)
        self.d = self.mean.size
        self.std: Float32 = frozen(_vector("std", np.full(self.d, spread) if spread.ndim == 0 else spread))
        if self.std.size != self.d:
            raise InvalidArgument(f"std must be a number or have {self.d} entries like mean, got {self.std.size}")
        if self.std.min() <= 0:
            raise InvalidArgument("std must be positive also after rounding to float32")
        if float(np.abs(self.mean).max()) + 5.0 * float(self.std.max()) > float(np.finfo(np.float32).max):
            raise InvalidArgument("mean and std are so large that samples would overflow a float32")

    def __reduce__(self) -> tuple[type["Gaussian"], tuple[Float32, Float32]]:
        return Gaussian, (self.mean, self.std)

    def _write_kl(self, p: Self, start: int, out: Float64, threads: int | None) -> None:
        gaussian_nats(self.paired_with(p), start, out, np.empty(out.size))
        np.divide(out, LN_2, out=out)

    @cached_property
    def digest(self) -> bytes:
        return _sha256(f"{self.family} {self.d} ".encode(), self.mean, self.std)

    def paired_with(self, p: "Gaussian") -> "GaussianPair":
        return GaussianPair(q_mean=self.mean, q_std=self.std, p_mean=p.mean, p_std=p.std)


class GaussianPair(NamedTuple):
    """Parameters of two Gaussian distributions, as the kernels take them."""

    q_mean: Float32
    q_std: Float32
    p_mean: Float32
    p_std: Float32


def _vector(name: str, values: npt.ArrayLike) -> Float32:
    with np.errstate(over="ignore"):  # an overflow becomes infinite and is reported below
        array = np.array(values, dtype=np.float32)
    if array.ndim != 1 or array.size == 0:
        raise InvalidArgument(f"{name} must be a non-empty vector, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidArgument(f"{name} must be finite")
    array += 0  # turns -0 into +0: equal parameters must have equal digests
    return array


def _sha256(header: bytes, *arrays: npt.NDArray[np.generic]) -> bytes:
    state = hashlib.sha256(header)
    for array in arrays:
        state.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
    return state.digest()


@kernel
def _normalise(table: Float64, rows: Float32) -> int:
    """Transpose and scale the table; return 1 for an entry outside [0, 1], 2 for a sum far from 1, else 0."""
    symbols, d = rows.shape
    for i in range(d):
        total = 0.0
        for a in range(symbols):
            if not 0.0 <= table[i, a] <= 1.0:
                return 1
            total += table[i, a]
        if not abs(total - 1.0) <= 1e-3:
            return 2
        for a in range(symbols):
            rows[a, i] = table[i, a] / total
    return 0


@inlined
def next_threshold(cumulated: float, before: int, after: int) -> int:
    """Return a threshold, given the one before it and how many symbols come after it: each keeps at least one word."""
    return min(max(int(np.rint(cumulated * 65536.0)), before + 1), 65536 - after)


@kernel
def _cumulate(probabilities: Float32, out: UInt16) -> None:
    steps, d = out.shape
    for i in range(d):
        total = 0.0
        below = 0
        for a in range(steps):
            total += np.float64(probabilities[a, i])
            below = next_threshold(total, below, steps - a)
            out[a, i] = below


@kernel
def _count_least(thresholds: UInt16, counts: Int64) -> None:
    """Count how often the least likely symbol has which number of words."""
    steps, d = thresholds.shape
    for i in range(d):
        below = 0
        least = 65536
        for a in range(steps):
            least = min(least, int(thresholds[a, i]) - below)
            below = int(thresholds[a, i])
        counts[min(least, 65536 - below)] += 1


@kernel
def log_ratios(
    probabilities: Float32, thresholds: UInt16, start: int, q: Float64, ratio: Float64, scratch: Float64
) -> None:
    """Write `q_a` and `log(q_a / p_a)` to row `a` of `q` and `ratio`, for the coordinates from `start` onwards."""
    symbols, n = q.shape
    for a in range(symbols):
        value, logarithm = q[a], ratio[a]
        if a < probabilities.shape[0]:
            for o in range(n):
                value[o] = np.float64(probabilities[a, start + o])
        else:
            value[:] = 1.0
            for other in range(symbols - 1):
                for o in range(n):
                    value[o] -= q[other, o]
        for o in range(n):
            value[o] = value[o] if value[o] > SMALLEST_PROBABILITY else SMALLEST_PROBABILITY
            logarithm[o] = value[o] * 65536.0
        if a == 0:
            for o in range(n):
                logarithm[o] /= np.float64(thresholds[0, start + o])
        elif a == symbols - 1:
            for o in range(n):
                logarithm[o] /= 65536.0 - np.float64(thresholds[a - 1, start + o])
        else:
            for o in range(n):
                logarithm[o] /= np.float64(thresholds[a, start + o]) - np.float64(thresholds[a - 1, start + o])
        take_logarithms(logarithm, scratch)


@kernel
def gaussian_nats(pair: GaussianPair, start: int, out: Float64, scratch: Float64) -> None:
    """Write the KL in nats of the coordinates from `start` onwards to `out`."""
    for o in range(out.size):
        out[o] = np.float64(pair.q_std[start + o]) / np.float64(pair.p_std[start + o])
    take_logarithms(out, scratch)
    for o in range(out.size):
        i = start + o
        ratio = np.float64(pair.q_std[i]) / np.float64(pair.p_std[i])
        shift = (np.float64(pair.q_mean[i]) - np.float64(pair.p_mean[i])) / np.float64(pair.p_std[i])
        nats = 0.5 * (ratio * ratio - 1.0 + shift * shift) - out[o]
        out[o] = nats if nats > 0.0 else 0.0
