"""Stage 3: every piece of the remaining vector, as a path through a trellis.

The pieces are rotated, so that their coordinates look like draws from a normal distribution. A piece is coded by signs
at low rates (`sign_paths.py`) and by entropy-coded levels at higher ones (`level_paths.py`). The scale `|v|^2 / <v, Q>`
of a piece `v` with code `Q` makes the estimate unbiased over rotations, as in EDEN.

The scale `<v, Q> / |Q|^2` minimises the error instead. It suits a sender whose next vector contains the error again,
whereas a receiver that averages many messages needs unbiased estimates. Between these two cases is a server whose
clients undo a share `echo` of an error with their next updates. Let `x` be the error of the server's model, and
`v = -echo x` the vector that the server sends. Let the scale that minimises the error be `a` times the unbiased scale.
With `g` times the unbiased scale, `x` becomes `x + g v` plus noise of energy `g^2 |v|^2 (1 / a - 1)`. The total energy
is smallest for `g = a / echo`, as long as this is below 1.

Consecutive pieces form runs; each run is coded by one thread. The content: the fine part of all rates (u8); for each
piece the coarse part of its rate (u8; 0 if the piece is zero) and its scale (u16); for each run the number of words of
its levels (u32); the indices of all signs, two per byte; the words of all levels (u16). A scale is
`2^((number - 2^15) / 512)`, or 0 if the number is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.compressors.envelope import read_numbers
from klms.compressors.trellis import level_paths, sign_paths
from klms.compressors.trellis.payload import ENTRY, Memories
from klms.compressors.trellis.pieces import Pieces, product
from klms.compressors.trellis.rates import FINE, LEVELS, SIGNS_UP_TO, PieceRates, allocate, sign_rates
from klms.compressors.trellis.stage import Stage
from klms.errors import CorruptMessage
from klms.numerics.bit_packing import pack_bits, unpack_bits
from klms.numerics.jit import Float32, Float64, Int64, UInt8, UInt16
from klms.numerics.parallel import Progress, each

_RUN = 1 << 18  # minimum number of coordinates of a run
_NEGLIGIBLE = 1e-60  # mean square of a piece below which it counts as zero: its scale would underflow
_LENGTH = np.dtype("<u4")


class PathPlan(NamedTuple):
    """The squared norms of all pieces, and their rates."""

    squares: Float64
    rates: PieceRates


class Piece(NamedTuple):
    """One piece: its place, its rate, and the factor by which its coordinates are multiplied."""

    start: int
    end: int
    rate: int
    factor: float

    @property
    def by_levels(self) -> bool:
        return self.rate >= LEVELS

    @property
    def sign_blocks(self) -> int:
        """Number of blocks of signs, equally many in each lane."""
        if self.by_levels or self.rate < FINE:
            return 0
        bits = (self.end - self.start) * float(sign_rates()[self.rate])
        return sign_paths.LANES * max(1, int(bits / (sign_paths.BITS * sign_paths.LANES)))

    def of(self, vector: Float32) -> Float32:
        return vector[self.start : self.end]


class CodedRun(NamedTuple):
    """A run as numbers: indices of all signs, and words of all levels."""

    signs: UInt8
    words: UInt16


@dataclass(frozen=True)
class Paths(Stage[PathPlan]):
    """The stage for rotated vectors with these pieces."""

    pieces: Pieces
    memories: Memories
    echo: float = 0.0
    contracting: bool = False
    progress: Progress | None = None

    def head_bytes(self, rate: float) -> int:
        """Return the bytes of the table and of all runs at this average rate, not counting signs and levels."""
        per_run = _LENGTH.itemsize
        if rate >= SIGNS_UP_TO:
            per_run += level_paths.STATES
        return ENTRY.itemsize * self.pieces.sizes.size + per_run * len(self.runs)

    @cached_property
    def runs(self) -> list[slice]:
        """The pieces of each run."""
        found: list[slice] = []
        first = start = 0
        for n, end in enumerate(self.pieces.bounds[1:].tolist(), 1):
            if end - start >= _RUN or n == self.pieces.sizes.size:
                found.append(slice(first, n))
                first, start = n, end
        return found

    def plan(self, rest: Float32, bits: float, rng: np.random.Generator) -> PathPlan:
        sizes = self.pieces.sizes
        squares = self.pieces.squares(rest)
        squares[squares < _NEGLIGIBLE * sizes] = 0
        return PathPlan(squares, allocate(squares, sizes, bits, self.memories.levels, self.contracting))

    def encode(self, plan: PathPlan, rest: Float32, key: SharedKey, rng: np.random.Generator) -> bytes:
        sizes = self.pieces.sizes
        factors = np.sqrt(np.divide(sizes, plan.squares, out=np.zeros(sizes.size), where=plan.squares > 0))
        pieces = self.described(plan.rates, factors)
        encoded = each(
            lambda run: encode_run(pieces[run], rest, self.memories), self.runs, self.pieces.threads, self.progress
        )
        products = np.concatenate([np.zeros((0, 2)), *(found for _, found in encoded)])
        scales = _scale_numbers(_best_scales(plan.squares, products, self.echo), rng)
        return write_content(plan.rates, scales, [run for run, _ in encoded])

    def decode(self, content: bytes, key: SharedKey, out: Float32) -> None:
        """Decode all pieces from untrusted bytes into `out`, which must be zero."""
        fine = content[0]
        table, rest = read_numbers(content[1:], ENTRY, self.pieces.sizes.size, "pieces")
        rates = PieceRates(table["rate"].astype(np.int64), fine)
        pieces = self.described(rates, _scales(table["scale"]))
        coded = _read_runs(rest, [sum(piece.sign_blocks for piece in pieces[run]) for run in self.runs])
        work = list(zip(self.runs, coded, strict=True))
        each(
            lambda item: decode_run(pieces[item[0]], item[1], self.memories, out),
            work,
            self.pieces.threads,
            self.progress,
        )

    def described(self, rates: PieceRates, factors: Float64) -> list[Piece]:
        """Return all pieces as objects, given their rates and the factors on their coordinates."""
        bounds = self.pieces.bounds.tolist()
        return list(map(Piece, bounds[:-1], bounds[1:], rates.numbers.tolist(), factors.tolist()))


def write_content(rates: PieceRates, scales: Int64, runs: Sequence[CodedRun]) -> bytes:
    """Return the rates, the scales (as integers) and the coded runs as bytes."""
    table = np.rec.fromarrays([rates.coarse, scales], dtype=ENTRY)
    lengths = np.array([run.words.size for run in runs], dtype=_LENGTH)
    signs = np.concatenate([np.zeros(0, dtype=np.uint8), *(run.signs for run in runs)])
    packed = pack_bits(signs.astype(np.uint16), sign_paths.BITS)
    words = (run.words.tobytes() for run in runs)
    return b"".join([bytes([rates.fine]), table.tobytes(), lengths.tobytes(), packed.tobytes(), *words])


def _read_runs(content: bytes, sign_blocks: list[int]) -> list[CodedRun]:
    """Read the runs from the bytes after the table; `sign_blocks` says how many blocks of signs each run has."""
    lengths, rest = read_numbers(content, _LENGTH, len(sign_blocks), "lengths")
    blocks = sum(sign_blocks)
    packed, rest = read_numbers(rest, np.dtype("u1"), (blocks + 1) // 2, "pairs of signs")
    words, rest = read_numbers(rest, np.dtype("<u2"), int(lengths.sum()), "words")
    if rest:
        raise CorruptMessage("there is more in the message than its pieces")
    signs = unpack_bits(packed, blocks, sign_paths.BITS).astype(np.uint8)
    # Nothing is left after the last run.
    signs_of_runs = np.split(signs, np.cumsum(sign_blocks))[:-1]
    words_of_runs = np.split(words, np.cumsum(lengths))[:-1]
    return list(map(CodedRun, signs_of_runs, words_of_runs))


def encode_run(pieces: list[Piece], rotated: Float32, memories: Memories) -> tuple[CodedRun, Float64]:
    """Code the pieces of a run.

    Return the coded run and, for each piece, its inner product with its code, and the squared norm of its code.
    """
    products = np.zeros((len(pieces), 2))
    signs = [np.zeros(0, dtype=np.uint8)]
    for n, piece in enumerate(pieces):
        if piece.sign_blocks:
            indices = np.empty(piece.sign_blocks, dtype=np.uint8)
            code = np.empty(piece.end - piece.start, dtype=np.float32)
            sign_paths.choose_signs(piece.of(rotated), memories.signs, sign_paths.generators(), indices)
            _restore_signs(indices, memories.signs, 1.0, code)
            products[n] = product(piece.of(rotated), code), product(code, code)
            signs.append(indices)
    words = np.zeros(0, dtype=np.uint16)
    if any(piece.by_levels for piece in pieces):
        words = _encode_levels(pieces, rotated, memories.levels, products)
    return CodedRun(np.concatenate(signs), words), products


def _encode_levels(pieces: list[Piece], rotated: Float32, memory: int, products: Float64) -> UInt16:
    """Return the words of the pieces that are coded by levels.

    Set their rows of `products`: the inner product of a piece with its code, and the squared norm of the code.
    """
    coders = level_paths.new_coders(sum(piece.end - piece.start for piece in pieces if piece.by_levels))
    machine = level_paths.machine(memory)
    for n in reversed(range(len(pieces))):
        piece = pieces[n]
        if piece.by_levels:
            index = piece.rate - LEVELS
            chosen = np.empty(piece.end - piece.start, dtype=np.int16)
            code = np.empty(chosen.size, dtype=np.float32)
            unit = piece.of(rotated) * np.float32(piece.factor)
            level_paths.choose_levels(unit, level_paths.search(index), machine, chosen)
            level_paths.write_levels(chosen, level_paths.code(index), machine, coders, code)
            products[n] = product(piece.of(rotated), code), product(code, code)
    return level_paths.finished(coders)


def decode_run(pieces: list[Piece], coded: CodedRun, memories: Memories, out: Float32) -> None:
    """Set `out` to the pieces of a run; the numbers in `coded` are untrusted."""
    place = 0
    for piece in pieces:
        if piece.sign_blocks:
            indices = coded.signs[place : place + piece.sign_blocks]
            _restore_signs(indices, memories.signs, piece.factor, piece.of(out))
            place += piece.sign_blocks
    by_levels = [piece for piece in pieces if piece.by_levels]
    if not by_levels and not coded.words.size:
        return
    coders = level_paths.opened(coded.words)
    machine = level_paths.machine(memories.levels)
    for piece in by_levels:
        level_paths.read_levels(level_paths.code(piece.rate - LEVELS), machine, coders, piece.factor, piece.of(out))
    level_paths.check_end(coders)


def _restore_signs(indices: UInt8, memory: int, factor: float, out: Float32) -> None:
    sign_paths.restore_signs(indices, memory, sign_paths.generators(), sign_paths.signs(memory), factor, out)


def _best_scales(squares: Float64, products: Float64, echo: float) -> Float64:
    """Return the scales of all pieces, given `|v|^2`, `<v, Q>` and `|Q|^2`; 0 for pieces that are not coded."""
    along, energies = products.T
    scales = np.zeros(squares.size)
    coded = along > 0
    scales[coded] = squares[coded] / along[coded]
    if echo > 0:
        scales[coded] = np.minimum(scales[coded], along[coded] / energies[coded] / echo)
    return scales


def _scale_numbers(scales: Float64, rng: np.random.Generator) -> Int64:
    """Return the integers that stand for the scales (see `_scales`), rounded up or down at random without bias.

    A scale below the smallest one that can be sent is rounded at random to that smallest scale or to zero.
    """
    exact = 512 * np.log2(scales, out=np.full(scales.size, -64.0), where=scales > 0) + (1 << 15)
    lower = np.clip(np.floor(exact), 0, (1 << 16) - 2)
    below = _scales(lower)
    above = _scales(lower + 1)
    rounded: Int64 = lower.astype(np.int64) + (rng.random(scales.size) * (above - below) < scales - below)
    return rounded


def _scales(numbers: npt.NDArray[Any]) -> Float64:
    return np.where(numbers > 0, np.exp2((numbers.astype(np.float64) - (1 << 15)) / 512), 0.0)
