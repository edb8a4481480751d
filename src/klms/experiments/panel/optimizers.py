"""Optimizers at the server: from the clients' mean update to the step of the model (Reddi et al., ICLR 2021)."""

from dataclasses import dataclass

import numpy as np

from klms.errors import InvalidArgument
from klms.numerics.jit import Float64

_MOMENTUM = 0.7
_NESTEROV = 0.9
_NESTEROV_RATE = 0.7
_RATE = 0.01
_BETAS = 0.9, 0.99
_LEAST_SIZE = 1e-3


@dataclass
class Optimizer:
    """FedAvg, FedAvgM, FedAdam, or the Nesterov momentum of DiLoCo (Douillard et al., 2023)."""

    name: str
    momentum: Float64 | None = None
    squares: Float64 | None = None

    def __post_init__(self) -> None:
        if self.name not in ("FedAvg", "FedAvgM", "FedAdam", "Nesterov"):
            raise InvalidArgument(f"there is no optimizer {self.name!r}: use FedAvg, FedAvgM, FedAdam or Nesterov")

    def step(self, update: Float64) -> Float64:
        if self.name == "FedAvg":
            return update
        momentum = np.zeros_like(update) if self.momentum is None else self.momentum
        if self.name == "FedAvgM":
            self.momentum = _MOMENTUM * momentum + update
            return self.momentum
        if self.name == "Nesterov":
            self.momentum = _NESTEROV * momentum + update
            return _NESTEROV_RATE * (update + _NESTEROV * self.momentum)
        squares = np.zeros_like(update) if self.squares is None else self.squares
        self.momentum = _BETAS[0] * momentum + (1 - _BETAS[0]) * update
        self.squares = _BETAS[1] * squares + (1 - _BETAS[1]) * np.square(update)
        return _RATE * self.momentum / (np.sqrt(self.squares) + _LEAST_SIZE)
