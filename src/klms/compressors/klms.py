"""Any update at any rate, unbiased, close to what rate-distortion theory allows: the scheme to use for dense updates.

The update is cut into pieces that follow its arrays (`pieces.py`). Entries that are much larger than the others are
sent apart where that pays (`outliers.py`). Every piece of the rest is rotated, which makes its coordinates look like
draws of a normal distribution, and coded along a path through a trellis: by signs at low rates (`sign_paths.py`) and by
entropy-coded levels at higher ones (`level_paths.py`). The scale `|v|^2 / <v, Q>` of each piece `v` with code `Q` makes
the estimate unbiased over rotations, as in EDEN. With `contracting`, the scale is `<v, Q> / |Q|^2`, which has the least
error instead: it suits a sender that keeps what was lost and adds it to its next update, as the downlink does.

Rates follow the pieces' norms (`piece_rates.py`), and runs of pieces are coded in parallel (`piece_coder.py`).

The payload: log2 of the smallest and the largest size of pieces, the memories of both trellises, and flags with the
fine part of all rates (u8 each); for each piece the coarse part of its rate (u8; 0 if the piece is zero) and its scale
(u16); the outliers, if flagged; for each run of pieces the number of words of its levels (u32); the indices of all
signs, two to a byte; the words of all levels (u16). A scale is `2^((number - 2^15) / 512)`, or 0 if the number is 0.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from klms.codec import Decoded, SharedKey
from klms.compressors import level_paths, outliers, sign_paths
from klms.compressors.base import Compressor, Side, Vector, check_decoded, check_update
from klms.compressors.envelope import OVERHEAD, read_numbers, unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.piece_coder import Coded, Part, decode_run, encode_run, runs
from klms.compressors.piece_rates import FINE, MAX_RATE, MIN_RATE, SIGNS_UP_TO, allocate
from klms.compressors.pieces import LEAST_LARGEST, Pieces
from klms.compressors.rotation import LARGEST, SMALLEST
from klms.compressors.scheme import Scheme, Settings
from klms.errors import CorruptMessage, InvalidArgument
from klms.numerics.bit_packing import pack_bits, unpack_bits
from klms.numerics.jit import Float64, Int64
from klms.numerics.parallel import each

Effort = Literal["fast", "balanced", "best"]
_MEMORIES: dict[str, tuple[int, int]] = {"fast": (2, 3), "balanced": (4, 5), "best": (6, 8)}  # signs, levels

_NUMBER = 12
_HEAD = struct.Struct("<BBBB")
_PIECE = np.dtype([("rate", "u1"), ("scale", "<u2")])
_HAS_OUTLIERS = 1 << 7
_NEGLIGIBLE = 1e-60  # mean square of a piece below which it counts as zero: its scale would vanish, too
_OUTLIERS_PAY = 0.2  # bits per parameter from which `fast` looks for outliers
_CHEAP_SIGNS = 0.03  # bits per parameter up to which signs have one more bit of memory


class KLMSSettings(Settings):
    """Settings of `klms`."""

    rate: float = Field(1.0, ge=MIN_RATE, le=MAX_RATE, description="klms: bits per parameter; may be a fraction.")
    effort: Effort = Field("balanced", description="klms: time against error, with the same decoder.")


@dataclass(frozen=True)
class KLMS(Compressor):
    """`rate` bits per parameter of a model with this layout.

    >>> scheme = KLMS(Layout(("weight", "bias"), ((100, 30), (30,))), rate=2.0)
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
    contracting: bool = False
    """Whether the encoder aims at the least error instead of an unbiased estimate; the decoder is the same."""

    def __post_init__(self) -> None:
        if not MIN_RATE <= self.rate <= MAX_RATE:
            raise InvalidArgument(f"rate must be from {MIN_RATE:g} to {MAX_RATE:g} bits per parameter, got {self.rate}")
        if self.effort not in _MEMORIES:
            raise InvalidArgument(f"effort must be one of {', '.join(_MEMORIES)}; got {self.effort!r}")

    @property
    def memories(self) -> tuple[int, int]:
        """Memory of both trellises. Signs take less time at lower rates, which have fewer blocks: then more is used."""
        signs, levels = _MEMORIES[self.effort]
        return signs + (self.rate <= _CHEAP_SIGNS), levels

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces.for_rate(self.layout, self.rate, self.threads)

    def encode(self, update: Vector, side: Side, *, key: SharedKey, rng: np.random.Generator) -> bytes:
        pieces, memories = self.pieces, self.memories
        rest = pieces.gather(check_update(update, self.layout.d))
        sizes, spans = np.diff(pieces.bounds), list(runs(pieces.bounds))
        heads = OVERHEAD + _HEAD.size + _PIECE.itemsize * sizes.size + 4 * len(spans)
        heads += level_paths.STATES * len(spans) if self.rate >= SIGNS_UP_TO else 0
        budget = self.rate * self.layout.d - 8 * heads
        apart = b""
        if self.effort != "fast" or self.rate >= _OUTLIERS_PAY:
            apart = outliers.take(rest, pieces.group_bounds, pieces.sizes, budget, key, rng, self.contracting)
        pieces.rotate(rest, key)
        squares = pieces.squares(rest)
        squares[squares < _NEGLIGIBLE * sizes] = 0
        coarse, fine = allocate(squares, sizes, budget - 8 * len(apart), memories[1], self.contracting)
        factors = np.sqrt(np.divide(sizes, squares, out=np.zeros(sizes.size), where=squares > 0))
        parts = _parts(pieces, coarse, fine, factors)
        encoded = each(lambda span: encode_run(parts[span], rest, memories), spans, self.threads)
        coded = [run for run, _ in encoded]
        products, energies = np.array([pair for _, own in encoded for pair in own]).reshape(-1, 2).T
        over, under = (products, energies) if self.contracting else (squares, products)
        scales = _scale_numbers(np.divide(over, under, out=np.zeros(sizes.size), where=products > 0), rng)
        table = np.rec.fromarrays([coarse, scales], dtype=_PIECE)
        flags = fine | (_HAS_OUTLIERS if apart else 0)
        head = _HEAD.pack(_log2(pieces.smallest), _log2(pieces.largest), memories[0] << 4 | memories[1], flags)
        lengths = np.array([run.words.size for run in coded], dtype="<u4").tobytes()
        signs = np.concatenate([np.zeros(0, dtype=np.uint8), *(run.signs for run in coded)])
        packed = pack_bits(signs.astype(np.uint16), sign_paths.BITS).tobytes()
        words = b"".join(run.words.tobytes() for run in coded)
        return wrap(_NUMBER, self.layout.d, head + table.tobytes() + apart + lengths + packed + words)

    def decode(self, message: bytes, side: Side, *, key: SharedKey) -> Decoded:
        payload = unwrap(message, _NUMBER, self.layout.d)
        pieces, memories, flags = self._read_head(payload)
        spans = list(runs(pieces.bounds))
        table, rest = read_numbers(payload[_HEAD.size :], _PIECE, pieces.bounds.size - 1, "pieces")
        places, values = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        if flags & _HAS_OUTLIERS:
            places, values, end = outliers.read(rest, pieces.group_bounds, key)
            rest = rest[end:]
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
        each(lambda item: decode_run(parts[item[0]], item[1], memories, out), work, self.threads)
        pieces.rotate(out, key, backward=True)
        out[places] += values
        return check_decoded(Decoded(pieces.scatter(out)))

    def _read_head(self, payload: bytes) -> tuple[Pieces, tuple[int, int], int]:
        """Return the pieces, the memories and the flags that the message was made with."""
        if len(payload) < _HEAD.size:
            raise CorruptMessage("the header is cut off")
        smallest, largest, both, flags = _HEAD.unpack_from(payload)
        if not SMALLEST <= 1 << smallest <= 1 << largest <= LARGEST or 1 << largest < LEAST_LARGEST:
            raise CorruptMessage(f"pieces cannot have 2^{smallest} to 2^{largest} entries")
        memories = both >> 4, both & 15
        if memories[0] > sign_paths.MAX_MEMORY or memories[1] not in level_paths.MEMORIES or flags & 0x70:
            raise CorruptMessage("the trellis is not one of this format")
        return Pieces(self.layout, 1 << smallest, 1 << largest, self.threads), memories, flags


def _parts(pieces: Pieces, coarse: Int64, fine: int, factors: Float64) -> list[Part]:
    rates = np.where(coarse > 0, FINE * coarse + fine, 0)
    return list(map(Part, pieces.bounds[:-1].tolist(), pieces.bounds[1:].tolist(), rates.tolist(), factors.tolist()))


def _log2(power: int) -> int:
    return power.bit_length() - 1


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
    name="klms",
    title="Paths through a trellis after a random rotation, rates by layer, outliers apart",
    reference="klms; compare `klms bench mean`",
    settings=KLMSSettings,
    make=lambda layout, settings, threads: KLMS(layout, settings.rate, settings.effort, threads),
    operating_points=tuple(
        {"rate": rate, "effort": effort}
        for effort in ("fast", "balanced", "best")
        for rate in (0.02, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4)
    ),
    wire_number=_NUMBER,
)
