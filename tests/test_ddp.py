"""The communication hook for DistributedDataParallel, with real processes and gloo."""

import json
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from klms.ddp import CompressionState, compression_hook
from klms.errors import InvalidArgument

PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from klms.ddp import CompressionState, compression_hook

rank, world, port, bits, dtype, steps = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *sys.argv[4:7]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(30, 200), torch.nn.ReLU(), torch.nn.Linear(200, 4))
network = network.to(getattr(torch, dtype))
model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.01)
state = CompressionState(float(bits))
model.register_comm_hook(state, compression_hook)
target = torch.randn(30, 4, generator=torch.Generator().manual_seed(9))
own = torch.Generator().manual_seed(rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for _ in range(int(steps)):
    x = torch.randn(64, 30, generator=own)
    y = (x @ target).argmax(1)
    loss = torch.nn.functional.cross_entropy(model(x.to(getattr(torch, dtype))), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
weights = torch.cat([p.detach().float().flatten() for p in network.parameters()])
print(json.dumps({
    "weights": weights.double().sum().item(),
    "size": weights.numel(),
    "first": sum(losses[:10]) / 10,
    "last": sum(losses[-10:]) / 10,
    "sent": state.sent_bytes,
    "uncompressed": state.gradient_bytes,
    "steps": state.step,
}))
dist.destroy_process_group()
"""


OVERFLOW = """
import datetime, json, os, sys
import torch
import torch.distributed as dist
from klms.ddp import CompressionState, compression_hook

rank, world, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 50))
model.register_comm_hook(CompressionState(1.0), compression_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
scales, sums = [], []
for step in range(3):
    loss = scaler.scale(model(torch.ones(4, 100)).square().mean())
    optimizer.zero_grad()
    (loss * float("inf") if (step, rank) == (1, 1) else loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scales.append(scaler.get_scale())
    sums.append(model.module.weight.detach().double().sum().item())
print(json.dumps({"scales": scales, "sums": sums}))
dist.destroy_process_group()
"""


def trained(processes, bits, *, dtype="float32", steps=40):
    """Train with so many processes, and return what each of them says."""
    return told(PROGRAM, processes, str(bits), dtype, str(steps))


def told(program, processes, *settings):
    """Run a program in so many processes, and return what each of them says."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    arguments = [str(processes), port, *settings]
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), *arguments], stdout=subprocess.PIPE)
        for rank in range(processes)
    ]
    try:
        outputs = [one.communicate(timeout=300)[0] for one in running]
    finally:
        for one in running:
            one.kill()
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize(("processes", "bits", "dtype"), [(2, 0.5, "float32"), (3, 2, "bfloat16")])
def test_all_processes_hold_the_same_model_that_learns_from_few_bytes(processes, bits, dtype):
    found = trained(processes, bits, dtype=dtype)
    assert len({one["weights"] for one in found}) == 1
    for one in found:
        assert one["last"] < 0.85 * one["first"]
        assert one["steps"] == 40
        # Every bucket has a length and at least 64 bytes; there are a handful of them.
        assert 8 * one["sent"] / (one["size"] * 40) < bits + 0.4
        assert one["uncompressed"] == 40 * one["size"] * (4 if dtype == "float32" else 2)


def test_a_gradient_that_overflows_in_one_process_is_skipped_by_all():
    """`GradScaler` halves its scale and leaves the model unchanged, as without the hook."""
    first, second = told(OVERFLOW, 2)
    assert first == second
    assert first["scales"] == [8.0, 4.0, 4.0]
    before, skipped, after = first["sums"]
    assert before == skipped != after


def test_keys_differ_by_process_bucket_and_step():
    state = CompressionState(1.0, seed=3)
    keys = {state.key(rank, bucket) for rank in range(3) for bucket in range(3)}
    state.step += 1
    keys |= {state.key(rank, bucket) for rank in range(3) for bucket in range(3)}
    assert len(keys) == 18


@pytest.mark.parametrize("given", [{"bits_per_parameter": 9}, {"effort": "most"}, {"seed": -1}, {"step": -1}])
def test_settings_out_of_range_are_refused(given):
    with pytest.raises(InvalidArgument):
        CompressionState(**given)


def test_a_hook_without_its_state_says_what_to_write():
    with pytest.raises(InvalidArgument, match="register_comm_hook"):
        compression_hook(None, None)


def test_without_torch_the_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None\ntry:\n    import klms.ddp\nexcept ImportError as e: print(e)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install -c constraints.txt '.[learn]'" in shown
