"""Torch's PowerSGD hook on two processes over gloo. Gradients are the updates of two clients.

The hook averages while it codes, so no client has a message of its own, and there is no time for decoding. Bytes are
those that a process passes to `all_reduce`.
"""

import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from peer import errors, flat, read, show
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

PROCESSES = 2


class Gradients(nn.Module):
    """A model whose gradients are the given arrays."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        super().__init__()
        self.arrays = [torch.from_numpy(array) for array in arrays]
        self.held = nn.ParameterList([nn.Parameter(torch.zeros_like(array)) for array in self.arrays])

    def forward(self) -> torch.Tensor:
        """Return a sum whose gradients are the arrays."""
        return sum((p * g).sum() for p, g in zip(self.held, self.arrays, strict=True))


def run(rank: int, port: int, power: int, results) -> None:
    """Average the gradients of both processes once, and let the first one report."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=PROCESSES)
    _, updates = read()
    model = DistributedDataParallel(Gradients(list(updates[rank].values())), bucket_cap_mb=1 << 12)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=power, start_powerSGD_iter=2, use_error_feedback=False, warm_start=False
    )
    sent = 0
    reduce = dist.all_reduce

    def counted(tensor: torch.Tensor, *args, **kwargs):
        nonlocal sent
        sent += tensor.numel() * tensor.element_size()
        return reduce(tensor, *args, **kwargs)

    for _ in range(2):  # the first iterations are not compressed
        model().backward()
        model.zero_grad()
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(2):
        model.zero_grad()
        model().backward()
    dist.all_reduce = counted
    model.zero_grad()
    start = time.process_time()
    model().backward()
    seconds = time.process_time() - start
    if rank == 0:
        averaged = np.concatenate([p.grad.numpy().reshape(-1) for p in model.module.held])
        results.put((averaged, sent, seconds))
    dist.destroy_process_group()


def main() -> None:
    """Print a row for every rank of the approximation."""
    kind, updates = read()
    truth = [flat(update) for update in updates[:PROCESSES]]
    context = mp.get_context("spawn")
    for power in (1, 4):
        results = context.Queue()
        port = 29_500 + power
        workers = [context.Process(target=run, args=(rank, port, power, results)) for rank in range(PROCESSES)]
        for worker in workers:
            worker.start()
        averaged, sent, seconds = results.get(timeout=600)
        for worker in workers:
            worker.join()
        _, error = errors(truth, [averaged] * PROCESSES)
        total = PROCESSES * sent
        show("PowerSGD", kind, f"rank {power}", PROCESSES, truth[0].size, total, None, error, PROCESSES * seconds, 0.0)


if __name__ == "__main__":
    main()
