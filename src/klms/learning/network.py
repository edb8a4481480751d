"""A model as a function of one vector of parameters."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from klms.compressors.layout import Layout
from klms.data.text import PADDING
from klms.errors import InvalidArgument
from klms.learning.models import build

Vector = npt.NDArray[np.float32]
Loss = Callable[[Tensor, Tensor], Tensor]
Draw = Callable[[tuple[int, ...], float], npt.NDArray[np.float64]]  # from a shape and a standard deviation


def next_word_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy over all words except padding."""
    return functional.cross_entropy(scores, y, ignore_index=PADDING)


def built_with_seed(model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module whose random initial parameters depend on the seed alone; torch's generator stays unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model()


def pick_device(wanted: str) -> torch.device:
    """Return the device; `auto` takes a GPU if there is one."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        raise InvalidArgument(f"device {wanted!r} is not available: choose auto, cpu, cuda or mps") from error


@dataclass(frozen=True)
class Network:
    """An architecture and its loss; parameters come in as a vector with every call."""

    module: nn.Module
    layout: Layout
    device: torch.device
    loss: Loss = functional.cross_entropy
    padding: int = -100
    """Label that counts for nothing, in texts; torch's default for other data."""
    own_parameters: Vector | None = None
    """Initial parameters that came with the module; None for the built-in models, which are initialised by seed."""

    @classmethod
    def create(cls, name: str, shape: tuple[int, ...], classes: int, width: float, device: str = "cpu") -> "Network":
        network = cls._wrap(build(name, shape, classes, width), device)
        return replace(network, loss=next_word_loss, padding=PADDING) if name == "lstm" else network

    @classmethod
    def of(cls, module: nn.Module, *, loss: Loss | None = None, device: str = "cpu") -> "Network":
        """Wrap a copy of a user's module; training starts from its parameters that require gradients.

        Normalisation layers lose their running statistics, so that nothing but parameters has to be sent.
        """
        own = copy.deepcopy(module)
        for part in own.modules():
            if isinstance(part, _NormBase) and part.track_running_stats:
                part.track_running_stats = False
                part.running_mean = part.running_var = part.num_batches_tracked = None
        pieces = [p.detach().cpu().float().reshape(-1) for p in own.parameters() if p.requires_grad]
        if not pieces:
            raise InvalidArgument("the model has no parameters that require gradients: there is nothing to train")
        start = torch.cat(pieces).numpy()
        return replace(cls._wrap(own, device), loss=loss or functional.cross_entropy, own_parameters=start)

    @classmethod
    def _wrap(cls, module: nn.Module, device: str) -> "Network":
        named = [(name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad]
        layout = Layout(tuple(name for name, _ in named), tuple(shape for _, shape in named))
        where = pick_device(device)
        return cls(module.requires_grad_(False).to(where), layout, where)

    def __call__(self, parameters: Tensor, x: Tensor) -> Tensor:
        pieces = torch.split(parameters, list(self.layout.sizes))
        shaped = [piece.view(shape) for piece, shape in zip(pieces, self.layout.shapes, strict=True)]
        tensors = dict(zip(self.layout.names, shaped, strict=True))
        output: Tensor = functional_call(self.module, tensors, (x,))
        return output

    def tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        """Copy an array to the model's device; images become floats in [-1, 1]."""
        tensor = torch.from_numpy(np.array(array)).to(self.device)
        return tensor.float().div_(127.5).sub_(1) if array.dtype == np.uint8 else tensor

    def module_with(self, parameters: Vector) -> nn.Module:
        """Return a copy of the module that holds these parameters, in evaluation mode."""
        module = copy.deepcopy(self.module).eval()
        tensors = {name: torch.from_numpy(piece.copy()) for name, piece in self.layout.split(parameters)}
        module.load_state_dict(tensors, strict=False)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in tensors)
        return module

    def initial(self, seed: int) -> Vector:
        """Return the module's own parameters, or normal weights of variance `2 / fan_in` and biases of 0."""
        if self.own_parameters is not None:
            return self.own_parameters.copy()
        rng = np.random.default_rng([seed, 0x1417])
        return self._initial(lambda shape, std: rng.normal(0, std, shape), bias=False)

    def signed_constants(self, seed: int, gain: float = 1.0) -> Vector:
        """Return FedPM's frozen weights: `+-gain sqrt(2 / fan_in)` with random signs, biases included; norms are 1.

        A mask of density 1/2 halves the variance of a layer's output; a gain of `sqrt(2)` makes up for that.
        """
        rng = np.random.default_rng([seed, 0x5167])
        return self._initial(lambda shape, std: np.where(rng.random(shape) < 0.5, -std, std) * gain, bias=True)

    def _initial(self, draw: Draw, *, bias: bool) -> Vector:
        embeddings = {name for name, part in self.module.named_modules() if isinstance(part, nn.Embedding)}
        pieces = []
        fan_in = 1
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if len(shape) > 1:
                # Rows of an embedding are looked up, not summed: its values are the next layer's inputs, of variance 1.
                fan_in = 2 if name.rpartition(".")[0] in embeddings else math.prod(shape[1:])
            if len(shape) > 1 or (bias and not name.endswith("weight")):
                piece = draw(shape, math.sqrt(2 / fan_in))
            else:
                piece = np.full(shape, float(name.endswith("weight")))  # norms begin at 1, biases at 0
            pieces.append(piece.astype(np.float32).ravel())
        return np.concatenate(pieces)
