"""A model as a function of one vector of parameters."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

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
from klms.learning.examples import Array, Examples, Inputs, each
from klms.learning.models import CHANNELS_LAST, build

Vector = npt.NDArray[np.float32]
Loss = Callable[[Any, Tensor], Tensor]
"""A function of the model's output, of whatever type, and the labels."""
TensorInputs = Tensor | Mapping[str, Tensor]
Draw = Callable[[tuple[int, ...], float], npt.NDArray[np.float64]]  # from a shape and a standard deviation


def scores_of(output: object, rows: int) -> Tensor | None:
    """Return the scores in a model's output for `rows` examples; None if there are none.

    The scores are the output itself if it is a tensor; else its `logits`, by attribute (Hugging Face, torchvision) or
    by key; else the first tensor in the tuple or dictionary that has one row per example.
    """
    if isinstance(output, Tensor):
        return output
    named = output if isinstance(output, Mapping) else {}
    logits = getattr(output, "logits", named.get("logits"))
    parts = list(named.values()) or (output if isinstance(output, tuple | list) else ())
    for part in (logits, *parts):
        if isinstance(part, Tensor) and part.ndim > 0 and len(part) == rows:
            return part
    return None


def class_loss(output: object, y: Tensor) -> Tensor:
    """Return the cross-entropy of a model's scores, the default loss."""
    scores = scores_of(output, len(y))
    if scores is None:
        raise InvalidArgument(
            f"the model returns a {type(output).__name__} without a tensor of scores for {len(y)} examples: let it "
            "return them, or give a loss, which is called with the model's output"
        )
    if not are_scores(scores, y):
        raise InvalidArgument(
            f"the model returns scores of shape {tuple(scores.shape)} for labels of shape {tuple(y.shape)}; "
            "cross-entropy needs (examples, classes) for (examples,), or (examples, classes, places) for "
            "(examples, places): give another loss, such as loss=lambda output, y: output.loss for a model that "
            "computes its own"
        )
    try:
        return functional.cross_entropy(scores, y)
    except IndexError as error:
        raise not_a_class(int(y.max()), scores.shape[1]) from error


def not_a_class(label: int, classes: int) -> InvalidArgument:
    """Return the error for a label that the model has no score for."""
    return InvalidArgument(
        f"label {label} is not a class: the model has scores for {classes} classes, numbered from 0: give it more "
        "outputs, or give a loss"
    )


def are_scores(scores: Tensor, y: Tensor) -> bool:
    """Return whether `scores` has the shape of class scores for every label."""
    return scores.ndim == y.ndim + 1 and scores.shape[:1] + scores.shape[2:] == y.shape


