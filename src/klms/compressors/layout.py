"""Layout of a model's parameters in one vector: which part belongs to which tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the parameter tensors, in the order in which they are concatenated.

    >>> layout = Layout(("weight", "bias"), ((3, 2), (3,)))
    >>> layout.d, [(part.start, part.stop) for part in layout.parts]
    (9, [(0, 6), (6, 9)])
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each tensor."""
        return tuple(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        """Slice of the vector that holds each tensor."""
        ends = np.cumsum(self.sizes).tolist()
        return tuple(slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    def buckets(self, size: int) -> npt.NDArray[np.int64]:
        """Return boundaries that cut every tensor into pieces of at most `size`; 0 keeps tensors whole."""
        bounds = [0]
        for part in self.parts:
            bounds += [*range(part.start + size, part.stop, size)] if size else []
            bounds.append(part.stop)
        return np.array(bounds, dtype=np.int64)

    def split(self, vector: npt.NDArray[np.float32]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield the tensors of a vector by name."""
        for name, shape, part in zip(self.names, self.shapes, self.parts, strict=True):
            yield name, vector[part].reshape(shape)


def root_mean_squares(vector: npt.NDArray[np.float32], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the root mean square of every piece."""
    squares = np.add.reduceat(vector.astype(np.float64) ** 2, bounds[:-1])
    return np.sqrt(squares / np.diff(bounds))
