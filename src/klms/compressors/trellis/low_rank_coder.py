"""The low-rank part as bytes, and back: columns and rows as multiples of a step, coded adaptively (`adaptive_bits.py`).

An array of two or more dimensions is a matrix with one row per entry of its first dimension. It is sent as a sum of
products `a b^T / |a|` of a column `a` and a row `b`.

The content: for each matrix the number of products (u8) and, if there are any, the step (u16, on the logarithmic scale
of `payload.py`); then, coded, the columns and rows of all products: magnitudes in steps, with a sign unless they are
zero.
"""

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from klms.compressors.trellis.adaptive_bits import Coder, finish, new_reader, new_writer, read_records, write_records
from klms.compressors.trellis.payload import log_scale
from klms.compressors.trellis.pieces import Pieces, product
from klms.errors import CorruptMessage
from klms.numerics.jit import Float32, Float64, Int64, UInt8, kernel

_NARROWEST = 4  # minimum number of rows and of columns per product, so that products cost a fraction of the matrix
_MOST_PRODUCTS = 32
_LARGEST = 1 << 20  # maximum number of steps in a number
_STEP = struct.Struct("<H")


class Matrix(NamedTuple):
    """An array of an update: its place in the order of the pieces (`Pieces.gather`), and its shape as a matrix."""

    place: slice
    rows: int
    columns: int
    most_products: int

    def of(self, vector: Float32) -> Float32:
        return vector[self.place].reshape(self.rows, self.columns)


class Products(NamedTuple):
    """The low-rank part of a matrix: one column and one row per product, in steps."""

    step: int
    """Number of the step, on the logarithmic scale of `payload.py`; 0 if there are no products."""
    columns: Int64
    rows: Int64


def matrices(pieces: Pieces) -> list[Matrix]:
    """Return the arrays that may have a low-rank part, in the order of the layout."""
    layout, found = pieces.layout, []
    places = {part.start: place for part, place in pieces.moves()}
    for part, shape, size in zip(layout.parts, layout.shapes, layout.sizes, strict=True):
        if len(shape) > 1 and size:
            rows, columns = shape[0], size // shape[0]
            most = min(_MOST_PRODUCTS, rows // _NARROWEST, columns // _NARROWEST)
            if most:
                found.append(Matrix(places[part.start], rows, columns, most))
    return found


def write_products(chosen: Sequence[Products], room: int = 2) -> bytes:
    """Return the content; it is empty if there are no products. `room` is the space to reserve per number, in bytes."""
    if not any(products.step for products in chosen):
        return b""
    head = b"".join(bytes([p.rows.shape[0]]) + (_STEP.pack(p.step) if p.step else b"") for p in chosen)
    coder = new_writer(16 + room * sum(p.rows.size + p.columns.size for p in chosen), 2)
    for products in chosen:
        contexts = _contexts(products.columns.shape[1], products.rows.shape[1])
        for pair in zip(products.columns, products.rows, strict=True):
            factors = np.concatenate(pair)
            write_records(coder, contexts, False, np.abs(factors)[:, None], (factors < 0).astype(np.uint8))
    length = finish(coder)
    if length > coder.data.size:
        return write_products(chosen, 4 * room)
    return head + coder.data[:length].tobytes()


def read_products(content: bytes, wanted: list[Matrix], vector: Float32) -> None:
    """Decode the products of the `wanted` matrices from untrusted bytes, and add them to `vector`.

    `vector` is an update in the order of its pieces (`Pieces.gather`).
    """
    place = 0
    heads, scales = [], []
    try:
        for matrix in wanted:
            count = content[place]
            if count > matrix.most_products:
                raise CorruptMessage(f"a matrix of {matrix.rows} rows cannot have {count} products")
            heads.append((matrix.place.start, matrix.rows, matrix.columns, count))
            scales.append(log_scale(_STEP.unpack_from(content, place + 1)[0]) if count else 0.0)
            place += 1 + (_STEP.size if count else 0)
    except (struct.error, IndexError) as error:
        raise CorruptMessage("the low-rank part is cut off") from error
    coder = new_reader(np.frombuffer(content, dtype=np.uint8)[place:].copy(), 2)
    if not _add_all(coder, np.array(heads, dtype=np.int64).reshape(-1, 4), np.array(scales), vector):
        raise CorruptMessage("the low-rank part does not decode")


@kernel
def _add_all(coder: Coder, heads: Int64, scales: Float64, vector: Float32) -> bool:
    """Read the products of all matrices and add them to the vector; return False if they are invalid.

    A head holds the start of a matrix, its number of rows, its number of columns and its number of products.
    """
    longest = 0
    for m in range(scales.size):
        longest = max(longest, heads[m, 1] + heads[m, 2])
    numbers, minus = np.empty((longest, 1), dtype=np.int64), np.empty(longest, dtype=np.uint8)
    factors = np.empty(longest, dtype=np.float32)
    for m in range(scales.size):
        start, rows, columns, count = heads[m, 0], heads[m, 1], heads[m, 2], heads[m, 3]
        matrix = vector[start : start + rows * columns].reshape((rows, columns))
        contexts = _contexts(rows, columns)
        for _ in range(count):
            if not read_records(coder, contexts, False, numbers[: rows + columns], minus):
                return False
            for i in range(rows + columns):
                if numbers[i, 0] > _LARGEST:
                    return False
                factors[i] = -numbers[i, 0] if minus[i] else numbers[i, 0]
            _add_scaled(factors[:rows], factors[rows : rows + columns], scales[m], matrix)
    return True


@kernel
def _contexts(rows: int, columns: int) -> UInt8:
    """Return the contexts of a column and of a row."""
    contexts = np.zeros(rows + columns, dtype=np.uint8)
    contexts[rows:] = 1
    return contexts


@kernel
def add_products(columns: Int64, rows: Int64, scale: float, matrix: Float32) -> None:
    """Add `scale a b^T / |a|` for every column `a` and row `b` to the matrix."""
    for n in range(rows.shape[0]):
        _add_scaled(columns[n].astype(np.float32), rows[n].astype(np.float32), scale, matrix)


@kernel
def _add_scaled(column: Float32, row: Float32, scale: float, matrix: Float32) -> None:
    """Add `scale a b^T / |a|` for a column `a`, which is overwritten, and a row `b` to the matrix."""
    length = math.sqrt(product(column, column))
    if length > 0:
        column *= np.float32(scale / length)
        add_product(column, row, matrix)


@kernel
def add_product(column: Float32, row: Float32, matrix: Float32) -> None:
    """Add the product of a column and a row to the matrix."""
    for i in range(matrix.shape[0]):
        out, factor = matrix[i], column[i]
        if factor != 0:
            for j in range(row.size):
                out[j] += factor * row[j]
