"""How a client goes through its data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Optimizer = Literal["sgd", "momentum", "adam"]


@dataclass(frozen=True)
class Schedule:
    """Local epochs, batch size and optimizer of a client."""

    epochs: int
    batch: int
    lr: float
    optimizer: Optimizer

    def batches(self, n: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the indices of shuffled batches; a final batch of one is dropped, since norms cannot use it."""
        for _ in range(self.epochs):
            order = rng.permutation(n)
            for start in range(0, n, self.batch):
                chosen = order[start : start + self.batch]
                if chosen.size > 1 or n == 1:
                    yield chosen
