"""DiLoCo over gloo: processes that train for some steps by themselves, and then average their updates.

    klms data get shakespeare
    python examples/diloco/train.py --workers 4 --rounds 20 --bits 0.22
    python examples/diloco/train.py --workers 4 --rounds 20                  # without compression

Every worker is a process with a stretch of Shakespeare's plays and a small GPT. It takes ten steps of AdamW, and sends
the resulting update as one message of `klms.compress`. Each worker gathers all messages, decodes the same bytes, and
takes the same step of Nesterov momentum with the mean (Douillard et al., 2023), so the models stay equal to the last
bit. On several machines, start one process on each with the same `--master` and its own `--rank`.
"""

import argparse
import os
import socket

import numpy as np
import torch
import torch.distributed as dist

import klms
from klms.learning.panel import text_workers

OUTER_RATE = 0.7
OUTER_MOMENTUM = 0.9
TESTED_EVERY = 5


def gather(message: bytes) -> list[bytes]:
    """Return the messages of all workers, which may have different lengths."""
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(message)]))
    longest = max(int(length) for length in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded)
    return [bytes(one[: int(length)].numpy()) for one, length in zip(gathered, lengths, strict=True)]


def mean_update(update: dict[str, np.ndarray], bits: float, key: klms.SharedKey) -> tuple[dict[str, np.ndarray], int]:
    """Return the mean of the updates that all workers decode, and the bytes that this worker sent."""
    message = klms.compress(update, bits, key=key)
    keys = [klms.SharedKey(key.seed, key.round, worker) for worker in range(dist.get_world_size())]
    decoded = [klms.decompress(one, key=k, like=update) for one, k in zip(gather(message), keys, strict=True)]
    mean = {name: np.mean([one[name] for one in decoded], axis=0, dtype=np.float32) for name in update}
    return mean, len(message)


def mean_uncompressed(update: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
    """Return the mean of all workers' updates, and the bytes of one update in float32."""
    tensors = {name: torch.from_numpy(array.copy()) for name, array in update.items()}
    for tensor in tensors.values():
        dist.all_reduce(tensor)
    workers = dist.get_world_size()
    return {name: tensor.numpy() / workers for name, tensor in tensors.items()}, 4 * sum(
        a.size for a in update.values()
    )


def train(rank: int, options: argparse.Namespace) -> None:
    """Train as one of the workers."""
    host, _, port = options.master.partition(":")
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.workers)

    task = text_workers.make(options.workers, options.seed)
    shared = task.initial()
    momentum = {name: np.zeros_like(array) for name, array in shared.items()}
    sent = 0
    for number in range(1, options.rounds + 1):
        trained = task.trained(shared, rank, number)
        update = {name: trained[name] - array for name, array in shared.items()}
        if options.bits:
            mean, nbytes = mean_update(update, options.bits, klms.SharedKey(options.seed, number, rank))
        else:
            mean, nbytes = mean_uncompressed(update)
        sent += nbytes
        for name, array in mean.items():
            momentum[name] = OUTER_MOMENTUM * momentum[name] + array
            step = OUTER_RATE * (array + OUTER_MOMENTUM * momentum[name])
            shared[name] = (shared[name] + step).astype(np.float32)
        if rank == 0 and (number % TESTED_EVERY == 0 or number == options.rounds):
            print(f"round {number}: loss {task.metric(shared):.4f}, {sent:,} bytes sent per worker", flush=True)

    digests = gather(b"".join(array.tobytes() for array in shared.values()))
    assert all(one == digests[0] for one in digests), "the workers' models differ"
    dist.destroy_process_group()


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    """Start all workers on this machine, or only the worker with the given `--rank`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bits", type=float, default=0.0, help="bits per parameter; 0 for no compression")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--master", help="address and port of worker 0, if workers run on several machines")
    parser.add_argument("--rank", type=int, help="number of this worker, if workers run on several machines")
    options = parser.parse_args()
    if options.rank is not None:
        train(options.rank, options)
        return
    options.master = options.master or f"127.0.0.1:{free_port()}"
    torch.multiprocessing.spawn(train, (options,), nprocs=options.workers)


if __name__ == "__main__":
    main()
