"""DistributedDataParallel on MNIST with two processes: loss and accuracy against bytes, with klms and without.

    python examples/ddp/compare.py --steps 300 --out results/ddp.json --picture docs/figures/ddp.png

All runs train LeNet with the same batches. In every step, a process sends its whole gradient in float32, the factors of
torch's own PowerSGD hook, or a message of klms. Bytes are those that one process sends. For PowerSGD, they include the
vectors that it leaves uncompressed, and its first two steps, which it does not compress.
"""

import argparse
import json
import os
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import klms.data
import klms.ddp

WAYS = (
    "float32",
    *(f"powerSGD rank {rank}" for rank in (4, 2, 1)),
    *(f"klms {bits}" for bits in (2, 1, 0.5, 0.2, 0.1)),
)
PROCESSES = 2
BATCH = 64
LAST = 50
"""Steps over which the loss is averaged."""


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
    """Register the hook for one of `WAYS`, and return the hook's state."""
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


def train(rank: int, port: int, way: str, given: argparse.Namespace, found: Path) -> None:
    """Train as one of the processes; the first process writes the results to a file."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    data = klms.data.load("mnist")
    images = torch.from_numpy(data.train_x).float() / 255
    labels = torch.from_numpy(data.train_y)
    torch.manual_seed(given.seed)
    # One bucket: with two, PowerSGD starts two sums, which the processes may receive in different orders.
    model = DistributedDataParallel(network(), bucket_cap_mb=25)
    state = register(way, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)
    batches = np.random.default_rng([1 + given.seed, rank])

    losses = []
    start = time.perf_counter()
    for _ in range(given.steps):
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
        sent = sent_bytes(state, parameters, given.steps)
        row = {
            "bytes": sent,
            "bits": 8 * sent / parameters / given.steps,
            "loss": float(np.mean(losses[-LAST:])),
            "accuracy": right.float().mean().item(),
            "ms_per_step": 1e3 * seconds / given.steps,
        }
        found.write_text(json.dumps({name: float(f"{value:.5g}") for name, value in row.items()} | {"bytes": sent}))
    dist.destroy_process_group()


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def draw(rows: dict[str, dict[str, float]], path: Path) -> None:
    """Draw the loss against the bits per parameter of a step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for family, marker in (("klms", "o"), ("powerSGD", "s")):
        points = sorted((row["bits"], row["loss"]) for way, row in rows.items() if way.startswith(family))
        axes.plot(*zip(*points, strict=True), marker=marker, label=family)
    axes.axhline(rows["float32"]["loss"], color="black", linewidth=1, label="no hook, 32 bits")
    axes.set(xscale="log", xlabel="bits per parameter and step", ylabel=f"loss of the last {LAST} steps")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print a table with a line for each of `WAYS`, write it as JSON and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=WAYS)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--picture", type=Path, help="PNG file; needs all ways")
    given = parser.parse_args()
    rows = {}
    print("| way | megabytes | bits per parameter | loss | accuracy | ms per step |\n" + "| --- " * 6 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for way in given.only or WAYS:
            found = Path(folder) / "row.json"
            torch.multiprocessing.spawn(train, (free_port(), way, given, found), PROCESSES)
            row = rows[way] = json.loads(found.read_text())
            numbers = f"{row['bits']:.3f} | {row['loss']:.4f} | {row['accuracy']:.4f} | {row['ms_per_step']:.0f}"
            print(f"| {way} | {row['bytes'] / 1e6:.2f} | {numbers} |", flush=True)
    if given.out:
        settings = {"steps": given.steps, "lr": given.lr, "seed": given.seed, "processes": PROCESSES, "batch": BATCH}
        given.out.write_text(json.dumps({"settings": settings, "ways": rows}, indent=1) + "\n")
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
