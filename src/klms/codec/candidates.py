"""Linear candidates: `K = 2^b` pairwise independent samples of `p` that both sides can generate.

A message has a table of generators `G_{r,j}` with a row `r` per offset and a column `j` per index bit. Block `m` uses
the rows from a random row `w_m` onwards, its window. At coordinate `i`, which has offset `o` in block `m`, candidate
`k` has the word

    u_{k,i} = U_i XOR (XOR over the set bits j of k of G_{w_m + o, j})

and the distribution turns words into values. Each `u_{k,i}` is uniform because `U_i` is. The XOR of the words of two
candidates is an XOR of generators; it is uniform and independent of `U_i`, so any two candidates are independent. This
suffices for the paper's bound, which uses only means and variances of averages over candidates. Windows prevent one
unlucky choice of generators from affecting many small blocks of a message at once.

The decoder generates only the chosen candidate, at a cost that does not depend on `K`. The encoder generates all of
them by doubling: the second half of the candidates is the first half XOR the last generator.
"""

from typing import NamedTuple

import numpy as np

from klms.codec.blocks import Blocks
from klms.numerics.jit import Int16, UInt16, UInt64, inlined
from klms.numerics.philox import G_STREAM, U_STREAM, WINDOW_STREAM, SharedKey, drawn_words, words

MAX_BITS = 16
WINDOWS = 1024


class SharedWords(NamedTuple):
    """Shared randomness of the candidates of one message."""

    windows: UInt16  # first row of each block
    generators: UInt16  # entry `[j, r]` is `G_{r,j}`, for all index bits and for all rows that a block can reach
    signed: Int16  # the bits of `generators` as signed integers
    key: UInt64  # `SharedKey.words()`, from which `U` is generated block by block
    largest: int  # size of the largest block


def shared_words(key: SharedKey, blocks: Blocks, bits: int) -> SharedWords:
    """Generate the windows and generators. Every row owns 16 words of the stream, so no `G_{r,j}` depends on `bits`."""
    key = SharedKey.checked(key)
    count, largest = len(blocks), int(blocks.sizes.max())
    windows = drawn_words(key, WINDOW_STREAM, count)
    table = drawn_words(key, G_STREAM, (largest + WINDOWS - 1) * MAX_BITS).reshape(-1, MAX_BITS)
    generators = np.ascontiguousarray(table[:, :bits].T)
    return SharedWords(windows % np.uint16(WINDOWS), generators, generators.view(np.int16), key.words(), largest)


@inlined
def signed(word: np.uint16) -> np.int16:
    """Shift an unsigned word by -32768, which preserves the order of words and allows the faster signed comparison."""
    return np.int16(int(word) - 32768)


@inlined
def expand(first: np.int16, generators: Int16, row: int, bits: int, out: Int16) -> None:
    """Write the words of the `2^bits` candidates that differ from a candidate only in the lowest bits of their index.

    `first` is the word of the candidate in whose index these bits are 0.
    """
    out[0] = first
    half = 1
    for j in range(bits):
        g = generators[j, row]
        for k in range(half):
            out[half + k] = out[k] ^ g
        half *= 2


@inlined
def expand_two(
    first_0: np.int16, first_1: np.int16, generators: Int16, row_0: int, row_1: int, bits: int, out: Int16
) -> None:
    """Expand two coordinates at once. Their loads and computations overlap, so this is a third faster."""
    out_0, out_1 = out[0], out[1]
    out_0[0], out_1[0] = first_0, first_1
    half = 1
    for j in range(bits):
        g_0, g_1 = generators[j, row_0], generators[j, row_1]
        for k in range(half):
            out_0[half + k] = out_0[k] ^ g_0
        for k in range(half):
            out_1[half + k] = out_1[k] ^ g_1
        half *= 2


@inlined
def coordinate_words(buffer: UInt64, start: int, n: int, shared: SharedWords) -> UInt16:
    """Return the words `U` of `n` coordinates from `start` onwards, as a view of the buffer."""
    return words(buffer, start, n, int(U_STREAM), shared.key)  # Numba would compile `words` again for a constant


@inlined
def chosen_words(buffer: UInt64, m: int, start: int, n: int, index: int, shared: SharedWords) -> UInt16:
    """Return the words of candidate `index` of block `m`, which has `n` coordinates and begins at `start`."""
    out = coordinate_words(buffer, start, n, shared)
    window = int(shared.windows[m])
    for j in range(shared.generators.shape[0]):
        if (index >> j) & 1:
            for o in range(n):
                out[o] ^= shared.generators[j, window + o]
    return out
