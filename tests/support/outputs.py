"""Models and data in the shapes of other libraries: Hugging Face's classifiers, and outputs that are not tensors."""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, LENGTH = 30, 8
PADDING = 0


class ModelOutput(OrderedDict):
    """What models of Hugging Face return: a dictionary whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class TinyBert(nn.Module):
    """A classifier of texts, with embeddings, attention that is masked, and a loss of its own if it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.places = nn.Embedding(LENGTH, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.classifier = nn.Linear(16, 2)
        self.register_buffer("position_ids", torch.arange(LENGTH))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> ModelOutput:
        hidden = self.words(input_ids) + self.places(self.position_ids)
        attended, _ = self.attention(hidden, hidden, hidden, key_padding_mask=attention_mask == 0)
        hidden = self.norm(hidden + attended)
        logits = self.classifier((hidden * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True))
        if labels is None:
            return ModelOutput(logits=logits)
        return ModelOutput(loss=functional.cross_entropy(logits, labels), logits=logits)


class Tagger(nn.Module):
    """A label for every word, as Hugging Face's token classifiers give it: scores with the classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.classifier = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> ModelOutput:
        logits = self.classifier(self.words(input_ids))
        loss = None if labels is None else functional.cross_entropy(logits.transpose(1, 2), labels)
        return ModelOutput(loss=loss, logits=logits)


def texts(n: int, seed: int) -> list[dict[str, Any]]:
    """Return items as a tokenizer's data set has them: the label says which of the words 1 and 2 is in the text."""
    rng = np.random.default_rng(seed)
    items = []
    for label in rng.integers(0, 2, n):
        length = int(rng.integers(3, LENGTH + 1))
        words = rng.integers(3, WORDS, LENGTH)
        words[rng.integers(0, length)] = 1 + label
        words[length:] = PADDING
        mask = np.arange(LENGTH) < length
        items.append({"input_ids": words.tolist(), "attention_mask": mask.astype(int).tolist(), "label": int(label)})
    return items


class InTuple(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class AfterItsLoss(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return x.mean(), super().forward(x)


class InDictionary(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return {"features": x, "logits": super().forward(x)}


class UnderAnotherName(nn.Linear):
    """As torchvision's segmentation models do."""

    def forward(self, x: Tensor) -> Any:
        return OrderedDict(out=super().forward(x), aux=x)


class Outputs(NamedTuple):
    """What torchvision's Inception returns in training."""

    aux_logits: Tensor
    logits: Tensor


class InNamedTuple(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return Outputs(x, super().forward(x))


class Nowhere(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return {"loss": super().forward(x).mean()}


class Block(nn.Module):
    """A residual block with normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels, momentum=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class SmallResNet(nn.Module):
    """A residual network with dropout, as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.bn(self.stem(x))))
        return self.fc(self.dropout(x.mean(dim=(2, 3))))


def patches(n: int, seed: int, classes: tuple[int, ...] = (0, 1, 2)) -> tuple[np.ndarray, np.ndarray]:
    """Return small images with stripes across, stripes down or none, by class, brighter than normalised inputs are."""
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, n)
    x = rng.normal(2.0, 1.0, (n, 1, 8, 8))
    x[y == 0, :, ::2] += 2.0
    x[y == 1, :, :, ::2] += 2.0
    return x.astype(np.float32), y
