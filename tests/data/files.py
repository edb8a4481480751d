"""Small files in the official formats, made from nothing but the formats' descriptions, and small data sets."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from klms.data.dataset import Dataset, images
from klms.data.text import Corpus

Bytes = npt.NDArray[np.uint8]

MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: Bytes) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def grey(n: int, seed: int = 0, side: int = 28) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (n, side, side), dtype=np.uint8)


def labels(n: int, classes: int = 10) -> Bytes:
    return (np.arange(n) % classes).astype(np.uint8)


def idx_folder(folder: Path, names: tuple[str, ...] = MNIST_FILES, suffix: str = "", classes: int = 10) -> list[Bytes]:
    """Six training and four test images in IDX; what the files hold is returned."""
    arrays = [grey(6), labels(6, classes), grey(4, seed=1), labels(4, classes)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(names, arrays, strict=True):
        data = idx(array)
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    return arrays


def png(pixels: Bytes, filters: list[int]) -> bytes:
    """A PNG whose lines use these filters in turn; the filters are computed pixel by pixel from the specification."""
    height, width, channels = pixels.shape
    values = pixels.astype(int)
    raw = bytearray()
    for y in range(height):
        kind = filters[y % len(filters)]
        raw.append(kind)
        for x in range(width):
            for c in range(channels):
                a = values[y, x - 1, c] if x else 0
                b = values[y - 1, x, c] if y else 0
                corner = values[y - 1, x - 1, c] if x and y else 0
                p = a + b - corner
                nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - corner), 2, corner))[2]
                raw.append(int(values[y, x, c] - (0, a, b, (a + b) // 2, nearest)[kind]) % 256)
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    compressed = zlib.compress(bytes(raw))
    half = len(compressed) // 2
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        png_chunk(*part)
        for part in ((b"IHDR", header), (b"IDAT", compressed[:half]), (b"IDAT", compressed[half:]), (b"IEND", b""))
    )


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def cifar_batch(n: int, seed: int = 0) -> tuple[Bytes, list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8), [i % 10 for i in range(n)]


def old_pickle(data: Bytes, extra: dict[bytes, object]) -> bytes:
    """CIFAR's dict as Python 2 wrote it: protocol 2, byte strings, and numpy by its name of that time."""

    def string(text: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(text)) + text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def thing(value: object) -> bytes:
        if isinstance(value, list):
            return b"](" + b"".join(thing(item) for item in value) + b"e"
        return number(value) if isinstance(value, int) else string(bytes(value))  # type: ignore[call-overload]

    dtype = b"cnumpy\ndtype\n(" + string(b"u1") + number(0) + number(1) + b"tR("
    dtype += number(3) + string(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + string(b"b") + b"tR("
    shape = b"(" + b"".join(number(n) for n in data.shape) + b"t"
    array += number(1) + shape + dtype + b"I00\n" + string(data.tobytes()) + b"tb"
    items = b"".join(string(key) + thing(value) for key, value in extra.items())
    return b"\x80\x02}(" + string(b"data") + array + items + b"u."


class Hostile:
    """Unpickled the ordinary way, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, (f"open({str(self.path)!r}, 'w').close()",))


def hostile_pickle(path: Path) -> bytes:
    return pickle.dumps({b"data": Hostile(path), b"labels": [0]}, protocol=2)


def leaf(path: Path, users: dict[str, tuple[list[object], list[object]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def archive(path: Path, contents: dict[str, bytes]) -> Path:
    """Write a package as npm does."""
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, data in contents.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def small(owners: bool = False) -> Dataset:
    who = (np.array([0, 1, 1]), np.array([2, 0])) if owners else (None, None)
    return images("mnist", (grey(3), labels(3)), (grey(2), labels(2)), 10, who)


def fields(data: object) -> dict[str, object]:
    """The content of a data set in a form that can be compared."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(data).items()}


def spoken(corpus: Corpus) -> list[list[str]]:
    """The words of each document."""
    return [
        [corpus.words[token] for token in corpus.tokens[start:end]]
        for start, end in zip(corpus.bounds, corpus.bounds[1:], strict=False)
    ]
