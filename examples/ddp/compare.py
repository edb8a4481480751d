"""DistributedDataParallel on MNIST with two processes: loss and accuracy against bytes, with klms and without.

    python examples/ddp/compare.py --steps 300

Every way trains LeNet with the same batches. A process sends its whole gradient in every step, in float32; or the
factors of PowerSGD's hook, which is torch's own; or messages of klms.
"""

import argparse
import os
import socket
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import klms.data
import klms.ddp

WAYS = ("float32", "powerSGD rank 1", "powerSGD rank 4", "klms 2", "klms 0.5", "klms 0.1")
PROCESSES = 2
BATCH = 64


def network() -> torch.nn.Module:
    """Return a LeNet for MNIST."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 20, 5),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(20, 50, 5),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(800, 500),
        torch.nn.ReLU(),
        torch.nn.Linear(500, 10),
    )


def register(way: str, model: DistributedDataParallel) -> object:
    """Register the hook of a way of averaging gradients, and return its state."""
    name, _, setting = way.partition(" ")
    if name == "klms":
        state = klms.ddp.CompressionState(bits_per_parameter=float(setting))
        model.register_comm_hook(state, klms.ddp.compression_hook)
        return state
    if name == "powerSGD":
        rank = int(setting.split()[1])
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return state
    return None


def sent_bytes(state: object, parameters: int, steps: int) -> int:
    """Return the bytes of a process's gradients or messages in all steps."""
    if isinstance(state, klms.ddp.CompressionState):
        return state.sent_bytes
    if state is None:
        return 4 * parameters * steps
    before_start = 4 * parameters * state.start_powerSGD_iter
    return before_start + 4 * state.total_numel_after_compression


def train(rank: int, port: int, way: str, steps: int, lr: float) -> None:
    """Train as one of the processes, and print the row of the table."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    data = klms.data.load("mnist")
    images = torch.from_numpy(data.train_x).float() / 255
    labels = torch.from_numpy(data.train_y)
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    state = register(way, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    batches = np.random.default_rng([1, rank])

    losses = []
    start = time.perf_counter()
    for _ in range(steps):
        chosen = torch.from_numpy(batches.integers(0, len(labels), BATCH))
        loss = cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - start

    if rank == 0:
        with torch.no_grad():
            right = model.module(torch.from_numpy(data.test_x).float() / 255).argmax(1) == torch.from_numpy(data.test_y)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        sent = sent_bytes(state, parameters, steps)
        last = float(np.mean(losses[-50:]))
        accuracy = right.float().mean().item()
        bits = 8 * sent / parameters / steps
        print(f"{way:16} {sent / 1e6:10.2f} {bits:10.3f} {last:10.4f} {accuracy:10.4f} {1e3 * seconds / steps:9.0f}")
    dist.destroy_process_group()


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    """Print a table of all ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--only", action="append", choices=WAYS)
    given = parser.parse_args()
    header = ("megabytes", "bits", "loss", "accuracy", "ms/step")
    print(f"{'':16} " + " ".join(f"{name:>{width}}" for name, width in zip(header, (10, 10, 10, 10, 9), strict=True)))
    for way in given.only or WAYS:
        torch.multiprocessing.spawn(train, (free_port(), way, given.steps, given.lr), PROCESSES)


if __name__ == "__main__":
    main()
