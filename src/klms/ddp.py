"""A communication hook for PyTorch's DistributedDataParallel: gradients at a few bits per parameter.

    model = DistributedDataParallel(network)
    state = klms.ddp.CompressionState(bits_per_parameter=0.5)
    model.register_comm_hook(state, klms.ddp.compression_hook)

Compressed messages cannot be summed like numbers, so every process gathers the messages of all processes, decodes them
and averages the results. All processes decode the same bytes in the same order and therefore hold the same gradient.
The decoded gradient is unbiased, so neither error feedback nor memory of the size of the gradients is needed.
If a bucket of any process is not finite or has entries above 1e12, its mean is NaN in all processes, so that
`GradScaler` skips the step as it does without the hook.
This module needs the extra `learn`.

Traffic and decoding time grow with the number of processes, as with every compressor whose messages cannot be summed
in transit: the hook is for a few nodes with a slow link between them.
"""

import math
import struct
from dataclasses import dataclass

import numpy as np

from klms.codec import SharedKey
from klms.compressors.arguments import number
from klms.compressors.layout import Layout
from klms.compressors.trellis import Effort, Trellis, fitting
from klms.errors import InvalidArgument, MissingExtra, TrainingDiverged
from klms.numerics.jit import Float32

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise MissingExtra.told("klms.ddp needs torch", "learn") from error

_LENGTH = struct.Struct("<I")
_SMALLEST_MESSAGE = 64  # bytes: the header of a message, its pieces' scales and a few indices


@dataclass
class CompressionState:
    """Settings of the hook, and the bytes that it has sent. Every process has its own state with the same settings."""

    bits_per_parameter: float = 1.0
    seed: int = 0
    effort: Effort = "fast"
    process_group: dist.ProcessGroup | None = None
    """The processes among which gradients are averaged; by default, all processes."""
    step: int = 0
    """Number of the training step. Keys depend on it, so set it to the number of the next step after a restart."""
    sent_bytes: int = 0
    """Bytes of this process's messages so far. Each message is counted once, and goes to all other processes."""
    gradient_bytes: int = 0
    """Bytes of the same gradients without compression."""

    def __post_init__(self) -> None:
        number("bits_per_parameter", self.bits_per_parameter)
        Trellis(Layout((), ()), self.bits_per_parameter, self.effort)  # raises an error if a setting is out of range
        if self.seed < 0 or self.step < 0:
            raise InvalidArgument(f"seed and step must not be negative, got {self.seed} and {self.step}")

    def key(self, rank: int, bucket: int) -> SharedKey:
        """Return the key of the message of one process for one bucket in this step."""
        return SharedKey(self.seed, self.step, rank << 32 | bucket)


def compression_hook(state: CompressionState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average the gradients of a bucket over all processes, with messages at the state's bits per parameter."""
    if not isinstance(state, CompressionState):
        raise InvalidArgument(
            f"the hook needs a state, got {state!r}: write "
            "model.register_comm_hook(klms.ddp.CompressionState(bits_per_parameter=0.5), klms.ddp.compression_hook)"
        )
    group = state.process_group if state.process_group is not None else dist.group.WORLD
    rank = dist.get_rank(group)
    gradient: torch.Tensor = bucket.buffer()
    layout = _layout(bucket)
    message = _fitting_message(state, layout, gradient, state.key(rank, bucket.index()))

    own = torch.from_numpy(message).to(gradient.device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(gathered, own, group=group, async_op=True)
    state.sent_bytes += own.numel()
    state.gradient_bytes += gradient.numel() * gradient.element_size()
    keys = [state.key(other, bucket.index()) for other in range(len(gathered))]
    if bucket.is_last():
        state.step += 1

    def average(_: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        messages = [one.cpu().numpy().tobytes() for one in gathered]
        gradient.copy_(torch.from_numpy(_mean(messages, layout, keys)))
        return gradient

    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(average)
    return averaged


def _layout(bucket: dist.GradBucket) -> Layout:  # type: ignore[name-defined]
    shapes = [tuple(gradient.shape) for gradient in bucket.gradients()]
    return Layout(tuple(map(str, range(len(shapes)))), tuple(shapes))


def _fitting_message(
    state: CompressionState, layout: Layout, gradient: torch.Tensor, key: SharedKey
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the length of a message and the message, padded to the size that all processes use for this bucket.

    The length is 0 if the gradient is not finite or far too large.
    """
    room = _LENGTH.size + max(_SMALLEST_MESSAGE, math.ceil(state.bits_per_parameter * layout.d / 8))
    vector = gradient.detach().float().cpu().numpy()
    rng = np.random.default_rng([key.seed, key.round, key.client])
    scheme = Trellis(layout, state.bits_per_parameter, state.effort, threads=1)
    try:
        message = fitting(scheme, lambda one: one.encode(vector, {}, key=key, rng=rng), room - _LENGTH.size)
    except TrainingDiverged:
        message = b""  # without a message, all other processes would wait for this one
    padded = np.zeros(room, dtype=np.uint8)
    padded[: _LENGTH.size] = np.frombuffer(_LENGTH.pack(len(message)), dtype=np.uint8)
    padded[_LENGTH.size : _LENGTH.size + len(message)] = np.frombuffer(message, dtype=np.uint8)
    return padded


def _mean(padded: list[bytes], layout: Layout, keys: list[SharedKey]) -> Float32:
    """Decode the messages of all processes and return their mean; the mean is NaN if a message is empty."""
    total = np.zeros(layout.d, dtype=np.float32)
    for data, key in zip(padded, keys, strict=True):
        (length,) = _LENGTH.unpack_from(data)
        if length == 0:
            return np.full(layout.d, np.nan, dtype=np.float32)
        message = data[_LENGTH.size : _LENGTH.size + length]
        total += Trellis(layout, threads=1, agreed=False).decode(message, {}, key=key).vector
    return total / np.float32(len(keys))
