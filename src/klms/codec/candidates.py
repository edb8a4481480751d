"""Linear candidates: `K = 2^b` samples of `p` that both sides can make, any two of them independent.

Coordinate `i` at offset `o` of its block has a word `U_i`, and offset `o` has `b` generators `G_{o,j}` that all blocks
of the message share. Candidate `k` uses the word

    u_{k,i} = U_i XOR (XOR over the set bits j of k of G_{o,j})

and the distribution turns words into values. Each `u_{k,i}` is uniform because `U_i` is; two candidates differ by a
XOR of generators, which is uniform and independent of `U_i`. The paper's bound needs no more than that: it only uses
means and variances of averages over candidates.

The decoder makes the chosen candidate alone, at a cost that does not depend on `K`. The encoder makes all of them by
doubling: the second half of the candidates is the first half XOR the last generator.
"""

import numpy as np
import numpy.typing as npt

from klms.codec._jit import inlined, kernel
from klms.codec.philox import G_STREAM, U_STREAM, SharedKey, buffer_size, words

MAX_BITS = 16


def generators(key: SharedKey, size: int, bits: int) -> npt.NDArray[np.uint16]:
    """`G[o, j]` for the offsets below `size`.

    Offset `o` owns words `16 o` to `16 o + 15` of the G stream, so the table of a message with fewer bits or smaller
    blocks is a part of the table of any other with the same key.
    """
    buffer = np.empty(buffer_size(size * MAX_BITS), dtype=np.uint64)
    table = words(buffer, 0, size * MAX_BITS, G_STREAM, key.words()).reshape(size, MAX_BITS)
    return np.ascontiguousarray(table[:, :bits])


@inlined
def expand(first: np.int16, generators: npt.NDArray[np.int16], o: int, bits: int, out: npt.NDArray[np.int16]) -> None:
    """The words that `first` becomes for all settings of the first `bits` index bits, at offset `o`."""
    out[0] = first
    half = 1
    for j in range(bits):
        g = generators[o, j]
        for k in range(half):
            out[half + k] = out[k] ^ g
        half *= 2


@inlined
def expand_two(
    first_0: np.int16,
    first_1: np.int16,
    generators: npt.NDArray[np.int16],
    o_0: int,
    o_1: int,
    bits: int,
    out_0: npt.NDArray[np.int16],
    out_1: npt.NDArray[np.int16],
) -> None:
    """`expand` for two coordinates at once: a third faster, because each waits for memory while the other works."""
    out_0[0] = first_0
    out_1[0] = first_1
    half = 1
    for j in range(bits):
        g_0 = generators[o_0, j]
        g_1 = generators[o_1, j]
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
    index: int,
    generators_by_bit: npt.NDArray[np.uint16],
    key: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint16]:
    """The words of candidate `index` in the block of `n` coordinates that begins at `start`."""
    out = words(buffer, start, n, U_STREAM, key)
    for j in range(generators_by_bit.shape[0]):
        if (index >> j) & 1:
            for o in range(n):
                out[o] ^= generators_by_bit[j, o]
    return out
