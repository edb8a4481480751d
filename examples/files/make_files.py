"""Write files to try `klms encode` on: an adapter shaped like PEFT's, and two checkpoints of one network.

    python examples/files/make_files.py
    klms encode adapter_model.safetensors --bits 2
    klms decode adapter_model.safetensors.klms -o restored.safetensors
    klms encode new.safetensors --base old.safetensors --bits 0.1
    klms decode new.safetensors.klms --base old.safetensors -o restored-new.safetensors

The adapter has rank 16 for the queries and values of 16 layers of width 2048, in bfloat16. The checkpoints are float32,
before and after steps that span few directions, as the gradients of a layer do.
"""

from pathlib import Path

import numpy as np

from klms.compressors.arrays import bfloat16_of
from klms.tensor_files.safetensors import write_safetensors

LAYERS, WIDTH, RANK = 16, 2048, 16
CHECKPOINT = {"embed.weight": (8000, 512), **{f"layers.{n}.mlp.weight": (1024, 512) for n in range(8)}}


def adapter(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the factors of an adapter."""
    tensors = {}
    for layer in range(LAYERS):
        for projection in ("q_proj", "v_proj"):
            for factor, shape in (("lora_A", (RANK, WIDTH)), ("lora_B", (WIDTH, RANK))):
                name = f"base_model.model.model.layers.{layer}.self_attn.{projection}.{factor}.weight"
                tensors[name] = bfloat16_of(rng.normal(0, 0.02, shape).astype(np.float32))
    return tensors


def checkpoints(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the weights of a network before and after training."""
    old, new = {}, {}
    for name, shape in CHECKPOINT.items():
        directions = rng.normal(0, 1, (shape[0], 8)) @ rng.normal(0, 1, (8, shape[1]))
        step = 1e-3 * directions + 1e-3 * rng.normal(0, 1, shape)
        old[name] = rng.normal(0, 0.02, shape).astype(np.float32)
        new[name] = old[name] + step.astype(np.float32)
    return old, new


def main() -> None:
    """Write three files into the current folder."""
    rng = np.random.default_rng(0)
    old, new = checkpoints(rng)
    files = {"adapter_model": adapter(rng), "old": old, "new": new}
    for name, tensors in files.items():
        path = Path(f"{name}.safetensors")
        with path.open("wb") as file:
            write_safetensors(file, tensors, {"format": "pt"})
        print(f"{path}: {len(tensors)} tensors, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
