"""Any update at any rate, unbiased, close to what rate-distortion theory allows: the scheme to use for dense updates.

The low-rank part of its matrices is sent by its factors where that pays (`low_rank.py`). What is left is cut into
pieces that follow the arrays (`pieces.py`). Entries that are much larger than the others are sent apart, again where
that pays (`outliers.py`). Every piece of the rest is rotated, which makes its coordinates look like draws of a normal
distribution, and coded along a path through a trellis: by signs at low rates (`sign_paths.py`) and by entropy-coded
levels at higher ones (`level_paths.py`). The scale `|v|^2 / <v, Q>` of each piece `v` with code `Q` makes the estimate
unbiased over rotations, as in EDEN.

The scale `<v, Q> / |Q|^2` has the least error instead. It suits a sender whose next vector holds the error again, while
one that averages many messages wants them unbiased. Between the two is a server whose clients undo a share `echo` of
an error by their next updates. Let its vector be `v = -echo x`, where `x` is how far off its model is. With `g` times
the unbiased scale, where the scale of least error is `a` times that, `x` becomes `x + g v` and noise of energy
`g^2 |v|^2 (1 / a - 1)`: together least for `g = a / echo`, as long as that is below 1.

Rates follow the pieces' norms (`piece_rates.py`), and runs of pieces are coded in parallel (`piece_coder.py`).

The payload: log2 of the smallest and the largest size of pieces, the memories of both trellises, and flags with the
fine part of all rates (u8 each); for each piece the coarse part of its
rate (u8; 0 if the piece is zero) and its scale (u16); the low-rank part and the outliers, if flagged; for each run of
pieces the number of words of its levels (u32); the indices of all signs, two to a byte; the words of all levels (u16).
A scale is `2^((number - 2^15) / 512)`, or 0 if the number is 0.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors import level_paths, low_rank, low_rank_coder, outlier_coder, outliers, sign_paths
from klms.compressors.base import Compressor, Side, Vector, check_decoded, check_update
from klms.compressors.envelope import OVERHEAD, read_numbers, read_section, unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.piece_coder import Coded, Part, decode_run, encode_run, runs
from klms.compressors.piece_rates import FINE, MAX_RATE, MIN_RATE, SIGNS_UP_TO, allocate
from klms.compressors.pieces import LEAST_LARGEST, Pieces
from klms.compressors.rotation import LARGEST, SMALLEST
from klms.compressors.scheme import Scheme, Settings
from klms.errors import CorruptMessage, InvalidArgument
from klms.numerics.bit_packing import pack_bits, unpack_bits
from klms.numerics.jit import Float64, Int64
from klms.numerics.parallel import Progress, each

Effort = Literal["fast", "balanced", "best"]
_MEMORIES: dict[str, tuple[int, int]] = {"fast": (2, 3), "balanced": (4, 5), "best": (6, 8)}  # signs, levels

_NUMBER = 12
_HEAD = struct.Struct("<BBBB")
_PIECE = np.dtype([("rate", "u1"), ("scale", "<u2")])
_HAS_OUTLIERS, _HAS_LOW_RANK = 1 << 7, 1 << 6
_NEGLIGIBLE = 1e-60  # mean square of a piece below which it counts as zero: its scale would vanish, too
_OUTLIERS_PAY = 0.2  # bits per parameter from which `fast` looks for outliers
_MOSTLY = 0.5  # echo from which what is left out today is still there to be sent tomorrow
_SPARE_RATE = 1.25  # longest message over its rate: 0.99 in 1,800 honest ones, heavy tails and constants among them
_CHEAP_SIGNS = 0.03  # bits per parameter up to which signs have one more bit of memory


class TrellisSettings(Settings):
    """Settings of `trellis`."""

    rate: float = Field(1.0, ge=MIN_RATE, le=MAX_RATE, description="trellis: bits per parameter; may be a fraction.")
    effort: Effort = Field("balanced", description="trellis: time against error, with the same decoder.")


@dataclass(frozen=True)
class Trellis(Compressor):
    """`rate` bits per parameter of a model with this layout.

    >>> scheme = Trellis(Layout(("weight", "bias"), ((100, 30), (30,))), rate=2.0)
    >>> update = np.random.default_rng(0).standard_normal(3030, dtype=np.float32)
    >>> message = scheme.encode(update, {}, key=SharedKey(1, 2, 3), rng=np.random.default_rng(1))
    >>> decoded = scheme.decode(message, {}, key=SharedKey(1, 2, 3)).vector
    >>> len(message) < 800, bool(np.sum((decoded - update) ** 2) < 0.15 * np.sum(update**2))
    (True, True)
    """

    layout: Layout
    rate: float = 1.0
    effort: Effort = "balanced"
    threads: int | None = None
    echo: float = 0.0
    """Share of this message's error that the next vector is expected to hold: with 0 the estimate is unbiased, with 1
    it has the least error, and else it lies between. The decoder is the same."""
    agreed: bool = True
    """Whether the sender is bound to the rate: a message that is much longer, or has smaller pieces, is refused."""
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not MIN_RATE <= self.rate <= MAX_RATE:
            raise InvalidArgument(f"rate must be from {MIN_RATE:g} to {MAX_RATE:g} bits per parameter, got {self.rate}")
        if not 0 <= self.echo <= 1:
            raise InvalidArgument(f"echo must be from 0 to 1, got {self.echo}")
        if self.effort not in _MEMORIES:
            raise InvalidArgument(f"effort must be one of {', '.join(_MEMORIES)}; got {self.effort!r}")

    @property
    def contracting(self) -> bool:
        """Whether rates are for the least error, by which pieces of little energy get no bits at all."""
        return self.echo > _MOSTLY

    @property
    def memories(self) -> tuple[int, int]:
        """Memory of both trellises. Signs take less time at lower rates, which have fewer blocks: then more is used."""
        signs, levels = _MEMORIES[self.effort]
        return signs + (self.rate <= _CHEAP_SIGNS), levels

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces.for_rate(self.layout, self.rate, self.threads)

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        update, memories = check_update(update, self.layout.d, self.rate), self.memories
        low = b""
        if self.effort != "fast":
            low, update = low_rank.take(update, self.layout, self._budget, self._price, self.threads)
        pieces, budget = self.pieces, self._budget - 8 * len(low)
        rest, plan = pieces.gather(update), outliers.nothing(pieces.ranges)
        if self.effort != "fast" or self.rate >= _OUTLIERS_PAY:
            plan = outliers.plan(rest, pieces.ranges, budget, rng, self.contracting)
        sizes, spans = np.diff(pieces.bounds), list(runs(pieces.bounds))
        apart = outliers.take(rest, pieces.ranges, plan, key, rng)
        pieces.rotate(rest, key)
        squares = pieces.squares(rest)
        squares[squares < _NEGLIGIBLE * sizes] = 0
        coarse, fine = allocate(squares, sizes, budget - 8 * len(apart), memories[1], self.contracting)
        factors = np.sqrt(np.divide(sizes, squares, out=np.zeros(sizes.size), where=squares > 0))
        parts = _parts(pieces, coarse, fine, factors)
        encoded = each(lambda span: encode_run(parts[span], rest, memories), spans, self.threads, self.progress)
        coded = [run for run, _ in encoded]
        products, energies = np.array([pair for _, own in encoded for pair in own]).reshape(-1, 2).T
        scales = _scale_numbers(_best_scales(squares, products, energies, self.echo), rng)
        table = np.rec.fromarrays([coarse, scales], dtype=_PIECE)
        flags = fine | (_HAS_OUTLIERS if apart else 0) | (_HAS_LOW_RANK if low else 0)
        head = _HEAD.pack(_log2(pieces.smallest), _log2(pieces.largest), memories[0] << 4 | memories[1], flags)
        lengths = np.array([run.words.size for run in coded], dtype="<u4").tobytes()
        signs = np.concatenate([np.zeros(0, dtype=np.uint8), *(run.signs for run in coded)])
        packed = pack_bits(signs.astype(np.uint16), sign_paths.BITS).tobytes()
        words = b"".join(run.words.tobytes() for run in coded)
        body = head + table.tobytes() + low + apart + lengths + packed + words
        return wrap(_NUMBER, self.layout.d, body, key)

    def _price(self, vector: Vector, bits: float) -> low_rank.Price:
        """Return what a bit costs when the vector is coded with so many, and what a unit of squared norm does."""
        pieces = self.pieces
        theta, error = outliers.price(pieces.gather(vector), pieces.ranges, bits, self.contracting)
        squares = [float(np.mean(np.square(matrix.of(vector)))) for matrix in low_rank_coder.matrices(self.layout)]
        return low_rank.Price(theta, error, [outliers.error_of_rest(s / theta, self.contracting) for s in squares])

    @property
    def _budget(self) -> float:
        """Bits besides the heads."""
        pieces = self.pieces
        count = len(list(runs(pieces.bounds)))
        heads = OVERHEAD + _HEAD.size + _PIECE.itemsize * (pieces.bounds.size - 1) + 4 * count
        heads += level_paths.STATES * count if self.rate >= SIGNS_UP_TO else 0
        return self.rate * self.layout.d - 8 * heads

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        most = _most_bytes(self.rate, self.pieces) if self.agreed else None
        payload = unwrap(message, _NUMBER, self.layout.d, key, most)
        pieces, memories, flags, rest = self._read_head(payload)
        if len(message) > _most_bytes(MAX_RATE, pieces):
            raise CorruptMessage(f"{len(message)} bytes are too many for a message, at any rate")
        spans = list(runs(pieces.bounds))
        table, rest = read_numbers(rest, _PIECE, pieces.bounds.size - 1, "pieces")
        low = apart = b""
        if flags & _HAS_LOW_RANK:
            low, rest = read_section(rest, "products")
        if flags & _HAS_OUTLIERS:
            apart, rest = read_section(rest, "outliers")
        parts = _parts(pieces, table["rate"].astype(np.int64), flags % FINE, _scales(table["scale"]))
        lengths, rest = read_numbers(rest, np.dtype("<u4"), len(spans), "lengths")
        blocks = [sum(part.sign_blocks for part in parts[span]) for span in spans]
        packed, rest = read_numbers(rest, np.dtype("u1"), (sum(blocks) + 1) // 2, "pairs of signs")
        words, rest = read_numbers(rest, np.dtype("<u2"), int(lengths.sum()), "words")
        if rest:
            raise CorruptMessage("there is more in the message than its pieces")
        signs = unpack_bits(packed, sum(blocks), sign_paths.BITS).astype(np.uint8)
        coded = map(Coded, np.split(signs, np.cumsum(blocks)), np.split(words, np.cumsum(lengths)))
        out = np.zeros(int(pieces.bounds[-1]), dtype=np.float32)
        work = list(zip(spans, coded, strict=False))  # nothing is left after the last run
        each(lambda item: decode_run(parts[item[0]], item[1], memories, out), work, self.threads, self.progress)
        pieces.rotate(out, key, backward=True)
        if flags & _HAS_OUTLIERS:
            outlier_coder.add(apart, pieces.ranges, key, out)
        vector = pieces.scatter(out)
        if flags & _HAS_LOW_RANK:
            low_rank_coder.add(low, self.layout, vector)
        return check_decoded(Decoded(vector))

    def _read_head(self, payload: bytes) -> tuple[Pieces, tuple[int, int], int, bytes]:
        """Return the pieces, the memories and the flags that the message was made with, and what follows."""
        if len(payload) < _HEAD.size:
            raise CorruptMessage("the header is cut off")
        smallest, largest, both, flags = _HEAD.unpack_from(payload)
        if not SMALLEST <= 1 << smallest <= 1 << largest <= LARGEST or 1 << largest < LEAST_LARGEST:
            raise CorruptMessage(f"pieces cannot have 2^{smallest} to 2^{largest} entries")
        if self.agreed and 1 << smallest < self.pieces.smallest:
            raise CorruptMessage(f"pieces of 2^{smallest} entries are too small for a message at {self.rate:g} bits")
        memories = both >> 4, both & 15
        if memories[0] > sign_paths.MAX_MEMORY or memories[1] not in level_paths.MEMORIES or flags & 0x30:
            raise CorruptMessage("the trellis is not one of this format")
        pieces = Pieces(self.layout, 1 << smallest, 1 << largest, self.threads)
        return pieces, memories, flags, payload[_HEAD.size :]


def _parts(pieces: Pieces, coarse: Int64, fine: int, factors: Float64) -> list[Part]:
    rates = np.where(coarse > 0, FINE * coarse + fine, 0)
    return list(map(Part, pieces.bounds[:-1].tolist(), pieces.bounds[1:].tolist(), rates.tolist(), factors.tolist()))


def _most_bytes(rate: float, pieces: Pieces) -> int:
    """Return the bytes of a message at `_SPARE_RATE` times the rate, with all its heads and the least a piece takes.

    What outliers and products take to decode grows with their bytes, so that this bounds the time as well.
    """
    heads = 64 * pieces.bounds.size + 16 * len(pieces.groups) + 256
    return heads + int(_SPARE_RATE * rate * int(pieces.bounds[-1]) / 8)


def _log2(power: int) -> int:
    return power.bit_length() - 1


def _best_scales(squares: Float64, products: Float64, energies: Float64, echo: float) -> Float64:
    """Return the scales of all pieces, from `|v|^2`, `<v, Q>` and `|Q|^2`; 0 for those that are not coded."""
    scales, coded = np.zeros(squares.size), products > 0
    scales[coded] = squares[coded] / products[coded]
    if echo > 0:
        scales[coded] = np.minimum(scales[coded], products[coded] / energies[coded] / echo)
    return scales


def _scale_numbers(scales: Float64, rng: np.random.Generator) -> Int64:
    """Return the numbers of scales, rounded up or down at random so that their mean is right.

    Scales below the smallest that can be sent are rounded to it or to zero.
    """
    exact = 512 * np.log2(scales, out=np.full(scales.size, -64.0), where=scales > 0) + (1 << 15)
    lower = np.clip(np.floor(exact), 0, (1 << 16) - 2)
    below, above = _scales(lower), _scales(lower + 1)
    rounded: Int64 = lower.astype(np.int64) + (rng.random(scales.size) * (above - below) < scales - below)
    return rounded


def _scales(numbers: npt.NDArray[Any]) -> Float64:
    return np.where(numbers > 0, np.exp2((numbers.astype(np.float64) - (1 << 15)) / 512), 0.0)


SCHEME = Scheme(
    name="trellis",
    title="Paths through a trellis after a random rotation, rates by layer, outliers apart",
    reference="klms; compare `klms bench mean`",
    settings=TrellisSettings,
    make=lambda layout, settings, threads: Trellis(layout, settings.rate, settings.effort, threads),
    operating_points=tuple(
        {"rate": rate, "effort": effort}
        for effort in ("fast", "balanced", "best")
        for rate in (0.02, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4)
    ),
    wire_number=_NUMBER,
)
