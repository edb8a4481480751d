"""Small data sets in their official formats, for tests that run whole federations."""

from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_mnist(folder: Path, train: int = 300, test: int = 100) -> Path:
    """Images whose digit is where they are bright: a model learns them in a few steps."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in (("train", train), ("t10k", test)):
        labels = np.arange(n) % 10
        images = rng.integers(0, 60, (n, 28, 28))
        for i, label in enumerate(labels):
            images[i, 2 * label : 2 * label + 6, 4:24] += 180
        write_idx(folder / f"{name}-images-idx3-ubyte", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels)
    return folder


def colours(n: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images as rows of 3072 bytes, channel by channel, that are bright where the class says; and their labels."""
    labels = np.arange(n) % classes
    images = rng.integers(0, 60, (n, 3, 32, 32))
    for i, label in enumerate(labels):
        images[i, label % 3, 3 * (label % 10) : 3 * (label % 10) + 4] += 180
    return images.reshape(n, -1).astype(np.uint8), labels.astype(np.uint8)
