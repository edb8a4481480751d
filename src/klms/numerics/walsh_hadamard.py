"""The fast Walsh-Hadamard transform. Its additions have a fixed order, so every machine computes the same bits."""

from klms.numerics.jit import Float32, Float64, kernel

_IN_CACHE = 1 << 12


@kernel
def walsh_hadamard(x: Float32 | Float64) -> None:
    """Replace `x[k]` by the sum over `s` of `x[s] (-1)^popcount(s & k)`, in place.

    Parts that fit into the innermost cache are transformed first, then joined level by level.
    """
    part = min(_IN_CACHE, x.size)
    for start in range(0, x.size, part):
        inner = x[start : start + part]
        join_parts(inner, _eights(inner))
    join_parts(x, part)


@kernel
def _eights(x: Float32 | Float64) -> int:
    """Compute the first three levels without loops, since such short loops are slow; return the length of a part."""
    if x.size < 8:
        return 1
    for g in range(0, x.size, 8):
        a0, a1, a2, a3 = x[g] + x[g + 1], x[g] - x[g + 1], x[g + 2] + x[g + 3], x[g + 2] - x[g + 3]
        a4, a5, a6, a7 = x[g + 4] + x[g + 5], x[g + 4] - x[g + 5], x[g + 6] + x[g + 7], x[g + 6] - x[g + 7]
        b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
        b4, b5, b6, b7 = a4 + a6, a5 + a7, a4 - a6, a5 - a7
        x[g], x[g + 1], x[g + 2], x[g + 3] = b0 + b4, b1 + b5, b2 + b6, b3 + b7
        x[g + 4], x[g + 5], x[g + 6], x[g + 7] = b0 - b4, b1 - b5, b2 - b6, b3 - b7
    return 8


@kernel
def join_parts(x: Float32 | Float64, half: int) -> None:
    """Compute the levels above parts of size `half`, two at a time to halve the memory traffic."""
    while 2 * half < x.size:
        for g in range(0, x.size, 4 * half):
            p, q = x[g : g + half], x[g + half : g + 2 * half]
            r, s = x[g + 2 * half : g + 3 * half], x[g + 3 * half : g + 4 * half]
            for k in range(half):
                a, b = p[k] + q[k], p[k] - q[k]
                c, d = r[k] + s[k], r[k] - s[k]
                p[k], q[k], r[k], s[k] = a + c, b + d, a - c, b - d
        half *= 4
    if half < x.size:
        for k in range(half):
            a, b = x[k], x[half + k]
            x[k], x[half + k] = a + b, a - b
