"""A method together with its clients' data: what every process of a run works on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, NonNegativeInt, field_validator

from klms import data as datasets
from klms.codec import MAX_COORDINATES
from klms.data import Dataset, splits
from klms.errors import InvalidArgument, MissingExtra
from klms.learning.examples import Examples, examples_from
from klms.methods.base import Method
from klms.methods.entry import Setup
from klms.methods.table import METHODS, RunConfig

if TYPE_CHECKING:
    from torch import nn

    from klms.learning.network import Loss, Network

Indices = npt.NDArray[np.int64]
OWN = "own"
"""Name, in a run's configuration, of a model and of data that the user passed in."""


class ClientData(Protocol):
    """The clients' examples by client number, in any form that `examples_from` reads."""

    def __getitem__(self, client: int, /) -> Any: ...


class Layer(BaseModel, frozen=True):
    """A layer of the model. Layers are listed in the order of the parameter vector."""

    name: str
    size: NonNegativeInt


class RunDescription(BaseModel, frozen=True):
    """The model that a run trained, and its data."""

    layers: tuple[Layer, ...] = ()
    split: tuple[tuple[NonNegativeInt, ...], ...] = ()
    """Number of examples per class for each client, if known; one number per client if there are no classes."""
    tested: NonNegativeInt = 0
    """Number of test examples."""

    @field_validator("split")
    @classmethod
    def _rectangular(cls, split: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        if len({len(client) for client in split}) > 1 or () in split:
            raise ValueError("clients have different numbers of classes, or none")
        return split

    def difference(self, other: "RunDescription") -> str:
        """Return the first difference in the model or the data, in words; an empty string if there is none.

        What one of the two descriptions leaves out, such as the split on a Flower server, is not compared.
        """
        if self.layers and other.layers:
            for mine, theirs in zip_longest(self.layers, other.layers):
                if mine != theirs:
                    return f"another model: {_layer(mine)} instead of {_layer(theirs)}"
        if self.split and other.split:
            for client, (mine, theirs) in enumerate(zip_longest(self.split, other.split, fillvalue=())):
                if sum(mine) != sum(theirs):
                    return f"other data: client {client} had {sum(mine):,} examples instead of {sum(theirs):,}"
                if mine != theirs:
                    return f"other data: client {client} had other numbers of examples per class"
        if self.tested and other.tested and self.tested != other.tested:
            return f"other data: {self.tested:,} test examples instead of {other.tested:,}"
        return ""


def _layer(layer: Layer | None) -> str:
    return f"the layer {layer.name} of {layer.size:,} parameters" if layer else "no further layer"


@dataclass(frozen=True)
class Federation:
    """A method, its clients' data and its test data."""

    method: Method
    clients: ClientData
    test: Examples | None
    description: RunDescription
    recipe: "Callable[..., Federation]"
    """Function of `threads` that makes the same federation in another process."""
    seeded: bool = True
    """Whether the clients' private randomness is a function of the run's seed."""

    @classmethod
    def create(cls, config: RunConfig, threads: int = 1) -> "Federation":
        """Build the federation of a data set and a model by name. The codec uses `threads` threads."""
        if OWN in (config.data, config.model):
            raise InvalidArgument("this run has a model and data of your own: resume it with klms.federate(folder=...)")
        network_type = _network_type(config.device)
        dataset = datasets.load(config.data, folder=config.data_dir, vocabulary=config.vocabulary, length=config.length)
        shape = tuple(dataset.train_x.shape[1:])
        _check_size(config, shape, dataset.classes)
        network = network_type.create(config.model, shape, dataset.classes, config.width, config.device)
        count = config.test_images or None
        test = Examples(dataset.test_x[:count], dataset.test_y[:count])
        clients = Parts(dataset, split(config, dataset))
        return cls._of(config, network, clients, test, threads, partial(cls.create, config))

    @classmethod
    def of(
        cls,
        config: RunConfig,
        model: "nn.Module",
        clients: ClientData,
        test: Any = None,
        *,
        loss: "Loss | None" = None,
        threads: int = 1,
    ) -> "Federation":
        """Build the federation of the user's own model and data."""
        network = _network_type(config.device).of(model, loss=loss, device=config.device)
        tested = None if test is None else network.check_labels(examples_from(test))
        if isinstance(clients, Sequence):
            clients = [network.check_labels(examples_from(data)) for data in clients]
        recipe = partial(cls.of, config, model, clients, tested, loss=loss)
        return cls._of(config, network, clients, tested, threads, recipe)

    @classmethod
    def _of(
        cls,
        config: RunConfig,
        network: "Network",
        clients: ClientData,
        test: Examples | None,
        threads: int,
        recipe: "Callable[..., Federation]",
    ) -> "Federation":
        from klms.learning.learner import Learner, use_one_thread

        use_one_thread()
        labels = [clients[n].y for n in range(len(clients))] if isinstance(clients, list | Parts) else []
        examples = sum(map(len, labels)) or None
        method = METHODS[config.method].make(Setup(config, Learner(network), threads, examples))
        layout = method.layout
        layers = [Layer(name=name, size=size) for name, size in zip(layout.names, layout.sizes, strict=True)]
        tested = 0 if test is None else len(test)
        description = RunDescription(layers=layers, split=_examples_per_class(labels), tested=tested)
        return cls(method, clients, test, description, recipe, config.seeded)

    def examples(self, client: int) -> Examples:
        return self.method.learner.network.check_labels(examples_from(self.clients[client]))

    def private_rng(self, round_: int, client: int) -> np.random.Generator:
        """Return the randomness that a client keeps to itself."""
        return self.method.private_rng(round_, client) if self.seeded else np.random.default_rng()


@dataclass(frozen=True)
class Parts:
    """A data set, split over clients."""

    dataset: Dataset
    indices: list[Indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, client: int) -> Examples:
        return Examples(self.dataset.train_x[self.indices[client]], self.dataset.train_y[self.indices[client]])


def _network_type(device: str) -> "type[Network]":
    """Return the `Network` class; raise an error if torch or the device is not available, before any data is read."""
    try:
        from klms.learning.network import Network, pick_device
    except ModuleNotFoundError as error:
        raise MissingExtra.told(f"training needs {error.name}", "learn") from error
    pick_device(device)
    return Network


def _check_size(config: RunConfig, shape: tuple[int, ...], classes: int) -> None:
    """Raise an error if there is no such model, or none that a message can hold, before it is allocated."""
    from klms.learning.models import count_parameters

    count = count_parameters(config.model, shape, classes, config.width)
    if count > MAX_COORDINATES:
        raise InvalidArgument(
            f"{config.model} at width {config.width:g} has {count:,} parameters, but a message holds at most "
            f"{MAX_COORDINATES:,}: set a smaller width"
        )


def split(config: RunConfig, dataset: Dataset) -> list[Indices]:
    """Return the indices of each client's training examples."""
    rng = np.random.default_rng([config.seed, 0xDA7A])
    n = len(dataset.train_y)
    used = np.sort(rng.permutation(n)[: config.images]) if 0 < config.images < n else np.arange(n)
    labels = dataset.train_y[used]
    if config.split == "iid":
        parts = splits.iid(used.size, config.clients, config.seed)
    elif config.split == "natural":
        if dataset.train_owner is None:
            raise InvalidArgument(f"{config.data} has no authors to split by; choose split iid, noniid or dirichlet")
        parts = splits.natural(dataset.train_owner[used], config.clients, config.seed)
    elif labels.ndim > 1:
        raise InvalidArgument(f"{config.data} is text and has no classes to split by; choose split iid or natural")
    elif config.split == "noniid":
        parts = splits.paper_noniid(labels, config.clients, config.c_max, config.seed)
    else:
        parts = splits.dirichlet(labels, config.clients, config.alpha, config.seed)
    return [used[part] for part in parts]


def _examples_per_class(labels: list[npt.NDArray[Any]]) -> list[list[int]]:
    """Return every client's number of examples of each class, or of all its examples if labels are not classes."""
    together = np.concatenate(labels) if labels else np.zeros(0)
    if together.dtype.kind not in "iu" or together.ndim != 1 or together.size == 0 or together.min() < 0:
        return [[len(y)] for y in labels]
    return [np.bincount(y, minlength=int(together.max()) + 1).tolist() for y in labels]


def participants(config: RunConfig, round_: int) -> list[int]:
    """Return the clients of a round, drawn as a function of `(seed, round)` alone."""
    if config.participants == config.clients:
        return list(range(config.clients))
    rng = np.random.default_rng([config.seed, 0x9A27, round_])
    return sorted(rng.choice(config.clients, config.participants, replace=False).tolist())
