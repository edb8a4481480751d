"""Normal coordinates at less than about 0.7 bits each: blocks of signs, addressed by a path through a trellis.

A block of coordinates is coded by `BITS` bits, and its candidate is addressed by the last `BITS + memory` bits `c` of
the index stream, as in `codec/paths.py`. Candidate `c` gives coordinate `i` the sign `(-1)^<g_i, c>`, where `g_i` is
a fixed random generator and `<., .>` the inner product modulo 2. The score of a candidate is its inner product with the
block. If the coordinates are first summed by generator, one Walsh-Hadamard transform of the sums gives all scores. The
encoder takes the path with the largest sum of scores (Viterbi). The rotation is what makes the estimate unbiased.
"""

from functools import cache

import numpy as np

from klms.numerics.checks import frozen
from klms.numerics.elementary import keep_largest
from klms.numerics.jit import Float32, UInt8, UInt16, kernel
from klms.numerics.philox import U_STREAM, SharedKey, drawn_words
from klms.numerics.walsh_hadamard import join_parts

BITS = 4
LANES = 8
MAX_MEMORY = 8
_BRANCHES = 1 << BITS
_PATH = 512  # blocks of a path before it is traced back and begins anew
_GENERATORS = 1 << 16
_KEY = SharedKey(seed=0, round=0, client=0)  # a constant of the format; these words need not be secret


@cache
def generators() -> UInt16:
    """Return the generators of the first `_GENERATORS` coordinates; further coordinates use the same ones again."""
    return frozen(drawn_words(_KEY, U_STREAM, _GENERATORS))


@cache
def signs(memory: int) -> Float32:
    """Return `(-1)^(number of ones in n)` for all `n` below `2^(BITS + memory)`."""
    return frozen(np.array([1 - 2 * (n.bit_count() & 1) for n in range(_BRANCHES << memory)], dtype=np.float32))


@kernel
def choose_signs(x: Float32, memory: int, generators: UInt16, indices: UInt8) -> None:
    """Choose the indices of the blocks of a piece; the number of blocks is a multiple of `LANES`."""
    states = 1 << memory
    mask = _BRANCHES * states - 1
    lane, blocks = x.size // LANES, indices.size // LANES
    scores = np.empty((mask + 1) * LANES, dtype=np.float32)  # of candidate `c` in lane `n`, at `c * LANES + n`
    metric = np.empty(states * LANES, dtype=np.float32)
    arrivals = np.empty(states * LANES, dtype=np.int32)
    branches = np.empty((min(_PATH, blocks), states * LANES), dtype=np.uint8)
    for first in range(0, blocks, _PATH):
        end = min(first + _PATH, blocks)
        metric[:LANES] = 0
        metric[LANES:] = np.float32(-1e30)
        for m in range(first, end):
            scores[:] = 0
            start, stop = m * lane // blocks, (m + 1) * lane // blocks
            for n in range(LANES):
                for i in range(n * lane + start, n * lane + stop):
                    scores[int(generators[i & (_GENERATORS - 1)] & mask) * LANES + n] += x[i]
            join_parts(scores, LANES)
            # Candidate `c` extends the best path into state `c >> BITS` to state `c mod states`.
            for s in range(states):
                for k in range(s * _BRANCHES, (s + 1) * _BRANCHES):
                    for n in range(LANES):
                        scores[k * LANES + n] += metric[s * LANES + n]
            keep_largest(scores, metric, arrivals)
            for s in range(arrivals.size):
                branches[m - first, s] = arrivals[s]
        for n in range(LANES):
            state = 0
            for s in range(states):
                if metric[s * LANES + n] > metric[state * LANES + n]:
                    state = s
            for m in range(end - 1, first - 1, -1):
                candidate = (int(branches[m - first, state * LANES + n]) << memory) | state
                indices[n * blocks + m] = candidate & (_BRANCHES - 1)
                state = candidate >> BITS


@kernel
def restore_signs(indices: UInt8, memory: int, generators: UInt16, signs: Float32, scale: float, out: Float32) -> None:
    """Set `out` to the signs of a piece, times `scale`."""
    mask = _BRANCHES * (1 << memory) - 1
    lane, blocks = out.size // LANES, indices.size // LANES
    scaled = signs * np.float32(scale)
    for n in range(LANES):
        candidate = 0
        for m in range(blocks):
            if m % _PATH == 0:
                candidate = 0
            candidate = ((candidate << BITS) | int(indices[n * blocks + m])) & mask
            for i in range(n * lane + m * lane // blocks, n * lane + (m + 1) * lane // blocks):
                out[i] = scaled[generators[i & (_GENERATORS - 1)] & candidate]
