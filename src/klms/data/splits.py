"""Splits of the training examples among clients, each determined by its arguments and an integer seed.

Every function returns one sorted array of indices per client; the arrays are disjoint and none is empty.
"""

import numpy as np
import numpy.typing as npt

from klms.errors import InvalidArgument
from klms.numerics.checks import integer

Indices = list[npt.NDArray[np.int64]]

_MAX = (1 << 63) - 1


def iid(n: int, clients: int, seed: int) -> Indices:
    """Deal `n` examples at random, in shares that differ by one example at most.

    >>> [part.size for part in iid(10, 3, seed=1)]
    [4, 3, 3]
    """
    _check_clients(n, clients)
    order = _generator(seed).permutation(n).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, clients)]


def paper_noniid(labels: npt.ArrayLike, clients: int, c_max: int, seed: int) -> Indices:
    """The paper's non-i.i.d. split (appendix E): sizes proportional to `j_n ~ U{10..100}`, up to `c_max` classes each.

    The paper does not say how the classes are chosen. Here the clients choose in order of decreasing size: each draws
    `c_max` classes with probabilities proportional to their numbers of remaining examples, and takes examples from
    these classes as evenly as possible. If they do not hold enough examples, the client takes the `c_max` fullest
    classes instead, and if these do not hold enough either, the client stays smaller than planned. Therefore a few
    examples (one in a thousand on MNIST with 100 clients) are not used.
    """
    y = _check_labels(labels, clients)
    c_max = integer("c_max", c_max, 1, _MAX)
    rng = _generator(seed)
    weights = rng.integers(10, 101, clients)
    sizes = np.maximum(1, y.size * weights // weights.sum())
    while sizes.sum() > y.size:
        sizes[np.argmax(sizes)] -= 1
    pools = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    left = np.array([pool.size for pool in pools], dtype=np.int64)
    parts: Indices = [np.empty(0, np.int64)] * clients
    for client in np.argsort(-sizes, kind="stable"):
        count = min(c_max, int(np.count_nonzero(left)))
        chosen = rng.choice(left.size, count, replace=False, p=left / left.sum())
        if left[chosen].sum() < sizes[client]:
            chosen = np.argsort(-left, kind="stable")[:count]
        taken = []
        for label, amount in zip(chosen, _even_shares(left[chosen], int(sizes[client])), strict=True):
            taken.append(pools[label][left[label] - amount : left[label]])
            left[label] -= amount
        parts[client] = np.sort(np.concatenate(taken)).astype(np.int64)
    return parts


def dirichlet(labels: npt.ArrayLike, clients: int, alpha: float, seed: int) -> Indices:
    """Deal each class in proportions drawn from `Dirichlet(alpha, ..., alpha)` (Hsu et al., 2019).

    A client that would get no example receives one from the client with the most examples.
    """
    y = _check_labels(labels, clients)
    if isinstance(alpha, bool) or not (isinstance(alpha, (int, float, np.number)) and 0 < alpha < np.inf):
        raise InvalidArgument(f"alpha must be a positive, finite number, got {alpha!r}")
    rng = _generator(seed)
    owner = np.empty(y.size, np.int64)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        shares = rng.dirichlet(np.full(clients, min(float(alpha), 1e100)))  # the sum of larger variates overflows
        if not np.isfinite(shares).all():  # alpha is so small that every gamma variate underflows: one client gets all
            shares = np.eye(clients)[rng.integers(clients)]
        cuts = np.rint(np.cumsum(shares)[:-1] * members.size).astype(np.int64)
        for client, part in enumerate(np.split(members, cuts)):
            owner[part] = client
    counts = np.bincount(owner, minlength=clients)
    for empty in np.flatnonzero(counts == 0):
        giver = int(np.argmax(counts))
        owner[rng.choice(np.flatnonzero(owner == giver))] = empty
        counts[giver] -= 1
        counts[empty] += 1
    return [np.flatnonzero(owner == client) for client in range(clients)]


def natural(owners: npt.ArrayLike, clients: int, seed: int) -> Indices:
    """Give each client the examples of one author; if there are too many authors, the most prolific ones are kept.

    The seed decides which client gets which author, so that a client's number does not reveal how many examples it has.

    >>> sorted(part.tolist() for part in natural([7, 7, 3, 9, 9, 9], clients=2, seed=0))
    [[0, 1], [3, 4, 5]]
    """
    of = _check_labels(owners)
    counts = np.unique(of, return_counts=True)[1]
    clients = integer("clients (one per author)", clients, 1, counts.size)
    by_author = np.split(np.argsort(of, kind="stable"), np.cumsum(counts)[:-1])
    kept = np.argsort(-counts, kind="stable")[:clients]
    return [by_author[author] for author in kept[_generator(seed).permutation(clients)]]


def _even_shares(capacities: npt.NDArray[np.int64], amount: int) -> npt.NDArray[np.int64]:
    """Divide `amount` as evenly as the capacities allow; if their sum is below `amount`, use all of them."""
    shares = np.zeros_like(capacities)
    amount = min(amount, int(capacities.sum()))
    for done, i in enumerate(np.argsort(capacities, kind="stable")):
        shares[i] = min(int(capacities[i]), amount // (capacities.size - done))
        amount -= int(shares[i])
    return shares


def _check_labels(labels: npt.ArrayLike, clients: int = 1) -> npt.NDArray[np.int64]:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidArgument(
            "the labels must be one integer per example; text has no labels, so split it with natural() or iid()"
        )
    _check_clients(array.size, clients)
    return array.astype(np.int64)


def _check_clients(n: int, clients: int) -> None:
    integer("clients", clients, 1, integer("n, the number of examples,", n, 1, _MAX))


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(integer("seed", seed, 0, _MAX))
