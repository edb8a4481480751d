"""The final model of a run as a file, and back as a torch module.

    "KLMSMODEL1", newline   length of the description (u32)   description (JSON)   parameters   CRC32 (u32)

The parameters of a FedPM model are its arithmetic-coded mask, because its frozen weights follow from the seed; those of
all other models are float32 weights.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from klms.compressors.mask import Mask
from klms.engine.federation import Federation, Parts
from klms.errors import CorruptMessage, RunFolderError
from klms.methods.fedpm import FedPM
from klms.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

MAGIC = b"KLMSMODEL1\n"


def write(run: Path, file: Path) -> Path:
    """Export the model of the run in folder `run`."""
    config, state = RunFolder(run).config(), RunFolder(run).state()
    if state is None:
        raise RunFolderError(f"{run} has no complete round yet")
    federation = Federation.create(config)
    assert isinstance(federation.clients, Parts)
    method, dataset = federation.method, federation.clients.dataset
    description = {
        "method": config.method,
        "model": config.model,
        "width": config.width,
        "shape": list(dataset.train_x.shape[1:]),
        "classes": dataset.classes,
        "seed": config.seed,
        "round": state.round,
        "mask": isinstance(method, FedPM),
        "gain": method.settings.gain if isinstance(method, FedPM) else 1.0,
    }
    if isinstance(method, FedPM):
        parameters = Mask(method.layout).pack(method.sample_mask(state))
    else:
        parameters = method.parameters(state).astype("<f4").tobytes()
    header = json.dumps(description).encode()
    body = MAGIC + struct.pack("<I", len(header)) + header + parameters
    file.write_bytes(body + struct.pack("<I", zlib.crc32(body)))
    return file


def load(file: Path | str) -> "nn.Module":
    """Load an exported model, ready to use on inputs scaled to [-1, 1]. The file is not trusted."""
    from klms.learning.network import Network

    data = Path(file).read_bytes()
    start = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC or len(data) < start + 4:
        raise CorruptMessage(f"{file} is not an exported klms model")
    if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise CorruptMessage(f"{file}: the checksum does not match")
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    try:
        about = json.loads(data[start : start + length])
        shape = tuple(int(n) for n in about["shape"])
        model, classes, width = str(about["model"]), int(about["classes"]), float(about["width"])
        network = Network.create(model, shape, classes, width)
        seed, masked, gain = int(about["seed"]), bool(about["mask"]), float(about.get("gain", 1.0))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptMessage(f"{file}: the description is not that of a model: {error}") from error
    parameters = data[start + length : -4]
    if masked:
        vector = network.signed_constants(seed, gain) * Mask(network.layout).unpack(parameters)
    elif len(parameters) != 4 * network.layout.d:
        raise CorruptMessage(f"{file}: {len(parameters)} bytes for {network.layout.d} parameters")
    else:
        vector = np.frombuffer(parameters, dtype="<f4").astype(np.float32)
    return network.module_with(vector)
