"""Blocks: partitions of `[0, d)` into ranges that are coded with one index each (paper, section 4.2 and appendix B)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from klms.errors import InvalidArgument
from klms.numerics.checks import check_name, frozen, integer
from klms.numerics.jit import Float64, Int64, UInt16, kernel

MAX_BLOCK_SIZE = 1 << 16
MAX_GROUP = 255
MAX_COORDINATES = (1 << 32) - 1
Merging = Literal["location", "count", "median"]
"""How the block maps of several clients are merged."""


class Blocks:
    """A partition of `[0, d)` into half-open ranges `[bounds[m], bounds[m+1])`, each of 1 to 65536 coordinates.

    Each group of `group` blocks divides a larger range evenly. A message with memory carries only the sizes of these
    ranges, which are called pieces here.
    """

    def __init__(self, bounds: npt.ArrayLike, group: int = 1) -> None:
        array = np.array(bounds)
        if array.ndim != 1 or array.size < 2 or not np.issubdtype(array.dtype, np.integer):
            raise InvalidArgument("bounds must be a list of at least two integers, from 0 to d")
        array = array.astype(np.int64)
        sizes = np.diff(array)
        if array[0] != 0 or sizes.min() < 1:
            raise InvalidArgument("bounds must start at 0 and increase strictly")
        if array[-1] > MAX_COORDINATES:
            raise InvalidArgument(f"bounds end at {array[-1]}; there can be at most {MAX_COORDINATES} coordinates")
        if sizes.max() > MAX_BLOCK_SIZE:
            raise InvalidArgument(f"a block has {sizes.max()} coordinates; the maximum is {MAX_BLOCK_SIZE}")
        self.bounds: Int64 = frozen(array)
        self.group = group
        if group != 1 and not np.array_equal(array, _divide(array[::group], group)):
            raise InvalidArgument(f"every {group} blocks must divide a piece evenly, larger blocks first")

    @classmethod
    def of_sizes(cls, sizes: npt.ArrayLike) -> "Blocks":
        return cls(np.cumsum(np.insert(sizes, 0, 0)))

    @classmethod
    def divided(cls, pieces: "Blocks", group: int) -> "Blocks":
        """Divide each piece evenly into `group` blocks.

        >>> Blocks.divided(Blocks([0, 5, 9]), 2).bounds.tolist()
        [0, 3, 5, 7, 9]
        """
        if pieces.sizes.min() < group:
            raise InvalidArgument(f"a piece of {pieces.sizes.min()} coordinates cannot be divided into {group} blocks")
        return cls(_divide(pieces.bounds, group), group)

    @property
    def d(self) -> int:
        return int(self.bounds[-1])

    @cached_property
    def sizes(self) -> Int64:
        return frozen(np.diff(self.bounds))

    @property
    def pieces(self) -> "Blocks":
        """The pieces, each of which a group of blocks divides evenly; the blocks themselves if `group` is 1."""
        return Blocks(self.bounds[:: self.group])

    def __reduce__(self) -> tuple[type["Blocks"], tuple[Int64, int]]:
        return Blocks, (self.bounds, self.group)

    def __len__(self) -> int:
        return self.bounds.size - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and np.array_equal(self.bounds, other.bounds)

    def __hash__(self) -> int:
        return hash(self.bounds.tobytes())

    def __repr__(self) -> str:
        return f"Blocks({len(self)} blocks over {self.d} coordinates, sizes {self.sizes.min()} to {self.sizes.max()})"


def fixed_blocks(d: int, size: int) -> Blocks:
    """Cut `[0, d)` into blocks of `size` coordinates; the last may be smaller (Algorithm Fixed-KLMS).

    >>> fixed_blocks(10, 4).bounds.tolist()
    [0, 4, 8, 10]
    """
    d = integer("d", d, 1, MAX_COORDINATES)
    size = integer("size", size, 1, MAX_BLOCK_SIZE)
    return Blocks(np.append(np.arange(0, d, size, dtype=np.int64), d))


def adaptive_blocks(
    kl: npt.ArrayLike | Iterator[Float64], target: float, max_size: int = 4096, group: int = 1
) -> Blocks:
    """Cut blocks of about `target` bits of KL each (Algorithm Adaptive-KLMS).

    A block ends where its running KL reaches the target or where it has `max_size` coordinates.

    Args:
        kl: KL of every coordinate in bits. For a large model, pass it in parts (`Distribution.kl_in_parts`), because
            the whole array takes twice the memory of the update.
        target: KL of a block in bits.
        max_size: Maximum number of coordinates of a block.
        group: Number of blocks that divide one piece evenly. A piece has `group` times the target KL, and a block map
            of pieces costs fewer bytes to send.

    Returns:
        The block map.

    >>> adaptive_blocks([1.0, 1.0, 3.0, 0.0, 0.0, 0.5], target=2.0, max_size=2).bounds.tolist()
    [0, 2, 3, 5, 6]
    """
    if not (np.isfinite(target) and target > 0):
        raise InvalidArgument(f"target must be positive and finite, got {target}")
    max_size = integer("max_size", max_size, 1, MAX_BLOCK_SIZE)
    group = integer("group", group, 1, MAX_GROUP)
    parts = kl if isinstance(kl, Iterator) else [np.ascontiguousarray(kl, dtype=np.float64)]
    bounds = _cut_parts(parts, float(target) * group, largest_piece(max_size, group), group)
    if bounds.size > 2 and bounds[-1] - bounds[-2] < group:  # too small to divide
        bounds = np.delete(bounds, -2)
    return Blocks.divided(Blocks(bounds), min(group, int(bounds[-1])))


def largest_piece(max_size: int, group: int) -> int:
    """Return the maximum number of coordinates of a piece that is divided into `group` blocks."""
    return max_size if group == 1 else min(max_size * group, MAX_BLOCK_SIZE - group)


def most_blocks(d: int, kl: float, target: float, max_size: int, group: int = 1) -> float:
    """Return the maximum number of blocks that `adaptive_blocks` can cut from `d` coordinates with `kl` bits of KL.

    Every piece but the last reaches its target KL or its maximum size.
    """
    return group * (math.ceil(d / largest_piece(max_size, group)) + 1) + kl / target


def _divide(bounds: Int64, group: int) -> Int64:
    """Return the bounds of `group` blocks per piece, the larger blocks of a piece first."""
    sizes = np.diff(bounds)[:, None]
    place = np.arange(group)
    starts = bounds[:-1, None] + sizes // group * place + np.minimum(place, sizes % group)
    return np.append(starts.ravel(), bounds[-1])


def _cut_parts(parts: Iterable[Float64], target: float, max_size: int, min_size: int) -> Int64:
    bounds = [np.zeros(1, dtype=np.int64)]
    start = end = 0
    running = 0.0
    for part in parts:
        if part.ndim != 1 or part.size == 0:
            raise InvalidArgument("kl must be a non-empty vector with one value per coordinate")
        if not np.isfinite(part).all() or part.min() < 0:
            raise InvalidArgument("kl must be finite and non-negative")
        found = np.empty(part.size, dtype=np.int64)
        count, start, running = _cut(part, end, start, running, target, max_size, min_size, found)
        bounds.append(found[:count].copy())
        end += part.size
    return np.concatenate(bounds if start == end else [*bounds, np.array([end])])


@kernel
def _cut(
    kl: Float64, offset: int, start: int, running: float, target: float, max_size: int, min_size: int, found: Int64
) -> tuple[int, int, float]:
    """Cut one part of the coordinates, which begins at `offset`, and write the ends of its blocks to `found`.

    The block that is still open from the previous part begins at `start` and has a KL of `running` so far. Return the
    number of blocks that ended, and the start and the KL of the block that is now open.
    """
    count = 0
    for i in range(kl.size):
        running += kl[i]
        end = offset + i + 1
        if (running >= target and end - start >= min_size) or end - start == max_size:
            found[count] = end
            count += 1
            start, running = end, 0.0
    return count, start, running


class BlockMerger:
    """Merges the clients' block maps of an UPDATE round, one by one; only `median` keeps all of them in memory.

    By `location` (Algorithm Aggregate-Block-Locations), the m-th inner boundary is the mean of the m-th boundaries of
    the clients that have at least m boundaries, rounded up; then boundaries are sorted and duplicates dropped. Once the
    clients' numbers of blocks differ, their m-th boundaries lie in different layers, and the small blocks of a layer
    are averaged away.

    By `count`, a boundary lies wherever the number of boundaries so far, averaged over the clients, passes a whole
    number: at every C-th of the ordered boundaries of all C clients. So each region keeps its average number of blocks.

    By `median`, the m-th inner boundary is the median of the m-th boundaries; a client with fewer blocks is treated as
    if its missing boundaries were at the end. A minority of the clients can neither move a boundary beyond the other
    clients' boundaries nor add blocks. All maps stay in memory, at two bytes per block and client.
    """

    def __init__(self, d: int, by: Merging = "location") -> None:
        check_name("way to merge", by, get_args(Merging))
        self.d = integer("d", d, 1, MAX_COORDINATES)
        self.by = by
        self._clients = 0
        # By location: the sum and the number of the m-th boundaries. By count: the number of boundaries per coordinate.
        self._totals = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._histogram = np.zeros(self.d if by == "count" else 0, dtype=np.int32)
        self._maps: list[UInt16] = []  # by median: the sizes of all clients' blocks, minus 1

    def add(self, blocks: Blocks) -> None:
        if blocks.d != self.d:
            raise InvalidArgument(f"the blocks cover {blocks.d} coordinates, those of the other clients {self.d}")
        self._clients += 1
        inner = blocks.bounds[1:-1]
        if self.by == "count":
            self._histogram[inner] += 1
        elif self.by == "median":
            self._maps.append((blocks.sizes - 1).astype(np.uint16))
        else:
            missing = max(0, inner.size - self._totals.size)
            self._totals = np.pad(self._totals, (0, missing))
            self._counts = np.pad(self._counts, (0, missing))
            self._totals[: inner.size] += inner
            self._counts[: inner.size] += 1

    def merged(self) -> Blocks:
        if not self._clients:
            raise InvalidArgument("there is nothing to merge: add the blocks of at least one client")
        if self.by == "location":
            means = -(-self._totals // self._counts)
            inner = np.unique(means[means < self.d])
        elif self.by == "median":
            inner = self._medians()
        else:
            places = np.flatnonzero(self._histogram)
            ends = np.cumsum(self._histogram[places], dtype=np.int64)
            ranks = np.arange(self._clients // 2, ends[-1] if ends.size else 0, self._clients)
            inner = np.unique(places[np.searchsorted(ends, ranks, side="right")])
        return Blocks(_limited(np.concatenate([[0], inner, [self.d]])))

    def _medians(self) -> Int64:
        middle = (self._clients - 1) // 2
        count = sorted(sizes.size for sizes in self._maps)[middle] - 1
        places = np.full((self._clients, count), self.d)
        for row, sizes in zip(places, self._maps, strict=True):
            kept = sizes[:-1][:count]
            row[: kept.size] = np.cumsum(kept.astype(np.int64) + 1)
        medians = np.partition(places, middle, axis=0)[middle]
        return np.unique(medians[medians < self.d])


def _limited(bounds: Int64) -> Int64:
    """Return the bounds, with additional bounds inside blocks that exceed the maximum size."""
    parts = -(-np.diff(bounds) // MAX_BLOCK_SIZE)
    further = [bounds]
    for m in np.flatnonzero(parts > 1):
        further.append(np.linspace(bounds[m], bounds[m + 1], parts[m] + 1).astype(np.int64))
    return np.unique(np.concatenate(further))


def aggregate_blocks(clients: Sequence[Blocks], by: Merging = "location") -> Blocks:
    """Merge the clients' block maps of an UPDATE round; `BlockMerger` explains the values of `by`.

    >>> a, b = Blocks([0, 4, 10]), Blocks([0, 5, 7, 10])
    >>> aggregate_blocks([a, b]).bounds.tolist(), aggregate_blocks([a, b], by="count").bounds.tolist()
    ([0, 5, 7, 10], [0, 5, 10])
    """
    if not clients:
        raise InvalidArgument("clients must hold the blocks of at least one client")
    merger = BlockMerger(clients[0].d, by)
    for blocks in clients:
        merger.add(blocks)
    return merger.merged()


@dataclass(frozen=True)
class UpdateRule:
    """Rule for new block maps: clients cut their blocks again when the mean block KL, in bits, leaves `[low, high]`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise InvalidArgument(f"low and high must satisfy 0 <= low < high, got low={self.low}, high={self.high}")

    def triggered(self, mean_kls: Iterable[float]) -> bool:
        """Return whether the next round is an UPDATE round, given the mean block KL that each client reported."""
        values = list(mean_kls)
        if not values or not np.isfinite(values).all():
            raise InvalidArgument("mean_kls must hold the finite mean block KL of at least one client")
        return not self.low <= sum(values) / len(values) <= self.high
