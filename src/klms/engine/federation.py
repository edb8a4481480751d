"""A method with its clients' data: what a run works on, in every process that takes part in it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from klms import data as datasets
from klms.data import Dataset, splits
from klms.learning.network import Network
from klms.learning.training import Examples
from klms.methods.base import Method
from klms.methods.config import RunConfig
from klms.methods.registry import create

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Federation:
    """Made of a configuration alone, so that every process makes the same."""

    method: Method
    dataset: Dataset
    parts: list[Indices]
    test: Examples

    @classmethod
    def create(cls, config: RunConfig, threads: int = 1) -> "Federation":
        """Load, split, build. The codec takes `threads`; torch gets one, since on small models two are slower."""
        torch.set_num_threads(1)
        dataset = datasets.load(config.data, folder=config.data_dir, vocabulary=config.vocabulary, length=config.length)
        shape = tuple(dataset.train_x.shape[1:])
        network = Network.create(config.model, shape, dataset.classes, config.width, config.device)
        tested = slice(0, config.test_images or None)
        test = Examples(dataset.test_x[tested], dataset.test_y[tested])
        return cls(create(config, network, threads), dataset, split(config, dataset), test)

    def description(self) -> dict[str, object]:
        """The layers and their sizes, and how many examples of each class every client has (texts: how many)."""
        layout, labels = self.method.layout, self.dataset.train_y
        classes = self.dataset.classes if labels.ndim == 1 else 1
        counts = [
            np.bincount(labels[part], minlength=classes).tolist() if labels.ndim == 1 else [len(part)]
            for part in self.parts
        ]
        layers = [{"name": n, "size": size} for n, size in zip(layout.names, layout.sizes, strict=True)]
        return {"layers": layers, "split": counts, "classes": classes}

    def examples(self, client: int) -> Examples:
        """A client's data."""
        part = self.parts[client]
        return Examples(self.dataset.train_x[part], self.dataset.train_y[part])


def split(config: RunConfig, dataset: Dataset) -> list[Indices]:
    """Which training examples each client has."""
    rng = np.random.default_rng([config.seed, 0xDA7A])
    n = len(dataset.train_y)
    used = np.sort(rng.permutation(n)[: config.images]) if 0 < config.images < n else np.arange(n)
    labels = dataset.train_y[used]
    if config.split == "iid":
        parts = splits.iid(used.size, config.clients, config.seed)
    elif config.split == "natural":
        if dataset.train_owner is None:
            raise ValueError(f"{config.data} has no authors to split by; choose split iid, noniid or dirichlet")
        parts = splits.natural(dataset.train_owner[used], config.clients, config.seed)
    elif labels.ndim > 1:
        raise ValueError(f"{config.data} is text and has no classes to split by; choose split iid or natural")
    elif config.split == "noniid":
        parts = splits.paper_noniid(labels, config.clients, config.c_max, config.seed)
    else:
        parts = splits.dirichlet(labels, config.clients, config.alpha, config.seed)
    return [used[part] for part in parts]


def participants(config: RunConfig, round_: int) -> list[int]:
    """The clients of a round, from `(seed, round)` alone."""
    if config.participants == config.clients:
        return list(range(config.clients))
    rng = np.random.default_rng([config.seed, 0x9A27, round_])
    return sorted(rng.choice(config.clients, config.participants, replace=False).tolist())
