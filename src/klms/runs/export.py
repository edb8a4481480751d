"""The final model of a run as a file, and back as a torch module.

    "KLMSMODEL1", newline   length of the description (u32)   description (JSON)   parameters   CRC32 (u32)

The parameters of a FedPM model are its arithmetic-coded mask, because its frozen weights follow from the seed; those of
all other models are float32 weights.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from klms.compressors.mask import Mask
from klms.engine.federation import OWN, ClientData, Federation, Parts
from klms.errors import CorruptMessage, InvalidArgument, RunFolderError
from klms.files import read, replace
from klms.methods.fedpm import FedPM
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

MAGIC = b"KLMSMODEL1\n"
LARGEST = (1 << 30) + (1 << 20)
"""Bytes of the largest exported model: float32 weights of as many parameters as a message may have, and a description.

ResNet-18, the largest built-in model, has a twentieth of that."""
_MASK_PARAMETERS_PER_BYTE = 1024  # ten times what the most skewed masks of FedPM have
_SMALLEST_BOUND = 1 << 16  # parameters that any file may describe


class Description(BaseModel):
    """What the file says of the model. Nothing is converted: a fraction is no number of classes."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    method: str
    model: str
    width: float = Field(gt=0)
    shape: tuple[Annotated[int, Field(ge=1)], ...]
    classes: int = Field(ge=1)
    seed: int = Field(ge=0)
    round: int = Field(ge=1)
    mask: bool
    gain: float = 1.0


def write(run: Path | str, file: Path | str) -> Path:
    """Export the model of the run in folder `run`."""
    config, state = _end_of(run)
    if OWN in (config.data, config.model):
        raise InvalidArgument(
            f"{run} trained a model of your own, which klms cannot build: in Python, "
            f'klms.runs.export.own_model("{run}", model) returns that model with its trained parameters'
        )
    federation = Federation.create(config)
    assert isinstance(federation.clients, Parts)
    method, dataset = federation.method, federation.clients.dataset
    description = Description(
        method=config.method,
        model=config.model,
        width=config.width,
        shape=tuple(dataset.train_x.shape[1:]),
        classes=dataset.classes,
        seed=config.seed,
        round=state.round,
        mask=isinstance(method, FedPM),
        gain=method.settings.gain if isinstance(method, FedPM) else 1.0,
    )
    if isinstance(method, FedPM):
        parameters = Mask(method.layout).pack(method.sample_mask(state))
    else:
        parameters = method.parameters(state).astype("<f4").tobytes()
    header = description.model_dump_json().encode()
    body = MAGIC + struct.pack("<I", len(header)) + header + parameters
    if len(body) + 4 > LARGEST:
        raise RunFolderError(f"the model of {run} would have {len(body):,} bytes, but at most {LARGEST:,} can be read")
    replace(Path(file), body + struct.pack("<I", zlib.crc32(body)))
    return Path(file)


def own_model(run: Path | str, model: "nn.Module", clients: Sequence[Any] = ()) -> "nn.Module":
    """Return a copy of the user's own model with what the run in a folder trained, by `klms.federate` or on Flower.

    `clients` are examples as `klms.federate` takes them, from which running statistics of norms are measured.
    """
    config, state = _end_of(Path(run))
    data: ClientData = list(clients) if clients else {}
    federation = Federation.of(config, model, data, loss=lambda output, y: y)  # nothing is trained here
    method, trained = federation.method, RunFolder(Path(run)).description().layers
    own = list(zip(method.layout.names, method.layout.sizes, strict=True))
    if own != [(layer.name, layer.size) for layer in trained]:
        raise InvalidArgument(f"{run} trained another model: the parameters have other names or sizes")
    if method.learner.network.norms and not clients:
        raise InvalidArgument("the model has norms with running statistics: give clients=, examples to measure them on")
    examples = [federation.examples(client) for client in range(len(clients))]
    return method.learner.module_with(method.parameters(state), examples)


def _end_of(run: Path | str) -> tuple[RunConfig, State]:
    """Return the settings and the last state of a run."""
    config, state = RunFolder(run).config(), RunFolder(run).state()
    if state is None:
        raise RunFolderError(f"{run} has no complete round yet")
    return config, state


def load(file: Path | str) -> "nn.Module":
    """Load an exported model, ready to use on inputs scaled to [-1, 1]. The file is not trusted."""
    from klms.learning.models import count_parameters
    from klms.learning.network import Network

    about, parameters = describe(read(Path(file), LARGEST), file)
    try:
        architecture = about.model, about.shape, about.classes, about.width
        d = count_parameters(*architecture)  # before anything is allocated on the file's word
    except (ValueError, InvalidArgument) as error:
        raise CorruptMessage(f"{file}: the description is not that of a model: {error}") from error
    if not about.mask and len(parameters) != 4 * d:
        raise CorruptMessage(f"{file}: {len(parameters)} bytes for {d} parameters")
    if d > max(_SMALLEST_BOUND, _MASK_PARAMETERS_PER_BYTE * len(parameters)):
        raise CorruptMessage(f"{file}: {len(parameters)} bytes cannot be a mask of {d} parameters")
    network = Network.create(*architecture)
    if about.mask:
        vector = network.signed_constants(about.seed, about.gain) * Mask(network.layout).unpack(parameters)
    else:
        vector = np.frombuffer(parameters, dtype="<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        raise CorruptMessage(f"{file}: a parameter is not finite")
    return network.module_with(vector)


def describe(data: bytes, file: Path | str) -> tuple[Description, bytes]:
    """Return what an exported model says of itself, and its parameters; errors call it `file`."""
    start = len(MAGIC) + 4
    if not is_model(data) or len(data) < start + 4:
        raise CorruptMessage(f"{file} is not an exported klms model")
    if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise CorruptMessage(f"{file}: the checksum does not match")
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    try:
        about = Description.model_validate_json(data[start : start + length])
    except ValueError as error:
        raise CorruptMessage(f"{file}: the description is not that of a model: {error}") from error
    return about, data[start + length : -4]


def is_model(data: bytes) -> bool:
    """Return whether these bytes begin as an exported model does."""
    return data[: len(MAGIC)] == MAGIC
