"""Messages of the dense scheme that no encoder would write, made with the project's own writers."""

import json
import zlib

import numpy as np

from klms import SharedKey, compression
from klms.compressors import low_rank_coder, outlier_coder
from klms.compressors import trellis as scheme
from klms.compressors.envelope import wrap
from klms.compressors.layout import Layout
from klms.compressors.low_rank_coder import Products, matrices
from klms.compressors.outlier_coder import Found
from klms.compressors.piece_coder import encode_run, runs
from klms.compressors.piece_rates import MAX_RATE
from klms.compressors.pieces import Pieces

KEY = SharedKey(seed=1, round=2, client=3)
MEMORIES = 4, 5
_STEP = 1 << 15  # number of the step 1
_ONE = 4 * 127  # bin of the threshold 1


def message(
    layout: Layout, *, rate: float = MAX_RATE, low: bytes = b"", apart: bytes = b"", rates: tuple[int, ...] = (0,)
) -> bytes:
    """Return a message with these sections, and pieces at these coarse rates, one after the other; 0 is all zeros.

    There are as many pieces as in a message at `rate` bits, by default as many as there can be.
    """
    pieces = Pieces.for_rate(layout, rate, threads=1)
    spans, count = list(runs(pieces.bounds)), pieces.bounds.size - 1
    coarse = np.resize(rates, count)
    noise = np.random.default_rng(0).standard_normal(int(pieces.bounds[-1]), dtype=np.float32)
    parts = scheme._parts(pieces, coarse, 0, np.ones(count))
    coded = [encode_run(parts[span], noise, MEMORIES)[0] for span in spans]
    table = np.rec.fromarrays([coarse, np.full(count, _STEP)], dtype=scheme._PIECE)
    flags = (scheme._HAS_LOW_RANK if low else 0) | (scheme._HAS_OUTLIERS if apart else 0)
    head = scheme._HEAD.pack(
        *map(scheme._log2, (pieces.smallest, pieces.largest)), MEMORIES[0] << 4 | MEMORIES[1], flags
    )
    lengths = np.array([run.words.size for run in coded], dtype="<u4").tobytes()
    signs = np.concatenate([run.signs for run in coded]).astype(np.uint16)
    levels = scheme.pack_bits(signs, 4).tobytes() + b"".join(run.words.tobytes() for run in coded)
    return wrap(scheme._NUMBER, layout.d, head + table.tobytes() + low + apart + lengths + levels, KEY)


def outliers(layout: Layout, magnitude: int, share: float = 1.0, rate: float = MAX_RATE) -> bytes:
    """Return a section in which this share of all entries are outliers of about this many steps."""
    rng, groups = np.random.default_rng(0), []
    for size in Pieces.for_rate(layout, rate).ranges.sizes.tolist():
        places = np.arange(int(share * size))
        steps = rng.integers(magnitude // 2, magnitude + 1, places.size)
        groups.append(Found(_ONE, False, places, (rng.choice([-1, 1], places.size) * (steps + 1)).astype(np.float32)))
    total = sum(group.places.size for group in groups)
    return outlier_coder.write(groups, 1.0, np.zeros(total, dtype=np.float32))[0]


def products(layout: Layout, size: int) -> bytes:
    """Return a section in which every matrix has as many products as it may, of numbers of about this size."""
    rng, chosen = np.random.default_rng(0), []
    for matrix in matrices(layout):
        columns, rows = (
            rng.choice([-1, 1], (matrix.most_products, n))
            * rng.integers(size // 2, size + 1, (matrix.most_products, n))
            for n in (matrix.rows, matrix.columns)
        )
        columns[:, 0] = 1  # a column of zeros would have no product
        chosen.append(Products(_STEP, columns, rows))
    return low_rank_coder.write(chosen)


def container(layout: Layout, inner: bytes, kind: str = "<f4") -> bytes:
    """Return a message of `klms.compress` for arrays of one type, with this inner message."""
    parts = {"shapes": layout.shapes, "types": [kind] * len(layout.names), "names": layout.names}
    text = zlib.compress(json.dumps(parts, separators=(",", ":")).encode(), 9)
    head = compression._HEAD.pack(compression.MAGIC, compression.VERSION, compression._tag(KEY), len(text))
    return head + text + inner


def many(count: int, shape: tuple[int, ...]) -> Layout:
    """Return a layout of so many arrays of one shape."""
    return Layout(tuple(map(str, range(count))), (shape,) * count)
