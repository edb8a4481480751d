"""Symbols of a small alphabet, range-coded with each layer's own frequencies (by the constriction library).

The section: for every layer the counts of all symbols but 0 (u32 each), then the words of the range coder.
"""

import constriction
import numpy as np

from klms.compressors.layout import Layout
from klms.errors import CorruptMessage
from klms.numerics.jit import Int64, UInt8


def write_symbols(layout: Layout, symbols: UInt8, alphabet: int) -> bytes:
    """Return the section that holds `symbols`, each below `alphabet`."""
    counts = np.stack([np.bincount(symbols[part], minlength=alphabet) for part in layout.parts])
    encoder = constriction.stream.queue.RangeEncoder()
    for part, row in zip(layout.parts, counts, strict=True):
        if row.max() < row.sum():
            encoder.encode(symbols[part].astype(np.int32), _model(row))
    words: bytes = encoder.get_compressed().astype("<u4").tobytes()
    return counts[:, 1:].astype("<u4").tobytes() + words


def read_symbols(layout: Layout, section: bytes, alphabet: int) -> UInt8:
    """Undo `write_symbols`; `section` is untrusted."""
    start = 4 * (alphabet - 1) * len(layout.parts)
    if len(section) < start or len(section) % 4:
        raise CorruptMessage("the symbols are cut off")
    others = np.frombuffer(section[:start], dtype="<u4").astype(np.int64).reshape(-1, alphabet - 1)
    zeros = np.array(layout.sizes) - others.sum(axis=1)
    if (zeros < 0).any():
        raise CorruptMessage("a layer has more symbols than entries")
    decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(section[start:], dtype="<u4").astype(np.uint32))
    symbols = np.zeros(layout.d, dtype=np.uint8)
    for part, row in zip(layout.parts, np.column_stack([zeros, others]), strict=True):
        if row.max() < row.sum():
            try:
                symbols[part] = decoder.decode(_model(row), int(row.sum()))
            except AssertionError as error:
                raise CorruptMessage("the symbols do not decode") from error
        else:
            symbols[part] = row.argmax()
        if (np.bincount(symbols[part], minlength=alphabet) != row).any():
            raise CorruptMessage("the symbols of a layer contradict its counts")
    if not decoder.maybe_exhausted():
        raise CorruptMessage("there is more in the message than its symbols")
    return symbols


def _model(counts: Int64) -> object:
    if counts.size == 2:
        return constriction.stream.model.Bernoulli(counts[1] / counts.sum(), perfect=False)
    return constriction.stream.model.Categorical(counts / counts.sum(), perfect=False)
