"""Small networks of a dozen kinds, with 10,000 to 200,000 parameters each."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

CHARACTERS = 28
"""The letters, the apostrophe and the space."""


class Transformer(nn.Module):
    """Classifies images by two layers of attention over their rows, and the mean of the results."""

    def __init__(self, side: int = 14, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(side, width)
        self.place = nn.Parameter(0.02 * torch.randn(side, width))
        self.layers = nn.ModuleList(Attention(width, causal=False) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.flatten(1, 2)) + self.place
        for layer in self.layers:
            h = layer(h)
        out: Tensor = self.head(self.norm(h).mean(1))
        return out


class Attention(nn.Module):
    """One layer of a transformer, with its normalisation first."""

    def __init__(self, width: int, *, causal: bool, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        batch, length, width = h.shape
        q, k, v = self.qkv(self.before(h)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        h = h + self.out(mixed)
        inner = functional.gelu(self.inner(self.between(h)))
        out: Tensor = h + self.outer(inner)
        return out


class GPT(nn.Module):
    """Predicts characters with two layers of causal attention."""

    def __init__(self, length: int = 32, width: int = 40, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARACTERS, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(Attention(width, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place
        for layer in self.layers:
            h = layer(h)
        out: Tensor = self.head(self.norm(h))
        return out


class Mixer(nn.Module):
    """Classifies images by mixing patches and channels in turn (MLP-Mixer)."""

    def __init__(self, patches: int = 16, entries: int = 49, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(entries, width)
        self.layers = nn.ModuleList(MixerLayer(patches, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(functional.unfold(x, 7, stride=7).transpose(1, 2))
        for layer in self.layers:
            h = layer(h)
        out: Tensor = self.head(self.norm(h).mean(1))
        return out


class MixerLayer(nn.Module):
    """One layer of a mixer."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.second = nn.LayerNorm(width)
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.tokens(self.first(h).transpose(1, 2)).transpose(1, 2)
        out: Tensor = h + self.channels(self.second(h))
        return out


class GRU(nn.Module):
    """Predicts characters with a recurrent network."""

    def __init__(self, width: int = 72) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARACTERS, 24)
        self.cells = nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cells(self.embed(x))[0])
        return out


class ResNet(nn.Module):
    """Three residual blocks with group or batch normalisation."""

    def __init__(self, norm: str, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = _norm(norm, width)
        self.blocks = nn.ModuleList(
            [
                Residual(norm, width, width, 1),
                Residual(norm, width, 2 * width, 2),
                Residual(norm, 2 * width, 2 * width, 1),
            ]
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(h.mean((2, 3)))
        return out


class Residual(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, norm: str, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = _norm(norm, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = _norm(norm, after)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 or before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.short(x) + self.second_norm(self.second(h)))


def _norm(kind: str, width: int) -> nn.Module:
    return nn.BatchNorm2d(width) if kind == "batch" else nn.GroupNorm(4, width)


class Words(nn.Module):
    """Predicts the next word from the embeddings of three words."""

    def __init__(self, vocabulary: int = 1000, width: int = 24, before: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(before * width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x).flatten(1))
        return out


class Adapted(nn.Module):
    """A frozen network with a low-rank adapter for each of its layers (LoRA)."""

    def __init__(self, frozen: list[tuple[Tensor, Tensor]], rank: int = 8) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.ParameterList(torch.randn(rank, w.shape[1]) / math.sqrt(w.shape[1]) for w, _ in frozen)
        self.up = nn.ParameterList(torch.zeros(w.shape[0], rank) for w, _ in frozen)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        for n, (weight, bias) in enumerate(self.frozen):
            h = functional.linear(h, weight, bias) + h @ self.down[n].T @ self.up[n].T
            h = functional.relu(h) if n + 1 < len(self.frozen) else h
        return h


class Autoencoder(nn.Module):
    """Encodes an image as sixteen numbers and decodes it."""

    def __init__(self, entries: int = 196, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(entries, width), nn.ReLU(), nn.Linear(width, 16))
        self.decoder = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, entries))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.encoder(x.flatten(1)))
        return out


class Factors(nn.Module):
    """Predicts ratings as inner products of the factors of users and items."""

    def __init__(self, users: int = 1000, items: int = 800, rank: int = 12) -> None:
        super().__init__()
        self.users = nn.Embedding(users, rank)
        self.items = nn.Embedding(items, rank)
        nn.init.normal_(self.users.weight, std=0.3)
        nn.init.normal_(self.items.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.users(x[:, 0]) * self.items(x[:, 1])).sum(1)
        return out


class LeNet(nn.Module):
    """LeNet-5 with 61,706 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 5, padding=2)
        self.second = nn.Conv2d(6, 16, 5)
        self.dense = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

    def forward(self, x: Tensor) -> Tensor:
        h = functional.max_pool2d(functional.relu(self.first(x)), 2)
        h = functional.max_pool2d(functional.relu(self.second(h)), 2)
        out: Tensor = self.dense(h.flatten(1))
        return out


class CNN(nn.Module):
    """Two convolutions and two dense layers: 52,000 parameters, about as many as in a first tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.dense = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        h = functional.max_pool2d(functional.relu(self.first(x)), 2)
        h = functional.max_pool2d(functional.relu(self.second(h)), 2)
        out: Tensor = self.dense(h.flatten(1))
        return out
