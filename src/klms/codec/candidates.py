"""Linear candidates: `K = 2^b` samples of `p` that both sides can make, any two of them independent.

A message has a table of generators `G_{r,j}`, a row a place and a column a bit `j < b`. Block `m` uses the rows from a
random row `w_m`, its window, on. Candidate `k` has at coordinate `i`, offset `o` of block `m`, the word

    u_{k,i} = U_i XOR (XOR over the set bits j of k of G_{w_m + o, j})

and the distribution turns words into values. Each `u_{k,i}` is uniform because `U_i` is; two candidates differ by a
XOR of generators, which is uniform and independent of `U_i`. The paper's bound needs no more than that: it only uses
means and variances of averages over candidates.

Windows keep blocks apart: were all to use the same rows, a message of small blocks could have bad luck everywhere.

The decoder makes the chosen candidate alone, at a cost that does not depend on `K`. The encoder makes all of them by
doubling: the second half of the candidates is the first half XOR the last generator.
"""

import numpy as np
import numpy.typing as npt

from klms.codec._jit import inlined, kernel
from klms.codec.philox import G_STREAM, U_STREAM, WINDOW_STREAM, SharedKey, buffer_size, words

MAX_BITS = 16
WINDOWS = 1024


def windows(key: SharedKey, blocks: int) -> npt.NDArray[np.uint16]:
    """`w_m`: the first row of each block, a word of the window stream mod 1024."""
    buffer = np.empty(buffer_size(blocks), dtype=np.uint64)
    return words(buffer, 0, blocks, WINDOW_STREAM, key.words()) % np.uint16(WINDOWS)


def generators(key: SharedKey, largest: int, bits: int) -> npt.NDArray[np.uint16]:
    """`G[r, j]` for all rows that blocks of up to `largest` coordinates use.

    Row `r` owns words `16 r` to `16 r + 15` of the G stream, so the table of a message with fewer bits or smaller
    blocks is a part of the table of any other with the same key.
    """
    size = largest + WINDOWS - 1
    buffer = np.empty(buffer_size(size * MAX_BITS), dtype=np.uint64)
    table = words(buffer, 0, size * MAX_BITS, G_STREAM, key.words()).reshape(size, MAX_BITS)
    return np.ascontiguousarray(table[:, :bits])


@inlined
def expand(first: np.int16, generators: npt.NDArray[np.int16], row: int, bits: int, out: npt.NDArray[np.int16]) -> None:
    """The words that `first` becomes for all settings of the first `bits` index bits, with this row of generators."""
    out[0] = first
    half = 1
    for j in range(bits):
        g = generators[row, j]
        for k in range(half):
            out[half + k] = out[k] ^ g
        half *= 2


@inlined
def expand_two(
    first_0: np.int16,
    first_1: np.int16,
    generators: npt.NDArray[np.int16],
    row_0: int,
    row_1: int,
    bits: int,
    out_0: npt.NDArray[np.int16],
    out_1: npt.NDArray[np.int16],
) -> None:
    """`expand` for two coordinates at once: a third faster, because each waits for memory while the other works."""
    out_0[0] = first_0
    out_1[0] = first_1
    half = 1
    for j in range(bits):
        g_0 = generators[row_0, j]
        g_1 = generators[row_1, j]
        for k in range(half):
            out_0[half + k] = out_0[k] ^ g_0
        for k in range(half):
            out_1[half + k] = out_1[k] ^ g_1
        half *= 2


@kernel
def chosen_words(
    buffer: npt.NDArray[np.uint64],
    start: int,
    n: int,
    window: int,
    index: int,
    generators_by_bit: npt.NDArray[np.uint16],
    key: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint16]:
    """The words of candidate `index` in the block of `n` coordinates that begins at `start`."""
    out = words(buffer, start, n, U_STREAM, key)
    for j in range(generators_by_bit.shape[0]):
        if (index >> j) & 1:
            for o in range(n):
                out[o] ^= generators_by_bit[j, window + o]
    return out
