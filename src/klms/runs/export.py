"""Write the final model of a run to a file, and load it as a torch module.

The file is a `Frame` with a container of one array and a description of the model. The array of a FedPM model is its
arithmetic-coded mask, because the frozen weights follow from the seed; the array of all other models is their float32
weights.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from klms.compressors.mask import Mask
from klms.container import Array, read_arrays, write_arrays
from klms.engine.federation import OWN, ClientData, Federation, Parts
from klms.errors import CorruptMessage, InvalidArgument, KLMSError, RunFolderError
from klms.files import read, replace
from klms.frame import OVERHEAD, Frame, Kind
from klms.methods.fedpm import FedPM
from klms.methods.state import State
from klms.methods.table import RunConfig
from klms.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

LARGEST = (1 << 30) + (1 << 20)
"""Maximum size of an exported model in bytes: float32 weights of 2^28 parameters, and a description.

ResNet-18, the largest built-in model, is less than a twentieth of that size."""
_MASK_PARAMETERS_PER_BYTE = 1024  # ten times as many as in the most skewed masks of FedPM
_SMALLEST_BOUND = 1 << 16  # parameters that a file of any size may describe
_PARAMETERS = "parameters"


class ModelDescription(BaseModel):
    """Description inside an exported model. Values are not converted: a fraction is not a number of classes."""

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
    about = ModelDescription(
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
    parameters: Array
    if isinstance(method, FedPM):
        parameters = np.frombuffer(Mask(method.layout).pack(method.sample_mask(state)), np.uint8)
    else:
        parameters = method.parameters(state)
    body = write_arrays({_PARAMETERS: parameters}, about.model_dump(mode="json"))
    if len(body) + OVERHEAD > LARGEST:
        raise RunFolderError(f"the model of {run} would have {len(body):,} bytes, but at most {LARGEST:,} can be read")
    replace(Path(file), Frame(Kind.MODEL, state.round, 0, bytes(8), body).to_bytes())
    return Path(file)


def own_model(run: Path | str, model: "nn.Module", clients: Sequence[Any] = ()) -> "nn.Module":
    """Return a copy of the user's own model with the parameters that the run in folder `run` has trained.

    The run may be one of `klms.federate` or of Flower. `clients` are examples, in a form that `klms.federate` takes,
    on which the running statistics of normalisation layers are measured.
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
    if not about.mask and parameters.size != d:
        raise CorruptMessage(f"{file}: {parameters.size} numbers for {d} parameters")
    if d > max(_SMALLEST_BOUND, _MASK_PARAMETERS_PER_BYTE * parameters.nbytes):
        raise CorruptMessage(f"{file}: {parameters.nbytes} bytes cannot be a mask of {d} parameters")
    network = Network.create(*architecture)
    vector = parameters
    if about.mask:
        vector = network.signed_constants(about.seed, about.gain) * Mask(network.layout).unpack(parameters.tobytes())
    if not np.isfinite(vector).all():
        raise CorruptMessage(f"{file}: a parameter is not finite")
    return network.module_with(vector)


def describe(data: bytes, file: Path | str) -> tuple[ModelDescription, Array]:
    """Return the description of an exported model, and its mask or its weights. Errors name the model by `file`."""
    try:
        arrays, meta = read_arrays(Frame.from_bytes(data, Kind.MODEL).body)
        about = ModelDescription.model_validate_json(json.dumps(meta))  # as JSON, since a list is not a tuple
    except KLMSError as error:
        raise type(error)(f"{file} is not an exported klms model: {error}") from error
    except ValueError as error:
        raise CorruptMessage(f"{file}: the description is not that of a model: {error}") from error
    parameters = arrays.get(_PARAMETERS, np.zeros(0))
    if len(arrays) != 1 or parameters.ndim != 1 or parameters.dtype != (np.uint8 if about.mask else np.float32):
        raise CorruptMessage(f"{file} does not hold the parameters that it describes")
    return about, parameters