def next_word_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy over all words except padding."""
    return functional.cross_entropy(scores, y, ignore_index=PADDING)


def built_with_seed(model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module whose random initial parameters depend on the seed alone; torch's generator stays unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model()


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of a module's parameters and buffers."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def pick_device(wanted: str) -> torch.device:
    """Return the device; `auto` prefers a GPU."""
    if wanted == "auto" and torch.cuda.is_available():
        wanted = "cuda"
    elif wanted == "auto":
        wanted = "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        advice = "choose cpu, or auto, which takes a GPU if there is one"
        raise InvalidArgument(f"device {wanted!r} is not available here ({reason}): {advice}") from error


@dataclass(frozen=True)
class Network:
    """An architecture and its loss; parameters are passed as a vector with every call."""

    module: nn.Module
    layout: Layout
    device: torch.device
    loss: Loss = class_loss
    padding: int = -100
    """Label that the loss ignores: padding in texts, and torch's default for other data."""
    own_parameters: Vector | None = None
    """Initial parameters that came with the module; None for the built-in models, which are initialised by seed."""
    norms: tuple[str, ...] = ()
    """Normalisation layers of the user's module with running statistics; these statistics are not used here."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Floating-point types of the user's parameters and buffers where they are not float32, in which klms computes."""
    channels_last: bool = False
    """Whether batches of images are laid out with channels last. Deep convolutions are faster on this layout."""

    @classmethod
    def create(cls, name: str, shape: tuple[int, ...], classes: int, width: float, device: str = "cpu") -> "Network":
        network = cls._wrap(build(name, shape, classes, width), device)
        if name == "lstm":
            return replace(network, loss=next_word_loss, padding=PADDING)
        return replace(network, channels_last=name in CHANNELS_LAST)

    @classmethod
    def of(cls, module: nn.Module, *, loss: Loss | None = None, device: str = "cpu") -> "Network":
        """Wrap a copy of a user's module; training starts from its parameters that require gradients.

        Normalisation layers use the statistics of each batch, so that nothing but parameters has to be sent.
        """
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and parameter.is_complex():
                raise InvalidArgument(
                    f"parameter {name} is complex, and only real parameters can be trained: split it into its real and "
                    "imaginary parts, or freeze it"
                )
        dtypes = {name: tensor.dtype for name, tensor in _tensors(module) if tensor.is_floating_point()}
        own = copy.deepcopy(module).float()
        norms = []
        for name, part in own.named_modules():
            if isinstance(part, _NormBase) and part.track_running_stats:
                part.track_running_stats = False
                norms.append(name)
        pieces = [p.detach().cpu().reshape(-1) for p in own.parameters() if p.requires_grad]
        if not pieces:
            raise InvalidArgument("the model has no parameters that require gradients: there is nothing to train")
        start = torch.cat(pieces).numpy()
        network = cls._wrap(own, device)
        others = {name: dtype for name, dtype in dtypes.items() if dtype != torch.float32}
        return replace(network, loss=loss or class_loss, own_parameters=start, norms=tuple(norms), dtypes=others)

    @classmethod
    def _wrap(cls, module: nn.Module, device: str) -> "Network":
        named = [(name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad]
        layout = Layout(tuple(name for name, _ in named), tuple(shape for _, shape in named))
        where = pick_device(device)
        return cls(module.requires_grad_(False).to(where), layout, where)

    def __call__(self, parameters: Tensor, x: TensorInputs, y: Tensor | None = None) -> Any:
        """Return the model's output. Named inputs are passed as keyword arguments.

        With named inputs, the labels are passed as well if the model takes `labels` to compute a loss of its own.
        """
        pieces = torch.split(parameters, list(self.layout.sizes))
        shaped = [piece.view(shape) for piece, shape in zip(pieces, self.layout.shapes, strict=True)]
        tensors = dict(zip(self.layout.names, shaped, strict=True))
        if self.channels_last and isinstance(x, Tensor):
            x = x.contiguous(memory_format=torch.channels_last)
        return functional_call(self.module, tensors, *self._arguments(x, y))

    def _arguments(self, x: TensorInputs, y: Tensor | None) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        if not isinstance(x, Mapping):
            return (x,), {}
        if y is None or "labels" not in signature(self.module.forward).parameters:
            return (), dict(x)
        return (), {**x, "labels": y}

    def set_mode(self, *, training: bool) -> None:
        """Put the module into training or evaluation mode.

        Either way, normalisation layers use the statistics of each batch.
        """
        self.module.train(training)
        for norm in self._norms_of(self.module):
            norm.train()

    def check_labels(self, data: Examples) -> Examples:
        """Return the examples; raise an error if the loss cannot use their labels."""
        if self.loss is not class_loss:
            return data
        if data.y.dtype.kind not in "iu":
            raise InvalidArgument(
                f"the labels are of type {data.y.dtype}, which are not classes: give a loss for them, such as "
                "loss=torch.nn.functional.mse_loss, or make them integers"
            )
        labels = data.y[data.y != self.padding]
        if labels.size == 0:
            raise InvalidArgument(f"all labels are {self.padding}, which the loss ignores")
        if labels.min() < 0:
            raise InvalidArgument(
                f"label {labels.min()} is not a class: classes are numbered from 0, and {self.padding} marks labels to "
                "ignore: change it, or give a loss"
            )
        return data

    def are_classes(self, labels: Array, classes: int) -> bool:
        """Return whether labels, without padding, are classes that the model has scores for.

        The losses of klms need such labels: a label beyond the classes raises an error. With the user's own loss, such
        a label shows that the output does not hold scores of classes.
        """
        if labels.dtype.kind not in "iu" or labels.size == 0:
            return False
        if self.loss not in (class_loss, next_word_loss):
            return classes > 1 and bool(labels.min() >= 0) and bool(labels.max() < classes)
        if labels.max() >= classes:
            raise not_a_class(int(labels.max()), classes)
        return True

    def inputs(self, x: Inputs) -> TensorInputs:
        """Copy inputs to the model's device."""
        return each(x, self.tensor)

    def tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        """Copy an array to the model's device; images become floats in [-1, 1]."""
        tensor = torch.from_numpy(np.array(array)).to(self.device)
        return tensor.float().div_(127.5).sub_(1) if array.dtype == np.uint8 else tensor

    def module_with(self, parameters: Vector, batches: Iterable[Examples] = ()) -> nn.Module:
        """Return a copy of the module that holds these parameters, in evaluation mode.

        The running statistics of its normalisation layers are those of the given batches, averaged.
        """
        module = copy.deepcopy(self.module).eval()
        tensors = {name: torch.from_numpy(piece.copy()) for name, piece in self.layout.split(parameters)}
        module.load_state_dict(tensors, strict=False)
        if self.norms:
            self._measure_statistics(module, batches)
        for name, tensor in _tensors(module):
            tensor.data = tensor.to(self.dtypes.get(name, tensor.dtype))
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in tensors)
        return module

    def _norms_of(self, module: nn.Module) -> list[_NormBase]:
        return [part for name, part in module.named_modules() if name in self.norms and isinstance(part, _NormBase)]

    def _measure_statistics(self, module: nn.Module, batches: Iterable[Examples]) -> None:
        norms = self._norms_of(module)
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.track_running_stats = True
            norm.momentum = None  # an average over all batches
            norm.reset_running_stats()
            norm.train()  # normalisation layers only: active dropout would change their inputs
        with torch.no_grad():
            for batch in batches:
                args, kwargs = self._arguments(self.inputs(batch.x), self.tensor(batch.y))
                module(*args, **kwargs)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()

    def initial(self, seed: int) -> Vector:
        """Return the module's own parameters, or normal weights of variance `2 / fan_in` and biases of 0."""
        if self.own_parameters is not None:
            return self.own_parameters.copy()
        rng = np.random.default_rng([seed, 0x1417])
        return self._initial(lambda shape, std: rng.normal(0, std, shape), bias=False)

    def signed_constants(self, seed: int, gain: float = 1.0) -> Vector:
        """Return FedPM's frozen weights and biases, `+-gain sqrt(2 / fan_in)`; weights of normalisation layers are 1.

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
                piece = np.full(shape, float(name.endswith("weight")))  # norm weights begin at 1, biases at 0
            pieces.append(piece.astype(np.float32).ravel())
        return np.concatenate(pieces)
