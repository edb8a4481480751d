"""Blocks: how `[0, d)` is cut into the pieces that are coded one index each (paper, section 4.2 and appendix B)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from klms.codec._jit import kernel
from klms.codec.checks import frozen, integer

MAX_BLOCK_SIZE = 1 << 16
MAX_COORDINATES = (1 << 32) - 1


class Blocks:
    """A partition of `[0, d)` into half-open ranges `[bounds[m], bounds[m+1])`, each of 1 to 65536 coordinates."""

    def __init__(self, bounds: npt.ArrayLike) -> None:
        array = np.array(bounds)
        if array.ndim != 1 or array.size < 2 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError("bounds must be a list of at least two integers, 0 first and d last")
        array = array.astype(np.int64)
        sizes = np.diff(array)
        if array[0] != 0 or sizes.min() < 1:
            raise ValueError("bounds must start at 0 and increase strictly")
        if array[-1] > MAX_COORDINATES:
            raise ValueError(f"bounds end at {array[-1]}; the most coordinates are {MAX_COORDINATES}")
        if sizes.max() > MAX_BLOCK_SIZE:
            raise ValueError(f"a block has {sizes.max()} coordinates; the most is {MAX_BLOCK_SIZE}")
        self.bounds: npt.NDArray[np.int64] = frozen(array)

    @classmethod
    def of_sizes(cls, sizes: npt.ArrayLike) -> "Blocks":
        """Blocks of these sizes, in order."""
        array = np.asarray(sizes)
        if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError("sizes must be a list of integers")
        return cls(np.concatenate([[0], np.cumsum(array.astype(np.int64))]))

    @property
    def d(self) -> int:
        """The number of coordinates."""
        return int(self.bounds[-1])

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The number of coordinates of each block."""
        return frozen(np.diff(self.bounds))

    def __reduce__(self) -> tuple[type["Blocks"], tuple[npt.NDArray[np.int64]]]:
        return Blocks, (self.bounds,)

    def __len__(self) -> int:
        return self.bounds.size - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and np.array_equal(self.bounds, other.bounds)

    def __hash__(self) -> int:
        return hash(self.bounds.tobytes())

    def __repr__(self) -> str:
        return f"Blocks({len(self)} blocks over {self.d} coordinates, sizes {self.sizes.min()} to {self.sizes.max()})"


def fixed_blocks(d: int, size: int) -> Blocks:
    """Blocks of `size` coordinates; the last may be smaller (Algorithm Fixed-KLMS).

    >>> fixed_blocks(10, 4).bounds.tolist()
    [0, 4, 8, 10]
    """
    d = integer("d", d, 1, MAX_COORDINATES)
    size = integer("size", size, 1, MAX_BLOCK_SIZE)
    return Blocks(np.append(np.arange(0, d, size, dtype=np.int64), d))


def adaptive_blocks(kl: npt.ArrayLike, target: float, max_size: int = 4096) -> Blocks:
    """Blocks of about `target` bits of KL each, given the KL of every coordinate (Algorithm Adaptive-KLMS).

    A block ends with the coordinate at which its running KL reaches the target, or at which it has `max_size`
    coordinates.

    >>> adaptive_blocks([1.0, 1.0, 3.0, 0.0, 0.0, 0.5], target=2.0, max_size=2).bounds.tolist()
    [0, 2, 3, 5, 6]
    """
    values = np.ascontiguousarray(kl, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("kl must be a non-empty vector, one value a coordinate")
    if not np.isfinite(values).all() or values.min() < 0:
        raise ValueError("kl must be finite and not negative")
    if not (np.isfinite(target) and target > 0):
        raise ValueError(f"target must be positive and finite, got {target}")
    return Blocks(_cut(values, float(target), integer("max_size", max_size, 1, MAX_BLOCK_SIZE)))


@kernel
def _cut(kl: npt.NDArray[np.float64], target: float, max_size: int) -> npt.NDArray[np.int64]:
    bounds = np.empty(kl.size + 1, dtype=np.int64)
    bounds[0] = 0
    count = 0
    running = 0.0
    for i in range(kl.size):
        running += kl[i]
        if running >= target or i + 1 - bounds[count] == max_size or i + 1 == kl.size:
            count += 1
            bounds[count] = i + 1
            running = 0.0
    return bounds[: count + 1].copy()


def aggregate_blocks(clients: Sequence[Blocks], by: Literal["location", "count"] = "location") -> Blocks:
    """The blocks that the server adopts after an UPDATE round.

    By `location`, the paper's Algorithm Aggregate-Block-Locations: the m-th inner boundary is the mean of the m-th
    boundaries of the clients that have one, rounded up. Where a client runs out of blocks that mean may step back, so
    the boundaries are sorted; equal ones are merged. Its weakness: once clients differ by a few blocks, their m-th
    boundaries lie in different layers, and a layer of small blocks is averaged away.

    By `count`: how many boundaries lie below a coordinate, averaged over the clients, has a boundary wherever it passes
    a whole number. So each region gets as many blocks as the clients gave it on average. (It is every C-th of all
    boundaries of C clients, from the middle of the first C on.)

    >>> a, b = Blocks([0, 4, 10]), Blocks([0, 5, 7, 10])
    >>> aggregate_blocks([a, b]).bounds.tolist(), aggregate_blocks([a, b], by="count").bounds.tolist()
    ([0, 5, 7, 10], [0, 5, 10])
    """
    if by not in ("location", "count"):
        raise ValueError(f"by must be location or count, got {by!r}")
    if not clients:
        raise ValueError("clients must hold the blocks of at least one client")
    d = clients[0].d
    if any(blocks.d != d for blocks in clients):
        raise ValueError("clients must all have blocks over the same number of coordinates")
    if by == "count":
        inner = np.sort(np.concatenate([blocks.bounds[1:-1] for blocks in clients]))
        return Blocks(np.concatenate([[0], np.unique(inner[len(clients) // 2 :: len(clients)]), [d]]))
    most = max(len(blocks) for blocks in clients) - 1
    totals = np.zeros(most, dtype=np.int64)
    counts = np.zeros(most, dtype=np.int64)
    for blocks in clients:
        inner = blocks.bounds[1:-1]
        totals[: inner.size] += inner
        counts[: inner.size] += 1
    means = -(-totals // counts)
    return Blocks(np.concatenate([[0], np.unique(means[means < d]), [d]]))


@dataclass(frozen=True)
class UpdateRule:
    """When clients cut their blocks anew: the mean block KL of a round, in bits, has left `[low, high]`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low and high must satisfy 0 <= low < high, got low={self.low}, high={self.high}")

    def triggered(self, mean_kls: Iterable[float]) -> bool:
        """Whether the next round is an UPDATE round, given the mean block KL that each client's message reported."""
        values = list(mean_kls)
        if not values or not np.isfinite(values).all():
            raise ValueError("mean_kls must hold the finite report of at least one client")
        return not self.low <= sum(values) / len(values) <= self.high
