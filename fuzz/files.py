"""Files: run folders, data sets and exported models."""

import gzip
import io
import json
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from fuzz.target import Target, in_folder, sealed, small_state
from klms.compressors.mask import Mask
from klms.container import write_arrays
from klms.data import cifar, leaf, speech
from klms.data.mnist import decode_idx, read_idx
from klms.engine.federation import Layer, RunDescription
from klms.engine.ledger import LedgerRecord
from klms.errors import KLMSError
from klms.frame import Frame, Kind
from klms.report.document import as_json, make
from klms.runs import export
from klms.runs.run_files import CHECKPOINT, CONFIG, DESCRIPTION, METRICS
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from klms.tensor_files.formats import FORMATS, NPY, open_tensors, write_tensors

_FOLDER_FILES = (CONFIG, METRICS, DESCRIPTION, CHECKPOINT)
_BETWEEN_FILES = b"\n=====\n"


def _run_folder(data: bytes) -> None:
    parts = data.split(_BETWEEN_FILES, len(_FOLDER_FILES) - 1)
    contents = dict(zip(_FOLDER_FILES, parts, strict=False))

    def read(folder: Path) -> None:
        as_json(make([folder]))
        RunFolder(folder).config()
        RunFolder(folder).state()

    in_folder({f"run/{name}": content for name, content in contents.items()}, lambda folder: read(folder / "run"))


def _run_folder_seeds() -> list[bytes]:
    found = []

    def write(folder: Path) -> None:
        made = RunFolder.create(folder / "run", resolve("fedpm-klms", profile="small"))
        made.describe(RunDescription(layers=[Layer(name="a", size=3)], split=[[1, 2], [3, 4]]))
        record = LedgerRecord(round=1, uplink_bytes=10, bits_per_parameter=0.5, accuracy=0.5, kl_by_layer=(0.1,))
        made.append(record, small_state())
        found.append(_BETWEEN_FILES.join((made.path / name).read_bytes() for name in _FOLDER_FILES))

    in_folder({}, write)
    return found


def _idx_seeds() -> list[bytes]:
    return [
        bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]),
        bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4]),
    ]


def _packed_idx(data: bytes) -> None:
    in_folder({"x.gz": data}, lambda folder: read_idx(folder / "x.gz"))


def _leaf_images(data: bytes) -> None:
    files = {"train/a.json": data, "test/a.json": data}
    in_folder(files, lambda folder: leaf.image("femnist", folder, side=2, classes=62))


def _leaf_seeds(*xs: object) -> list[bytes]:
    return [json.dumps({"users": ["u"], "user_data": {"u": {"x": x, "y": [1] * 2}}}).encode() for x in xs]


def _leaf_text(data: bytes) -> None:
    files = {"train/a.json": data, "test/a.json": data}
    in_folder(files, lambda folder: leaf.text("stackoverflow", folder))


def _png_seeds() -> list[bytes]:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.zeros((2, 1024, 3), np.uint8)).save(buffer, "PNG")
    return [buffer.getvalue()]


def _chat_seeds() -> list[bytes]:
    turn = [{"sender": "a", "text": "one two three"}]
    return [json.dumps({"x": {"messages": [turn] * 10}}).encode()]


def _play_seeds() -> list[bytes]:
    return [b"ACT I.\n\n" + b"Lear.\nAttend, lords.\n\n" * 10]


def _export(data: bytes) -> None:
    in_folder({"model.klms": sealed(data)}, lambda folder: export.load(folder / "model.klms"))


def _export_seeds() -> list[bytes]:
    from klms.learning.network import Network

    found = []
    for model, shape in (("lenet", (1, 28, 28)), ("lstm", (3,))):
        layout = Network.create(model, shape, 2, 0.02).layout
        about = {"method": "fedavg", "model": model, "width": 0.02, "shape": shape, "classes": 2, "seed": 0, "round": 1}
        for masked, parameters in (
            (False, np.zeros(layout.d, np.float32)),
            (True, np.frombuffer(Mask(layout).pack(np.ones(layout.d, np.uint8)), np.uint8)),
        ):
            body = write_arrays({"parameters": parameters}, about | {"mask": masked})
            found.append(Frame(Kind.MODEL, 1, 0, bytes(8), body).to_bytes())
    return found


def _tensors(data: bytes) -> None:
    """The same bytes as a file of each format."""

    def read(folder: Path) -> None:
        for kind in FORMATS:
            with suppress(KLMSError), open_tensors(folder / f"x{kind}") as opened:
                for source in opened.sources.values():
                    source.exact()

    in_folder({f"x{kind}": data for kind in FORMATS}, read)


def _tensor_seeds() -> list[bytes]:
    arrays = {"a": np.ones((3, 4), np.float32), "b": np.arange(5), "c": np.zeros(0, np.float16)}
    found = []
    for kind in FORMATS:
        file = io.BytesIO()
        write_tensors(file, kind, {"a": arrays["a"]} if kind == NPY else arrays, {"format": "pt"})
        found.append(file.getvalue())
    return found


TARGETS = {
    "run-folder": Target(_run_folder, _run_folder_seeds),
    "idx": Target(lambda data: decode_idx(data, "x"), _idx_seeds),
    "idx-gz": Target(_packed_idx, lambda: [gzip.compress(seed, mtime=0) for seed in _idx_seeds()]),
    "leaf-images": Target(_leaf_images, partial(_leaf_seeds, [[0.0, 0.5, 1.0, 0.25]] * 2)),
    "leaf-text": Target(_leaf_text, partial(_leaf_seeds, ["one two", "three four"], [[["a", "b"]], ["c", "d"]])),
    "png": Target(lambda data: cifar._images_in_rows(data, "x.png"), _png_seeds),
    "chat": Target(lambda data: speech._chitchat(data, "x"), _chat_seeds),
    "plays": Target(lambda data: speech._plays([("x_gut.txt", data)], "x"), _play_seeds),
    "export": Target(_export, _export_seeds),
    "tensors": Target(_tensors, _tensor_seeds),
}
