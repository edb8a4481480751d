"""Pieces as indices of signs and words of levels, and back. A run of pieces is what one thread codes at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from klms.compressors import level_paths, sign_paths
from klms.compressors.piece_rates import FINE, LEVELS, sign_rates
from klms.compressors.pieces import product
from klms.numerics.jit import Float32, Int64, UInt8, UInt16

_RUN = 1 << 18  # coordinates of a run, at least


class Part(NamedTuple):
    """One piece: where it is, how it is coded, and what its coordinates are multiplied by."""

    start: int
    end: int
    rate: int
    factor: float

    @property
    def by_levels(self) -> bool:
        return self.rate >= LEVELS

    @property
    def sign_blocks(self) -> int:
        """Number of blocks of signs, equally many in each lane."""
        if self.by_levels or self.rate < FINE:
            return 0
        bits = (self.end - self.start) * float(sign_rates()[self.rate])
        return sign_paths.LANES * max(1, int(bits / (sign_paths.BITS * sign_paths.LANES)))

    def of(self, vector: Float32) -> Float32:
        return vector[self.start : self.end]


class Coded(NamedTuple):
    """A run as numbers: indices of all signs, and words of all levels."""

    signs: UInt8
    words: UInt16


def runs(bounds: Int64) -> Iterator[slice]:
    """Yield which pieces form a run."""
    first, start = 0, 0
    for n, end in enumerate(bounds[1:].tolist(), 1):
        if end - start >= _RUN or n == bounds.size - 1:
            yield slice(first, n)
            first, start = n, end


def encode_run(
    parts: list[Part], rotated: Float32, memories: tuple[int, int]
) -> tuple[Coded, list[tuple[float, float]]]:
    """Code the pieces of a run; return also the inner product of each with its code, and the code's squared norm."""
    signs, products = [np.zeros(0, dtype=np.uint8)], dict.fromkeys(parts, (0.0, 0.0))
    for part in parts:
        if part.sign_blocks:
            piece, code = part.of(rotated), np.empty(part.end - part.start, dtype=np.float32)
            indices = np.empty(part.sign_blocks, dtype=np.uint8)
            sign_paths.choose_signs(piece, memories[0], sign_paths.generators(), indices)
            _restore_signs(indices, memories[0], 1.0, code)
            products[part] = product(piece, code), product(code, code)
            signs.append(indices)
    levels = [part for part in parts if part.by_levels]
    coders = level_paths.new_coders(sum(part.end - part.start for part in levels))
    machine = level_paths.machine(memories[1])
    for part in reversed(levels):
        piece, code = part.of(rotated), np.empty(part.end - part.start, dtype=np.float32)
        index, chosen = part.rate - LEVELS, np.empty(code.size, dtype=np.int16)
        level_paths.choose_levels(piece * np.float32(part.factor), level_paths.search(index), machine, chosen)
        level_paths.write_levels(chosen, level_paths.code(index), machine, coders, code)
        products[part] = product(piece, code), product(code, code)
    words = level_paths.finished(coders) if levels else np.zeros(0, dtype=np.uint16)
    return Coded(np.concatenate(signs), words), list(products.values())


def decode_run(parts: list[Part], coded: Coded, memories: tuple[int, int], out: Float32) -> None:
    """Set `out` to the pieces of a run, whose numbers are untrusted."""
    place = 0
    for part in parts:
        if part.sign_blocks:
            _restore_signs(coded.signs[place : place + part.sign_blocks], memories[0], part.factor, part.of(out))
            place += part.sign_blocks
    levels = [part for part in parts if part.by_levels]
    if not levels and not coded.words.size:
        return
    coders = level_paths.opened(coded.words)
    machine = level_paths.machine(memories[1])
    for part in levels:
        level_paths.read_levels(level_paths.code(part.rate - LEVELS), machine, coders, part.factor, part.of(out))
    level_paths.check_end(coders)


def _restore_signs(indices: UInt8, memory: int, factor: float, out: Float32) -> None:
    sign_paths.restore_signs(indices, memory, sign_paths.generators(), sign_paths.signs(memory), factor, out)
