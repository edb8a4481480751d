"""What the last step of the model says of the next update, array by array: `klms.compressors.history` for Flower.

Both sides keep it from the steps of the coded downlink, so that it costs no byte. A node that was sent a snapshot holds
no last step, and sends its update unordered.
"""

from collections.abc import Mapping

import numpy as np

from klms.compressors.base import Side
from klms.compressors.history import HISTORY, history
from klms.compressors.layout import Layout
from klms.flower.model import Array

Arrays = Mapping[str, Array]


def history_of(before: Arrays, after: Arrays) -> dict[str, Array]:
    """Return the classes of a step, for every array of floating-point numbers."""
    return {
        name: history(array.astype(np.float32) - before[name].astype(np.float32))[HISTORY]
        for name, array in after.items()
        if array.dtype.kind == "f"
    }


def history_for(layout: Layout, arrays: Arrays) -> Side:
    """Return the classes of the last step as side information for this layout; nothing if some are not known."""
    if not layout.names or not arrays.keys() >= set(layout.names):
        return {}
    return {HISTORY: np.concatenate([arrays[name].ravel() for name in layout.names])}
