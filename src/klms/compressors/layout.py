"""Layout of a model's parameters in one vector: which part belongs to which tensor."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from klms.numerics.jit import Float32, Int64


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
        return tuple(map(math.prod, self.shapes))

    @cached_property
    def d(self) -> int:
        return sum(self.sizes)

    @cached_property
    def parts(self) -> tuple[slice, ...]:
        ends = np.cumsum(self.sizes).tolist()
        return tuple(slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    def buckets(self, size: int) -> Int64:
        """Return boundaries that cut every tensor into pieces of at most `size`; 0 keeps tensors whole.

        Tensors without entries have no pieces.
        """
        bounds = [0]
        for part in self.parts:
            bounds += [*range(part.start + size, part.stop, size)] if size else []
            if part.stop > part.start:
                bounds.append(part.stop)
        return np.array(bounds, dtype=np.int64)

    def only(self, names: Collection[str]) -> "Layout":
        """Return the layout of only the tensors with these names, in the order of this layout."""
        kept = [(name, shape) for name, shape in zip(self.names, self.shapes, strict=True) if name in names]
        return Layout(tuple(name for name, _ in kept), tuple(shape for _, shape in kept))

    def split(self, vector: Float32) -> Iterator[tuple[str, Float32]]:
        for name, shape, part in zip(self.names, self.shapes, self.parts, strict=True):
            yield name, vector[part].reshape(shape)
