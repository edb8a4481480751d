"""The task of the clients in a panel's run: a network, the examples of all clients, a loss and a metric."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from klms.container import Array
from klms.data import splits
from klms.data.cache import location
from klms.data.cache import read as read_cached
from klms.data.load import get, load
from klms.data.text import Corpus
from klms.learning.learner import use_one_thread
from klms.learning.panel import networks

TEST = 2000
"""Number of examples that the metric is measured on."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz' "
_ALPHA = 0.3  # concentration of the Dirichlet distribution by which a skewed split distributes classes

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Task:
    """One federated learning problem. Randomness is a function of the seed, the round and the client."""

    model: nn.Module
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    labels: Array | None
    """Class of every training example, by which a split may be skewed."""
    loss: Loss
    learning_rate: float
    batch: int = 32
    adam: bool = False
    accuracy: bool = True
    """Whether the metric is the accuracy in per cent; otherwise it is the loss."""
    seed: int = 0
    parts: list[Array] = field(default_factory=list)

    def initial(self) -> dict[str, Array]:
        return {name: tensor.detach().numpy().copy() for name, tensor in self.model.state_dict().items()}

    def split(self, clients: int, *, skewed: bool) -> None:
        """Distribute the training examples to clients."""
        n = len(self.train[1])
        if skewed and self.labels is not None:
            self.parts = list(splits.dirichlet(self.labels, clients, _ALPHA, self.seed))
        else:
            self.parts = list(splits.iid(n, clients, self.seed))

    def trained(self, arrays: Mapping[str, Array], client: int, round_: int) -> dict[str, Array]:
        """Return the arrays after an epoch on a client's examples."""
        self._take(arrays)
        self.model.train()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, self.learning_rate, momentum=0.9)
        if self.adam:
            optimizer = torch.optim.Adam(parameters, self.learning_rate)
        rng = np.random.default_rng([self.seed, round_, client])
        order = rng.permutation(self.parts[client])
        for start in range(0, order.size, self.batch):
            chosen = torch.from_numpy(order[start : start + self.batch])
            if len(chosen) < 2:
                continue  # batch normalisation needs two
            optimizer.zero_grad()
            self.loss(self.model(self.train[0][chosen]), self.train[1][chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return self.initial()

    def metric(self, arrays: Mapping[str, Array]) -> float:
        self._take(arrays)
        self.model.eval()
        with torch.no_grad():
            out = self.model(self.test[0])
            if self.accuracy:
                return 100 * float((out.argmax(1) == self.test[1]).float().mean())
            return float(self.loss(out, self.test[1]))

    def _take(self, arrays: Mapping[str, Array]) -> None:
        self.model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})


def make(kind: str, clients: int, seed: int, *, skewed: bool = False) -> Task:
    """Return the task of this kind with its examples distributed to clients."""
    use_one_thread()
    torch.manual_seed(seed)
    task = KINDS[kind](seed)
    task.seed = seed
    task.split(clients, skewed=skewed)
    return task


