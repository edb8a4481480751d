"""The example of DiLoCo, in real processes with gloo."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parent.parent / "examples" / "diloco"
PROGRAM = """
import json, os, sys
import numpy as np
import torch.distributed as dist
import klms
from train import mean_uncompressed, mean_update

rank, port = int(sys.argv[1]), sys.argv[2]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
dist.init_process_group("gloo", rank=rank, world_size=3)
updates = [np.random.default_rng(n).standard_normal((40, 50), dtype=np.float32) for n in range(3)]
if rank == 1:
    updates[1][:20] = 0  # its message is shorter
true = np.mean([updates[0], np.where(np.arange(40)[:, None] < 20, 0, updates[1]), updates[2]], axis=0)
mean, sent = mean_update({"w": updates[rank]}, 4.0, klms.SharedKey(1, 2, rank))
exact, whole = mean_uncompressed({"w": updates[rank]})
print(json.dumps({
    "digest": mean["w"].tobytes().hex(), "sent": sent, "whole": whole,
    "error": float(np.square(mean["w"] - true).sum() / np.square(true).sum()),
    "exact": float(np.abs(exact["w"] - true).max()),
}))
dist.destroy_process_group()
"""


def test_all_workers_decode_the_same_mean():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    running = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), port], cwd=EXAMPLE, stdout=subprocess.PIPE)
        for rank in range(3)
    ]
    try:
        outputs = [json.loads(one.communicate(timeout=300)[0]) for one in running]
    finally:
        for one in running:
            one.kill()
    assert len({one["digest"] for one in outputs}) == 1
    assert len({one["sent"] for one in outputs}) > 1  # lengths differ, and are padded on the way
    for one in outputs:
        assert one["sent"] < 0.15 * one["whole"]
        assert one["error"] < 0.02
        assert one["exact"] < 1e-6
