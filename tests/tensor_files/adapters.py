"""Files with the names and shapes that PEFT writes for a LoRA adapter."""

from pathlib import Path

import numpy as np

from klms.compressors.arrays import bfloat16_of
from klms.tensor_files.safetensors import write_safetensors

METADATA = {"format": "pt", "note": "größer"}


def adapter(layers: int = 2, width: int = 256, rank: int = 8, *, bfloat16: bool = True, seed: int = 0) -> dict:
    """Return the tensors of an adapter, in bfloat16 or float32."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        for projection in ("q_proj", "v_proj"):
            for side, shape in (("lora_A", (rank, width)), ("lora_B", (width, rank))):
                name = f"base_model.model.model.layers.{layer}.self_attn.{projection}.{side}.weight"
                numbers = rng.normal(0, 0.02, shape).astype(np.float32)
                tensors[name] = bfloat16_of(numbers) if bfloat16 else numbers
    return tensors


def write(path: Path, tensors: dict, metadata: dict[str, str] | None = None) -> Path:
    """Write a file of safetensors."""
    with path.open("wb") as file:
        write_safetensors(file, tensors, METADATA if metadata is None else metadata)
    return path
