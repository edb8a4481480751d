"""How workers without a server average their updates: they gather messages, or sum factors as PowerSGD does."""

from collections.abc import Sequence

import numpy as np

from klms.codec import SharedKey
from klms.compressors.base import Compressor
from klms.container import Arrays
from klms.experiments.panel.channels import Average, Names, Train
from klms.numerics.jit import Float32, Float64


class _Peers:
    """Workers that hold the same model, since all of them compute the same average and the same step."""

    def __init__(self, model: Arrays, names: Names, workers: int) -> None:
        self.model = model
        self.uplink_bytes = 0
        """Bytes that workers sent."""
        self.downlink_bytes = 0
        """Bytes that workers received."""
        self.names = names
        self.left_out = [np.zeros(sum(names.sizes), dtype=np.float32) for _ in range(workers)]
        """Residual of each worker, which error feedback adds to its next update."""

    @property
    def view(self) -> Arrays:
        return self.model

    def step(self, model: Arrays) -> dict[str, float]:
        self.model = model
        return {}

    def updates(self, train: Train) -> list[Float32]:
        start = self.names.flat(self.model)
        trained = (self.names.flat(train(self.model, worker)) for worker in range(len(self.left_out)))
        return [np.asarray(one - start, dtype=np.float32) for one in trained]


class Gathered(_Peers):
    """Every worker sends one message to all others, and averages all decoded messages, including its own."""

    def __init__(
        self, model: Arrays, names: Names, workers: int, compressor: Compressor, *, seed: int, feedback: bool
    ) -> None:
        super().__init__(model, names, workers)
        self._compressor = compressor
        self._seed = seed
        self._feedback = feedback
        self._round = 0

    def average(self, train: Train, weights: Float64) -> Average:
        self._round += 1
        mean = np.zeros(self._compressor.d)
        for worker, update in enumerate(self.updates(train)):
            mean += weights[worker] * self._sent(worker, update)
        return Average(mean, {})

    def _sent(self, worker: int, update: Float32) -> Float32:
        """Return the update that all workers decode from one worker's message."""
        wanted = update + self.left_out[worker]
        key = SharedKey(self._seed, self._round, worker)
        rng = np.random.default_rng([self._seed, self._round, worker])
        message = self._compressor.encode(wanted, {}, key=key, rng=rng)
        decoded = np.asarray(self._compressor.decode(message, {}, key=key).vector, dtype=np.float32)
        if self._feedback:
            self.left_out[worker] = wanted - decoded
        self.uplink_bytes += len(message)
        self.downlink_bytes += len(message) * (len(self.left_out) - 1)
        return decoded


class PowerSGD(_Peers):
    """Sends matrices as products of two factors, with error feedback (Vogels et al., 2019).

    Workers sum first one factor, and then the other.

    Factors, and arrays that are not matrices, are sent in half precision. A worker sends its part of a sum, and
    receives the sum.
    """

    def __init__(self, model: Arrays, names: Names, workers: int, rank: int, *, seed: int) -> None:
        super().__init__(model, names, workers)
        rng = np.random.default_rng(seed)
        self._factors = {
            place: rng.standard_normal((shape[1], rank)).astype(np.float32)
            for place, shape in enumerate(names.shapes)
            if len(shape) == 2 and rank * sum(shape) < shape[0] * shape[1]
        }

    def average(self, train: Train, weights: Float64) -> Average:
        wanted = [update + left for update, left in zip(self.updates(train), self.left_out, strict=True)]
        split = [self._split(one) for one in wanted]
        whole = [place for place in range(len(self.names.sizes)) if place not in self._factors]
        right = {place: _orthogonal(factor) for place, factor in self._factors.items()}

        first = [[*(one[n] @ right[n] for n in right), *(one[n] for n in whole)] for one in split]
        sums = self._sum(first, weights)
        left = {place: _orthogonal(factor) for place, factor in zip(right, sums, strict=False)}
        averaged = dict(zip(whole, sums[len(right) :], strict=True))

        second = [[one[n].T @ left[n] for n in left] for one in split]
        self._factors = dict(zip(left, self._sum(second, weights), strict=True))

        averaged |= {place: left[place] @ factor.T for place, factor in self._factors.items()}
        mean = np.concatenate([averaged[place].ravel() for place in range(len(self.names.sizes))])
        self.left_out = [one - mean for one in wanted]
        return Average(mean.astype(np.float64), {})

    def _split(self, vector: Float32) -> list[Float32]:
        parts = np.split(vector, np.cumsum(self.names.sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.names.shapes, strict=True)]

    def _sum(self, by_worker: Sequence[Sequence[Float32]], weights: Float64) -> list[Float32]:
        """Return the weighted sums of the workers' arrays, and count the bytes of both directions."""
        messages = [b"".join(array.astype("<f2").tobytes() for array in arrays) for arrays in by_worker]
        decoded = [np.frombuffer(message, dtype="<f2").astype(np.float64) for message in messages]
        summed = np.sum([weight * one for weight, one in zip(weights, decoded, strict=True)], axis=0)
        answer = summed.astype("<f2").tobytes()
        self.uplink_bytes += sum(map(len, messages))
        self.downlink_bytes += len(answer) * len(messages)
        vector = np.frombuffer(answer, dtype="<f2").astype(np.float32)
        ends = np.cumsum([array.size for array in by_worker[0]])[:-1]
        parts = zip(np.split(vector, ends), by_worker[0], strict=True)
        return [part.reshape(array.shape) for part, array in parts]


def _orthogonal(factor: Float32) -> Float32:
    return np.linalg.qr(factor)[0].astype(np.float32)
