"""The codec: `(q, p, blocks, key) -> bytes -> sample`.

It depends on numpy, numba and constriction, and knows nothing about learning. Other packages import only from here, not
from its modules.
"""

from klms.codec.blocks import (
    MAX_BLOCK_SIZE,
    MAX_COORDINATES,
    MAX_GROUP,
    BlockMerger,
    Blocks,
    UpdateRule,
    adaptive_blocks,
    aggregate_blocks,
    fixed_blocks,
    most_blocks,
)
from klms.codec.candidates import MAX_BITS
from klms.codec.codec import Codec, Decoded, Sample
from klms.codec.discrete import Bernoulli, Categorical, next_threshold
from klms.codec.distributions import Distribution
from klms.codec.gaussian import Gaussian
from klms.codec.message import MAX_SCALARS, Chosen, MessageInfo
from klms.codec.message import inspect as inspect  # not in __all__: `klms.inspect` reads more than the codec's messages
from klms.codec.selection import SELECTIONS, Selection, matching_beta
from klms.errors import CorruptMessage, KLMSError, SideInformationMismatch, UnsupportedMessage
from klms.numerics.philox import SharedKey

__all__ = [
    "MAX_BITS",
    "MAX_BLOCK_SIZE",
    "MAX_COORDINATES",
    "MAX_GROUP",
    "MAX_SCALARS",
    "SELECTIONS",
    "Bernoulli",
    "BlockMerger",
    "Blocks",
    "Categorical",
    "Chosen",
    "Codec",
    "CorruptMessage",
    "Decoded",
    "Distribution",
    "Gaussian",
    "KLMSError",
    "MessageInfo",
    "Sample",
    "Selection",
    "SharedKey",
    "SideInformationMismatch",
    "UnsupportedMessage",
    "UpdateRule",
    "adaptive_blocks",
    "aggregate_blocks",
    "fixed_blocks",
    "matching_beta",
    "most_blocks",
    "next_threshold",
]
