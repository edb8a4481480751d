"""SZ3, the error-bounded compressor for scientific data, through its Python binding."""

from functools import partial

import numpy as np
from peer import Arrays, measure
from pysz import sz, szConfig, szErrorBoundMode


def encode(bound: float, update: Arrays) -> tuple[dict, int]:
    """Code every array with an absolute error bound of `bound` times the root mean square of its entries."""
    messages = {}
    for name, array in update.items():
        size = float(np.sqrt(np.mean(np.square(array))))
        config = szConfig()
        config.errorBoundMode = szErrorBoundMode.ABS
        config.absErrorBound = bound * size or 1e-30
        messages[name] = (sz.compress(np.ascontiguousarray(array.reshape(-1)), config)[0], array.shape)
    return messages, sum(len(message) for message, _ in messages.values())


def decode(messages: dict) -> Arrays:
    """Return the decompressed arrays."""
    return {
        name: sz.decompress(message, np.float32, (int(np.prod(shape)),))[0].reshape(shape)
        for name, (message, shape) in messages.items()
    }


def main() -> None:
    """Print a row for every error bound."""
    for bound in (0.05, 0.5, 2.0):
        measure("SZ3", f"bound {bound:g} of the root mean square", partial(encode, bound), decode)


main()
