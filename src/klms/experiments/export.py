"""The final model of a run as a file, and back as a torch module.

    "KLMSMODEL1", newline   length of the description (u32)   description (JSON)   parameters   CRC32 (u32)

FedPM's parameters are the arithmetic-coded mask, the frozen weights being a function of the seed; others' are float32.
"""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn

from klms.codec import CorruptMessage
from klms.compressors.mask import MaskCoder
from klms.engine.federation import Federation
from klms.experiments.run_folder import RunFolder
from klms.experiments.settings import SettingsError
from klms.learning.models import build
from klms.learning.network import Network
from klms.methods.fedpm import FedPM

MAGIC = b"KLMSMODEL1\n"


def write(run: Path, file: Path) -> Path:
    """Export the model of the run in folder `run`."""
    folder = RunFolder(run)
    config = folder.config()
    state = folder.state()
    if state is None:
        raise SettingsError(f"{run} has no finished round yet")
    federation = Federation.create(config)
    method = federation.method
    description = {
        "method": config.method,
        "model": config.model,
        "width": config.width,
        "shape": list(federation.dataset.train_x.shape[1:]),
        "classes": federation.dataset.classes,
        "seed": config.seed,
        "round": state.round,
        "mask": isinstance(method, FedPM),
        "gain": config.gain,
    }
    if isinstance(method, FedPM):
        parameters = MaskCoder(method.layout).encode(method.sample_mask(state))
    else:
        parameters = state.vector("weights").astype("<f4").tobytes()
    header = json.dumps(description).encode()
    body = MAGIC + struct.pack("<I", len(header)) + header + parameters
    file.write_bytes(body + struct.pack("<I", zlib.crc32(body)))
    return file


def load(file: Path | str) -> nn.Module:
    """The exported model, ready to use on inputs scaled to [-1, 1]. The file is not trusted."""
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
        raise CorruptMessage(f"{file}: the description is not one of a model: {error}") from error
    parameters = data[start + length : -4]
    if masked:
        vector = network.signed_constants(seed, gain) * MaskCoder(network.layout).decode(parameters)
    elif len(parameters) != 4 * network.layout.d:
        raise CorruptMessage(f"{file}: {len(parameters)} bytes for {network.layout.d} parameters")
    else:
        vector = np.frombuffer(parameters, dtype="<f4").astype(np.float32)
    module = build(model, shape, classes, width)
    tensors = {name: torch.from_numpy(piece.copy()) for name, piece in network.layout.split(vector)}
    module.load_state_dict(tensors)
    return module