@cache
def _images(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    data = load(name)
    parts = (data.train_x[:20_000], data.train_y[:20_000], data.test_x[:TEST], data.test_y[:TEST])
    train, labels, test, test_labels = (torch.from_numpy(np.ascontiguousarray(part)) for part in parts)
    return train.float() / 255 - 0.3, labels, test.float() / 255 - 0.3, test_labels


def _classified(name: str, seed: int, count: int, side: int, model: nn.Module, rate: float, **settings: object) -> Task:
    train, labels, test, test_labels = _images(name)
    chosen = torch.from_numpy(np.random.default_rng([seed, 1]).permutation(len(labels))[:count])
    x = train[chosen]
    if side == 14:
        x = functional.avg_pool2d(x, 2)
        test = functional.avg_pool2d(test, 2)
    y = labels[chosen]
    return Task(model, (x, y), (test, test_labels), y.numpy(), functional.cross_entropy, rate, **settings)  # type: ignore[arg-type]


@cache
def _corpus() -> Corpus:
    get("shakespeare")
    corpus = read_cached(location("shakespeare"), "shakespeare")
    assert isinstance(corpus, Corpus)
    return corpus


@cache
def characters(documents: int) -> tuple[Array, Array]:
    """Return training and test text as indices of letters, each from at most `documents` documents."""
    corpus = _corpus()
    texts = []
    for held_out in (False, True):
        chosen = np.flatnonzero(corpus.held_out == held_out)[:documents]
        words = (
            corpus.words[token] for n in chosen for token in corpus.tokens[corpus.bounds[n] : corpus.bounds[n + 1]]
        )
        text = " ".join(words).replace("\u2019", "'")
        texts.append(np.array([_LETTERS.index(letter) for letter in text if letter in _LETTERS], np.int64))
    return texts[0], texts[1]


def windows(text: Array, length: int, count: int) -> tuple[Tensor, Tensor]:
    """Return at most `count` stretches of a text, and for each of their letters the letter that follows."""
    count = min(count, (text.size - 1) // length)
    x = text[: count * length].reshape(count, length)
    y = text[1 : count * length + 1].reshape(count, length)
    return torch.from_numpy(x), torch.from_numpy(y)


def next_letter(out: Tensor, y: Tensor) -> Tensor:
    """Return the loss of predicting letters."""
    return functional.cross_entropy(out.flatten(0, -2), y.flatten())


def _text(seed: int, model: nn.Module, length: int, count: int, rate: float) -> Task:
    text, held_out = characters(3000)
    start = int(np.random.default_rng([seed, 2]).integers(0, text.size - count * length - 1))
    train = windows(text[start:], length, count)
    test = windows(held_out, length, 16_000 // length)
    return Task(model, train, test, None, next_letter, rate, adam=True, accuracy=False)


def _words(seed: int) -> Task:
    data = load("shakespeare", vocabulary=1000, length=4)

    def pairs(x: Array, y: Array, count: int) -> tuple[Tensor, Tensor]:
        whole = (x != 0).all(1) & (y[:, -1] != 0)
        kept = np.random.default_rng([seed, 3]).permutation(np.flatnonzero(whole))[:count]
        return torch.from_numpy(x[kept, 1:]), torch.from_numpy(y[kept, -1])

    train = pairs(data.train_x, data.train_y, 12_000)
    test = pairs(data.test_x, data.test_y, 4 * TEST)
    return Task(networks.Words(), train, test, None, functional.cross_entropy, 3e-3, adam=True, accuracy=False)


@cache
def _frozen() -> list[tuple[Tensor, Tensor]]:
    """Return the layers of a network that was trained on digits."""
    train, labels, _, _ = _images("mnist")
    layers = [nn.Linear(784, 256), nn.Linear(256, 256), nn.Linear(256, 10)]
    net = nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for start in range(0, 20_000, 64):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(train[start : start + 64]), labels[start : start + 64])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [(layer.weight.detach(), layer.bias.detach()) for layer in layers]


def _lora(seed: int) -> Task:
    torch.manual_seed(1000)
    frozen = _frozen()
    torch.manual_seed(seed)
    return _classified("fashion-mnist", seed, 2000, 28, networks.Adapted(frozen), 5e-3, adam=True)


def _autoencoder(seed: int) -> Task:
    task = _classified("mnist", seed, 3000, 14, networks.Autoencoder(), 1e-3, adam=True, accuracy=False)
    task.train = (task.train[0], task.train[0].flatten(1))
    task.test = (task.test[0], task.test[0].flatten(1))
    task.loss = functional.mse_loss
    return task


def _ratings(seed: int) -> Task:
    users, items, rank = 1000, 800, 3
    rng = np.random.default_rng([seed, 4])
    factors = rng.standard_normal((users, rank)), rng.standard_normal((items, rank))
    pairs = np.stack([rng.integers(0, users, 84_000), rng.integers(0, items, 84_000)], 1)
    noise = 0.3 * rng.standard_normal(len(pairs))
    ratings = (factors[0][pairs[:, 0]] * factors[1][pairs[:, 1]]).sum(1) / np.sqrt(rank) + noise
    x, y = torch.from_numpy(pairs), torch.from_numpy(ratings.astype(np.float32))
    train, test = (x[:80_000], y[:80_000]), (x[80_000:], y[80_000:])
    return Task(networks.Factors(), train, test, None, functional.mse_loss, 1e-2, batch=256, adam=True, accuracy=False)


KINDS: dict[str, Callable[[int], Task]] = {
    "transformer": lambda seed: _classified("mnist", seed, 2000, 14, networks.Transformer(), 5e-3, adam=True),
    "mixer": lambda seed: _classified("fashion-mnist", seed, 2000, 28, networks.Mixer(), 5e-3, adam=True),
    "gru": lambda seed: _text(seed, networks.GRU(), 32, 1000, 5e-3),
    "gpt": lambda seed: _text(seed, networks.GPT(), 32, 800, 5e-3),
    "resnet, group norm": lambda seed: _classified("mnist", seed, 1000, 14, networks.ResNet("group"), 5e-3, adam=True),
    "resnet, batch norm": lambda seed: _classified("mnist", seed, 1000, 14, networks.ResNet("batch"), 2e-3, adam=True),
    "words": _words,
    "lora": _lora,
    "autoencoder": _autoencoder,
    "factors": _ratings,
    "lenet": lambda seed: _classified("mnist", seed, 2000, 28, networks.LeNet(), 0.05),
    "cnn": lambda seed: _classified("fashion-mnist", seed, 2000, 28, networks.CNN(), 0.05),
}
