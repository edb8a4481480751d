"""The dense scheme: any update at any rate, unbiased, close to what rate-distortion theory allows.

A message goes through these files, from top to bottom; the decoder undoes the stages from bottom to top:

    scheme.py        the settings
    chunks.py        updates of any size: one message, or several at one price per bit
    message.py       one message, `Trellis.encode` and `Trellis.decode`, as a sequence of stages
    pieces.py        the update is gathered into pieces that follow its arrays
    low_rank.py      stage 1: products of a column and a row, where a matrix is nearly of low rank
    outliers.py      stage 2: entries that are much larger than the others
    paths.py         stage 3: every piece of the remaining vector, rotated, as a path through a trellis
    payload.py       the bytes of all stages as one payload

A stage (`stage.py`) makes a plan, takes its part out of the vector and leaves the rest to the next stage. The first two
write their numbers with `adaptive_bits.py`, in the formats of `low_rank_coder.py` and `outlier_coder.py`. The third
gives every piece a rate (`rates.py`) and codes it by signs (`sign_paths.py`) or by levels (`level_paths.py`).
"""

from klms.compressors.trellis.chunks import ChunkedTrellis, Segment, fitting
from klms.compressors.trellis.message import Effort, Trellis
from klms.compressors.trellis.pieces import product
from klms.compressors.trellis.rates import MAX_RATE, MIN_RATE
from klms.compressors.trellis.scheme import SCHEME, TrellisSettings

__all__ = [
    "MAX_RATE",
    "MIN_RATE",
    "SCHEME",
    "ChunkedTrellis",
    "Effort",
    "Segment",
    "Trellis",
    "TrellisSettings",
    "fitting",
    "product",
]
