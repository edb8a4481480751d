"""Hivemind's 8-bit quantization and its float16, as it serialises tensors."""

from functools import partial

import torch
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.proto import runtime_pb2
from peer import Arrays, measure


def encode(kind: int, update: Arrays) -> tuple[dict[str, bytes], int]:
    """Return the serialised tensors and their total length."""
    messages = {
        name: serialize_torch_tensor(torch.from_numpy(array), kind).SerializeToString()
        for name, array in update.items()
    }
    return messages, sum(map(len, messages.values()))


def decode(messages: dict[str, bytes]) -> Arrays:
    """Return the arrays of serialised tensors."""
    return {
        name: deserialize_torch_tensor(runtime_pb2.Tensor.FromString(message)).numpy()
        for name, message in messages.items()
    }


def main() -> None:
    """Print a row for every kind of compression."""
    for setting in ("FLOAT16", "UNIFORM_8BIT", "QUANTILE_8BIT"):
        kind = getattr(runtime_pb2.CompressionType, setting)
        measure("hivemind", setting, partial(encode, kind), decode)


main()
