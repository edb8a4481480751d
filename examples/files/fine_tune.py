"""Fine-tune a small language model, with PEFT's LoRA and as a whole, and compress both results with `klms encode`.

    pip install $(grep ^torch== constraints.txt)
    pip install '.[learn]' peft transformers         # in an environment of its own
    python examples/files/fine_tune.py --out results/files.json

A Llama of 0.9 million parameters is trained on Shakespeare's letters and fine-tuned on the documents of klms. The files
are those that PEFT and transformers write: `adapter_model.safetensors`, and `model.safetensors` before and after. Each
message is encoded in one process and decoded in another; the loss is measured on held-out text with the restored file.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from klms.learning.panel.tasks import characters

DOCUMENTS = Path(__file__).parents[2] / "docs"
LENGTH = 128
BATCH = 8
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz' ", np.uint8)
BITS = {"adapter": (4, 2, 1, 0.5), "difference": (2, 1, 0.3, 0.1)}
LINE = re.compile(r"([\d,]+) bytes, .* ([\d,.]+) x smaller than the file; .* ([\d.e+-]+); ([\d.]+) s")


def texts() -> tuple[np.ndarray, np.ndarray]:
    """Return the text to train on first and the text to fine-tune on, as bytes."""
    shakespeare = LETTERS[characters(3000)[0]]
    documents = "\n".join(path.read_text() for path in sorted(DOCUMENTS.glob("*.md")))
    return shakespeare, np.frombuffer(documents.encode(), np.uint8)


def batch_of(text: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
    """Return a batch of random stretches of a text."""
    starts = rng.integers(0, text.size - LENGTH, BATCH)
    return torch.from_numpy(np.stack([text[start : start + LENGTH] for start in starts]).astype(np.int64))


def train(model: torch.nn.Module, text: np.ndarray, steps: int, rate: float) -> None:
    """Train the parameters that are not frozen."""
    rng = np.random.default_rng(0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], rate)
    for _ in range(steps):
        tokens = batch_of(text, rng)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


@torch.no_grad()
def loss_of(model: torch.nn.Module, text: np.ndarray) -> float:
    """Return the loss on held-out text."""
    rng = np.random.default_rng(1)
    model.eval()
    losses = [model(input_ids=tokens, labels=tokens).loss.item() for tokens in (batch_of(text, rng) for _ in range(16))]
    return float(np.mean(losses))


def run(*arguments: object) -> str:
    """Run a command of klms in a process of its own."""
    command = [sys.executable, "-m", "klms", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.replace("\n", " ")


def compressed(file: Path, bits: float, base: Path | None = None) -> dict[str, float]:
    """Encode a file, replace it with the decoded file, and return the numbers that `klms encode` printed."""
    message = file.with_suffix(".klms")
    beside = ["--base", base] if base else []
    said = run("encode", file, "--bits", bits, *beside, "-o", message, "--force", "--threads", 1)
    run("decode", message, *beside, "-o", file, "--force", "--threads", 1)
    nbytes, times, error, seconds = LINE.search(said).groups()
    return {
        "bytes": int(nbytes.replace(",", "")),
        "times": float(times.replace(",", "")),
        "error": float(error),
        "seconds": float(seconds),
    }


def main() -> None:
    """Train, compress, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    first, second = texts()
    held_out = second[-second.size // 10 :]
    second = second[: -second.size // 10]
    sizes = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=LENGTH, **sizes))
    train(model, first, given.steps, 2e-3)
    found: dict[str, dict] = {"loss before": round(loss_of(model, held_out), 4)}

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model.save_pretrained(folder / "base")
        base = folder / "base" / "model.safetensors"

        tuned = LlamaForCausalLM.from_pretrained(folder / "base")
        train(tuned, second, given.steps, 1e-3)
        found["difference"] = {"loss": round(loss_of(tuned, held_out), 4), "file bytes": base.stat().st_size}
        for bits in BITS["difference"]:
            tuned.save_pretrained(folder / "tuned")
            row = compressed(folder / "tuned" / "model.safetensors", bits, base)
            restored = LlamaForCausalLM.from_pretrained(folder / "tuned")
            found["difference"][str(bits)] = {**row, "loss": round(loss_of(restored, held_out), 4)}

        adapted = get_peft_model(
            LlamaForCausalLM.from_pretrained(folder / "base"), LoraConfig(r=16, target_modules="all-linear")
        )
        train(adapted, second, given.steps, 5e-3)
        adapted.save_pretrained(folder / "adapter")
        file = folder / "adapter" / "adapter_model.safetensors"
        trained = file.read_bytes()
        found["adapter"] = {"loss": round(loss_of(adapted, held_out), 4), "file bytes": len(trained)}
        for bits in BITS["adapter"]:
            file.write_bytes(trained)
            row = compressed(file, bits)
            fresh = LlamaForCausalLM.from_pretrained(folder / "base")
            restored = PeftModel.from_pretrained(fresh, folder / "adapter")
            found["adapter"][str(bits)] = {**row, "loss": round(loss_of(restored, held_out), 4)}

    show(found)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def show(found: dict[str, dict]) -> None:
    """Print the table."""
    print(f"loss before fine-tuning: {found['loss before']:.3f}\n")
    print("| file | bits | bytes | x smaller | relative squared error | seconds | loss |\n" + "| --- " * 7 + "|")
    for name in ("adapter", "difference"):
        whole = found[name]
        print(f"| {name} | | {whole['file bytes']:,} | 1 | 0 | | {whole['loss']:.3f} |")
        for bits in map(str, BITS[name]):
            row = whole[bits]
            numbers = f"{row['bytes']:,} | {row['times']:.0f} | {row['error']:.2g} | {row['seconds']:.1f}"
            print(f"| | {bits} | {numbers} | {row['loss']:.3f} |")


if __name__ == "__main__":
    main()
