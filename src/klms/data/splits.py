"""How training examples are dealt to clients. Each split is a function of its arguments and an integer seed.

Every function returns one sorted array of indices for each client; the arrays are disjoint and none is empty.
"""

import numpy as np
import numpy.typing as npt

Indices = list[npt.NDArray[np.int64]]


def iid(n: int, clients: int, seed: int) -> Indices:
    """`n` examples dealt at random, in shares that differ by one at most.

    >>> [part.size for part in iid(10, 3, seed=1)]
    [4, 3, 3]
    """
    _check_clients(n, clients)
    order = np.random.default_rng(seed).permutation(n).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, clients)]


def paper_noniid(labels: npt.ArrayLike, clients: int, c_max: int, seed: int) -> Indices:
    """The paper's non-i.i.d. split (appendix E): sizes proportional to `j_n ~ U{10..100}`, `c_max` classes at most.

    The paper does not say how the classes are chosen. Here the largest client goes first: it draws `c_max` classes,
    each with probability proportional to what is left of it, and takes as evenly from them as they allow. If they do
    not hold enough it takes the `c_max` fullest classes instead, and if these do not either it stays smaller than
    planned; so a few examples (on MNIST with 100 clients, one in a thousand) are dealt to nobody.
    """
    y = _check_labels(labels)
    _check_clients(y.size, clients)
    if c_max < 1:
        raise ValueError(f"c_max must be at least 1, got {c_max}")
    rng = np.random.default_rng(seed)
    sizes = _sizes(y.size, rng.integers(10, 101, clients))
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
    """Each class is dealt in proportions `~ Dirichlet(alpha, ..., alpha)` of its own (Hsu et al., 2019).

    A client left with nothing is given one example of the client that has most.
    """
    y = _check_labels(labels)
    _check_clients(y.size, clients)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    rng = np.random.default_rng(seed)
    owner = np.empty(y.size, np.int64)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        shares = rng.dirichlet(np.full(clients, float(alpha)))
        if not np.isfinite(shares).all():  # alpha so small that every gamma variate underflows: one client has it all
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
    """One author a client. Of more authors than clients the most prolific are kept and the rest are left out.

    The seed decides which client is which author, so that a client's number says nothing of its size.

    >>> sorted(part.tolist() for part in natural([7, 7, 3, 9, 9, 9], clients=2, seed=0))
    [[0, 1], [3, 4, 5]]
    """
    authors, counts = np.unique(_check_labels(owners), return_counts=True)
    if not 1 <= clients <= authors.size:
        raise ValueError(f"clients must be in [1, {authors.size}], the number of authors, got {clients}")
    kept = authors[np.argsort(-counts, kind="stable")[:clients]]
    of = np.asarray(owners)
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of, kept, side="left", sorter=order)
    ends = np.searchsorted(of, kept, side="right", sorter=order)
    return [
        order[starts[i] : ends[i]].astype(np.int64) for i in np.random.default_rng(seed).permutation(clients).tolist()
    ]


def _sizes(n: int, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Shares of `n` proportional to `weights`, rounded down, none empty."""
    sizes: npt.NDArray[np.int64] = np.maximum(1, n * weights // weights.sum())
    while sizes.sum() > n:
        sizes[np.argmax(sizes)] -= 1
    return sizes


def _even_shares(capacities: npt.NDArray[np.int64], amount: int) -> npt.NDArray[np.int64]:
    """`amount`, or all that there is if that is less, spread as evenly as the capacities allow."""
    shares = np.zeros_like(capacities)
    amount = min(amount, int(capacities.sum()))
    for done, i in enumerate(np.argsort(capacities, kind="stable")):
        shares[i] = min(int(capacities[i]), amount // (capacities.size - done))
        amount -= int(shares[i])
    return shares


def _check_labels(labels: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError("one integer an example is needed; text has no labels to split by: use natural() or iid()")
    return array.astype(np.int64)


def _check_clients(n: int, clients: int) -> None:
    if not 1 <= clients <= n:
        raise ValueError(f"clients must be in [1, {n}], the number of examples, got {clients}")
