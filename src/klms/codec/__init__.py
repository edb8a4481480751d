"""The codec: `(q, p, blocks, key) -> bytes -> sample`. numpy, numba and constriction; it knows nothing of learning."""

from klms.codec.blocks import (
    MAX_BLOCK_SIZE,
    Blocks,
    UpdateRule,
    adaptive_blocks,
    aggregate_blocks,
    fixed_blocks,
)
from klms.codec.candidates import MAX_BITS
from klms.codec.codec import Codec, Sample, Selection
from klms.codec.distributions import Bernoulli, Categorical, Distribution, Gaussian
from klms.codec.errors import CorruptMessage, KLMSError, SideInformationMismatch, UnsupportedMessage
from klms.codec.message import MessageInfo, carried_blocks, inspect
from klms.codec.philox import SharedKey

__all__ = [
    "MAX_BITS",
    "MAX_BLOCK_SIZE",
    "Bernoulli",
    "Blocks",
    "Categorical",
    "Codec",
    "CorruptMessage",
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
    "carried_blocks",
    "fixed_blocks",
    "inspect",
]
