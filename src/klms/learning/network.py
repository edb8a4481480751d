"""A model as a function of one vector of parameters, with data on its device."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from klms.compressors.layout import Layout
from klms.learning.models import build

Vector = npt.NDArray[np.float32]


def pick_device(wanted: str) -> torch.device:
    """`auto` takes a GPU if there is one."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be auto, cpu, cuda or mps and be there; {wanted!r} is not") from error


@dataclass(frozen=True)
class Network:
    """The architecture; parameters come in as a vector with every call."""

    model: nn.Module
    layout: Layout
    device: torch.device

    @classmethod
    def create(cls, name: str, shape: tuple[int, ...], classes: int, width: float, device: str = "cpu") -> "Network":
        """The named model. Its own initial parameters are dropped: `kaiming` or `signed_constants` make them."""
        model = build(name, shape, classes, width)
        named = list(model.named_parameters())
        layout = Layout(tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))
        where = pick_device(device)
        return cls(model.requires_grad_(False).to(where), layout, where)

    def __call__(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Scores, differentiable in the parameters."""
        pieces = torch.split(parameters, list(self.layout.sizes))
        tensors = {
            name: piece.view(shape)
            for name, shape, piece in zip(self.layout.names, self.layout.shapes, pieces, strict=True)
        }
        scores: Tensor = functional_call(self.model, tensors, (x,))
        return scores

    def tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        """On the model's device; images become floats in [-1, 1]."""
        tensor = torch.from_numpy(np.array(array)).to(self.device)
        return tensor.float().div_(127.5).sub_(1) if array.dtype == np.uint8 else tensor

    def kaiming(self, seed: int) -> Vector:
        """Normal weights of variance `2 / fan_in`, norms' weights 1, biases 0."""
        rng = np.random.default_rng([seed, 0x1417])
        return self._initial(lambda shape, std: rng.normal(0, std, shape), bias=False)

    def signed_constants(self, seed: int, gain: float = 1.0) -> Vector:
        """FedPM's frozen weights: `+-gain sqrt(2 / fan_in)`, signs at random, biases included; norms' weights are 1.

        A mask of density one half halves the variance of what a layer puts out. A gain of `sqrt(2)` makes up for that,
        which deep models without norms need: their signal dies out otherwise.
        """
        rng = np.random.default_rng([seed, 0x5167])
        return self._initial(lambda shape, std: np.where(rng.random(shape) < 0.5, -std, std) * gain, bias=True)

    def _initial(self, draw: object, *, bias: bool) -> Vector:
        pieces = []
        fan_in = 1
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if len(shape) > 1:
                # An embedding's rows are looked up, not summed: its values are the next layer's inputs, of variance 1.
                fan_in = 2 if "embedding" in name else math.prod(shape[1:])
                piece = draw(shape, math.sqrt(2 / fan_in))  # type: ignore[operator]
            elif name.endswith("weight"):
                piece = np.ones(shape)
            else:
                piece = draw(shape, math.sqrt(2 / fan_in)) if bias else np.zeros(shape)  # type: ignore[operator]
            pieces.append(np.asarray(piece, dtype=np.float32).ravel())
        return np.concatenate(pieces)
