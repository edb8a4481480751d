"""The paper's models (appendix E).

Normalisation layers use the statistics of each batch, so that parameters alone make up a model.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from klms.errors import InvalidArgument
from klms.numerics.checks import check_name


def build(name: str, shape: Sequence[int], classes: int, width: float = 1.0) -> nn.Module:
    """Return a model for inputs of `shape` (channels, height, width; or the length of a text)."""
    check_name("model", name, MODELS)
    return MODELS[name](shape, classes, width)


def count_parameters(name: str, shape: Sequence[int], classes: int, width: float = 1.0) -> int:
    """Return the number of parameters that `build` would allocate, without allocating any."""
    none = f"there is no {name} for inputs of shape {tuple(shape)} at width {width:g}"
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of empty layers, which are refused below
            sizes = [parameter.numel() for parameter in build(name, shape, classes, width).parameters()]
    except (RuntimeError, IndexError, TypeError, OverflowError) as error:
        raise InvalidArgument(none) from error
    if not all(sizes):
        raise InvalidArgument(f"{none}: a layer would have no parameters")
    return sum(sizes)


class LeNet(nn.Module):
    """Two 5x5 convolutions of 20 and 50 filters, each pooled, and 500 hidden units."""

    def __init__(self, shape: Sequence[int], classes: int, width: float) -> None:
        super().__init__()
        first, second, hidden = (max(1, round(n * width)) for n in (20, 50, 500))
        side = [((n - 4) // 2 - 4) // 2 for n in shape[1:]]
        self.conv1 = nn.Conv2d(shape[0], first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.linear = nn.Linear(second * side[0] * side[1], hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        scores: Tensor = self.output(functional.relu(self.linear(x.flatten(1))))
        return scores


def conv(stages: int, shape: Sequence[int], classes: int, width: float) -> nn.Sequential:
    """CONV4 (two stages) and CONV6 (three): pairs of 3x3 convolutions, each pair pooled; two layers of 256 units."""
    layers: list[nn.Module] = []
    channels = shape[0]
    side = list(shape[1:])
    for stage in range(stages):
        filters = max(1, round(64 * 2**stage * width))
        for _ in range(2):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
        side = [n // 2 for n in side]
    hidden = max(1, round(256 * width))
    layers += [nn.Flatten(), nn.Linear(channels * side[0] * side[1], hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, track_running_stats=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, track_running_stats=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nn.Module):
    """ResNet-18 with a 3x3 stem."""

    def __init__(self, shape: Sequence[int], classes: int, width: float) -> None:
        super().__init__()
        filters = [max(1, round(64 * 2**stage * width)) for stage in range(4)]
        self.stem = nn.Conv2d(shape[0], filters[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(filters[0], track_running_stats=False)
        blocks = [_Residual(filters[0], filters[0], 1), _Residual(filters[0], filters[0], 1)]
        for before, count in pairwise(filters):
            blocks += [_Residual(before, count, 2), _Residual(count, count, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.output = nn.Linear(filters[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.norm(self.stem(x))))
        scores: Tensor = self.output(x.mean(dim=(2, 3)))
        return scores


class NextWord(nn.Module):
    """An LSTM that predicts the next word at every place of a text.

    The cell is written out because torch's own cell keeps references to its weights, so that masks would not apply.
    """

    def __init__(self, shape: Sequence[int], vocabulary: int, width: float) -> None:
        super().__init__()
        embedding, hidden = round(96 * width), round(192 * width)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.from_input = nn.Linear(embedding, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)
        self.output = nn.Linear(hidden, vocabulary)
        self.hidden = hidden

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of the next word, of shape (texts, vocabulary, places), as the loss expects them."""
        inputs = self.from_input(self.embedding(words))
        state = inputs.new_zeros(words.shape[0], self.hidden)
        memory = torch.zeros_like(state)
        states = []
        for place in range(words.shape[1]):
            gates = inputs[:, place] + self.from_state(state)
            write, forget, read, new = gates.chunk(4, dim=1)
            memory = torch.sigmoid(forget + 1) * memory + torch.sigmoid(write) * torch.tanh(new)
            state = torch.sigmoid(read) * torch.tanh(memory)
            states.append(state)
        scores: Tensor = self.output(torch.stack(states, dim=1)).transpose(1, 2)
        return scores


MODELS: dict[str, Callable[[Sequence[int], int, float], nn.Module]] = {
    "lenet": LeNet,
    "conv4": partial(conv, 2),
    "conv6": partial(conv, 3),
    "resnet18": ResNet18,
    "lstm": NextWord,
}
CHANNELS_LAST = frozenset({"conv6", "resnet18"})
"""Models that train faster on images with channels last: CONV6 by a factor of 1.4 at a quarter of its width.

LeNet does, too, but its committed results use the usual layout, and rounding depends on the layout.
"""
