"""The task of the experiment `diloco`: workers train a small GPT on Shakespeare, each on its own stretch of text."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from klms.container import Array
from klms.learning.panel import networks
from klms.learning.panel.tasks import Task, characters, next_letter, windows

LENGTH = 64
STEPS = 10
"""Number of steps of every worker in a round."""
_DOCUMENTS = 1 << 20  # all of them
_TESTED = 256  # windows


@dataclass
class TextWorkers(Task):
    """Workers that take part in every round: each keeps the state of its AdamW from round to round."""

    optimizers: dict[int, torch.optim.Optimizer] = field(default_factory=dict)

    def trained(self, arrays: Mapping[str, Array], client: int, round_: int) -> dict[str, Array]:
        """Return the arrays after a few steps on a worker's text."""
        self._take(arrays)
        self.model.train()
        if client not in self.optimizers:
            self.optimizers[client] = torch.optim.AdamW(self.model.parameters(), self.learning_rate)
        optimizer = self.optimizers[client]
        rng = np.random.default_rng([self.seed, round_, client])
        for _ in range(STEPS):
            chosen = torch.from_numpy(rng.choice(self.parts[client], self.batch))
            optimizer.zero_grad()
            self.loss(self.model(self.train[0][chosen]), self.train[1][chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return self.initial()


def make(workers: int, seed: int) -> TextWorkers:
    """Return the task with its text divided among the workers."""
    torch.manual_seed(seed)
    model = networks.GPT(LENGTH, width=72, layers=4)
    text, held_out = characters(_DOCUMENTS)
    train = windows(text, LENGTH, text.size)
    test = windows(held_out, LENGTH, _TESTED)
    task = TextWorkers(model, train, test, None, next_letter, 2e-3, batch=8, accuracy=False, seed=seed)
    share = len(train[0]) // workers
    task.parts = [np.arange(worker * share, (worker + 1) * share) for worker in range(workers)]
    return task
