"""Entropy coding of block sizes: constriction's range coder with an adaptive model.

All sizes but the last, which follows from `d`, are coded in small batches. The model of a batch is a mixture of
histograms of the preceding sizes, which both sides know: a histogram of all sizes and one of the latest sizes (because
layers differ), each unsmoothed and smoothed over neighbours at three widths (because similar sizes are similarly
likely), plus a prior that falls as 1/size. The shares of the mixture move towards the histograms that predicted best.

The model uses only integers, so that both sides build the same model on any machine.
"""

import constriction
import numpy as np

from klms.codec.blocks import MAX_BLOCK_SIZE
from klms.errors import CorruptMessage
from klms.numerics.jit import Float64, Int64, kernel

_WIDTHS = np.array([0, 1, 5, 25])
_RECENT = 64
_EXPERTS = 1 + 2 * len(_WIDTHS)
_UNIT = 1 << 20  # total weight of each histogram
_SIZE_SHARE = 1 << 14  # amount that one size adds to the shares of the mixture
_FIRST_SHARE = 1 << 11


class _Model:
    """The mixture and the sizes that it has learned from. Symbols are sizes minus 1."""

    def __init__(self, alphabet: int) -> None:
        self.seen = 0
        self._latest = np.empty(0, dtype=np.int64)
        self._counts = np.zeros(alphabet, dtype=np.int64)
        self._shares = np.full(_EXPERTS, _FIRST_SHARE, dtype=np.int64)
        self._shares[1] = 16 * _SIZE_SHARE
        self._experts = np.empty((_EXPERTS, alphabet))  # integers below 2^21
        prior = _UNIT // np.arange(1, alphabet + 1)
        self._experts[:] = prior * _UNIT // prior.sum()
        self._weights = np.empty(alphabet)

    def batch(self) -> int:
        return max(1, min(self.seen // 4, max(16, self.seen // 32)))  # few at first, while the model changes fast

    def distribution(self) -> constriction.stream.model.Categorical:
        _mix(self._shares, self._experts, self._weights)
        return constriction.stream.model.Categorical(self._weights, lazy=False, perfect=False)

    def learn(self, symbols: Int64) -> None:
        _move_shares(self._experts, self._shares, symbols)
        alphabet = self._counts.size
        self._counts += np.bincount(symbols, minlength=alphabet)
        self._latest = np.concatenate([self._latest, symbols])[-_RECENT:]
        self.seen += symbols.size
        latest = np.bincount(self._latest, minlength=alphabet)
        _smooth(self._counts, _WIDTHS, self._experts[1 : 1 + len(_WIDTHS)])
        _smooth(latest, _WIDTHS, self._experts[1 + len(_WIDTHS) :])


@kernel
def _mix(shares: Int64, experts: Float64, out: Float64) -> None:
    """Write the weights of all symbols to `out`; they are integers below 2^53."""
    for v in range(out.size):
        out[v] = 1.0
    for e in range(shares.size):
        share, expert = np.float64(shares[e]), experts[e]
        for v in range(out.size):
            out[v] += share * expert[v]


@kernel
def _move_shares(experts: Float64, shares: Int64, symbols: Int64) -> None:
    forgotten = min(symbols.size, 256)
    before = shares.copy()
    for e in range(shares.size):
        shares[e] -= (shares[e] * forgotten) >> 9
    for v in symbols:
        total = 0
        for e in range(shares.size):
            total += before[e] * int(experts[e, v])
        total = max(total >> 14, 1)
        for e in range(shares.size):
            shares[e] += before[e] * int(experts[e, v]) // total


@kernel
def _smooth(counts: Int64, widths: Int64, out: Float64) -> None:
    """Write to each row `w` the counts, summed twice over `2 widths[w] + 1` neighbours and scaled to sum to `_UNIT`.

    An untrusted message determines how often this runs, so it must be fast: it divides in floating point, and rounding
    down these quotients gives the exact integers as long as the numbers are below 2^52.
    """
    once = np.empty(counts.size, dtype=np.int64)
    twice = counts.copy()
    for row in range(widths.size):
        if widths[row] > 0:
            _box(counts, widths[row], once)
            _box(once, widths[row], twice)
        scaled = out[row]
        whole = np.float64(twice.sum())
        for v in range(counts.size):
            scaled[v] = int(np.float64(twice[v]) * _UNIT / whole)


@kernel
def _box(values: Int64, width: int, out: Int64) -> None:
    n = values.size
    running = values[:width].sum()
    for v in range(n):
        if v + width < n:
            running += values[v + width]
        if v - width - 1 >= 0:
            running -= values[v - width - 1]
        out[v] = running


def pack_sizes(sizes: Int64) -> bytes:
    """Encode the block sizes of a message."""
    symbols = sizes[:-1] - 1
    if symbols.size == 0:
        return b""
    largest = int(symbols.max())
    model = _Model(max(largest + 1, 2))
    encoder = constriction.stream.queue.RangeEncoder()
    while model.seen < symbols.size:
        part = symbols[model.seen : model.seen + model.batch()]
        encoder.encode(part.astype(np.int32), model.distribution())
        model.learn(part)
    coded: bytes = encoder.get_compressed().astype("<u4").tobytes()
    return largest.to_bytes(2, "little") + coded


def unpack_sizes(section: bytes, count: int, d: int, max_size: int = MAX_BLOCK_SIZE) -> Int64:
    """Decode the sizes of `count` blocks over `d` coordinates, none above `max_size`; `section` is not trusted.

    `count`, `d` and `max_size` bound the work: a section that claims more is refused before any work is done.
    """
    if count == 1:
        if section:
            raise CorruptMessage("the map of a single block has bytes where none are needed")
        sizes = np.array([d], dtype=np.int64)
    else:
        if len(section) < 2 or len(section) % 4 != 2:
            raise CorruptMessage("the block sizes are truncated")
        largest = int.from_bytes(section[:2], "little")
        if largest > d - count:  # the other blocks have at least one coordinate; d bounds the size of the model
            raise CorruptMessage(f"a block of {largest + 1} among {count} does not fit into {d} coordinates")
        if largest >= max_size:
            raise CorruptMessage(f"a block has {largest + 1} coordinates; the maximum is {max_size}")
        symbols = np.empty(count - 1, dtype=np.int64)
        total = 0
        model = _Model(max(largest + 1, 2))
        decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(section[2:], dtype="<u4").astype(np.uint32))
        while model.seen < symbols.size:
            start = model.seen
            end = min(start + model.batch(), symbols.size)
            try:
                symbols[start:end] = decoder.decode(model.distribution(), end - start)
            except AssertionError as error:
                raise CorruptMessage("the block sizes do not decode") from error
            total += int(symbols[start:end].sum()) + end - start
            if total >= d:
                raise CorruptMessage(f"the block sizes exceed {d} coordinates")
            model.learn(symbols[start:end])
        if symbols.max() != largest:
            raise CorruptMessage("no block has the size that was declared the largest")
        if not decoder.maybe_exhausted():
            raise CorruptMessage("there are bytes after the block sizes")
        sizes = np.append(symbols + 1, d - total)
    if not 1 <= sizes[-1] <= max_size:
        raise CorruptMessage(f"the block sizes do not add up to {d}, or the last is above {max_size}")
    return sizes
