"""Messages of the dense scheme that no encoder would write, made with the project's own writers."""

from dataclasses import replace

import numpy as np

import klms
from klms import SharedKey
from klms.compressors.envelope import wrap
from klms.compressors.layout import Layout
from klms.compressors.trellis import MAX_RATE, SCHEME
from klms.compressors.trellis.low_rank_coder import Products, matrices, write_products
from klms.compressors.trellis.outlier_coder import RegionOutliers, write_outliers
from klms.compressors.trellis.paths import Paths, encode_run, write_content
from klms.compressors.trellis.payload import Memories, Payload
from klms.compressors.trellis.pieces import Pieces
from klms.compressors.trellis.rates import PieceRates
from klms.container import describe
from klms.frame import Frame, Kind

KEY = SharedKey(seed=1, round=2, client=3)
MEMORIES = Memories(4, 5)
_STEP = 1 << 15  # number of the step 1
_ONE = 4 * 127  # bin of the threshold 1


def message(
    layout: Layout,
    *,
    rate: float = MAX_RATE,
    low_rank: bytes = b"",
    outliers: bytes = b"",
    rates: tuple[int, ...] = (0,),
) -> bytes:
    """Return a message with these contents, and pieces at these coarse rates, one after the other; 0 is all zeros.

    There are as many pieces as in a message at `rate` bits, by default as many as there can be.
    """
    pieces = Pieces.for_rate(layout, rate, threads=1)
    stage, count = Paths(pieces, MEMORIES), pieces.sizes.size
    chosen = PieceRates(np.resize(rates, count), 0)
    noise = np.random.default_rng(0).standard_normal(pieces.padded, dtype=np.float32)
    described = stage.described(chosen, np.ones(count))
    runs = [encode_run(described[run], noise, MEMORIES)[0] for run in stage.runs]
    paths = write_content(chosen, np.full(count, _STEP), runs)
    payload = Payload(pieces, MEMORIES, low_rank, outliers, paths).to_bytes()
    return wrap(SCHEME.wire_number, layout.d, payload, KEY)


def outliers(layout: Layout, magnitude: int, share: float = 1.0, rate: float = MAX_RATE) -> bytes:
    """Return a content in which this share of all entries are outliers of about this many steps."""
    rng, regions = np.random.default_rng(0), []
    for size in Pieces.for_rate(layout, rate).regions.sizes.tolist():
        places = np.arange(int(share * size))
        steps = rng.integers(magnitude // 2, magnitude + 1, places.size)
        values = (rng.choice([-1, 1], places.size) * (steps + 1)).astype(np.float32)
        regions.append(RegionOutliers(_ONE, False, places, values))
    total = sum(region.places.size for region in regions)
    return write_outliers(regions, 1.0, np.zeros(total, dtype=np.float32))[0]


def products(layout: Layout, size: int) -> bytes:
    """Return a content in which every matrix has as many products as it may, of numbers of about this size."""
    rng, chosen = np.random.default_rng(0), []
    for matrix in matrices(Pieces.for_rate(layout, MAX_RATE)):
        columns, rows = (
            rng.choice([-1, 1], (matrix.most_products, n))
            * rng.integers(size // 2, size + 1, (matrix.most_products, n))
            for n in (matrix.rows, matrix.columns)
        )
        columns[:, 0] = 1  # a column of zeros would have no product
        chosen.append(Products(_STEP, columns, rows))
    return write_products(chosen)


def container(layout: Layout, inner: bytes, kind: str = "<f4") -> bytes:
    """Return a message of `klms.compress` for arrays of one type, with this inner message."""
    nothing = np.zeros((), dtype=kind)
    arrays = {name: np.broadcast_to(nothing, shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    honest = Frame.from_bytes(klms.compress({"a": nothing}, key=KEY), Kind.UPDATE)
    return replace(honest, body=describe(arrays) + inner).to_bytes()


def many(count: int, shape: tuple[int, ...]) -> Layout:
    """Return a layout of so many arrays of one shape."""
    return Layout(tuple(map(str, range(count))), (shape,) * count)
