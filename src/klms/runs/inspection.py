"""`klms.inspect`: describe a message, an exported model or a run, without `p` and without the key."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from klms import files, frame
from klms.codec import MessageInfo
from klms.codec import inspect as inspect_codec
from klms.compression import inspect_update
from klms.compressors import envelope
from klms.compressors.schemes import SCHEMES
from klms.errors import KLMSError, RunFolderError, UnreadableFile
from klms.frame import Frame, Kind
from klms.runs import export
from klms.runs.execution import Summary
from klms.runs.run_folder import RunFolder
from klms.update_message import carries_key, is_difference

LARGEST = export.LARGEST
"""Maximum size in bytes of a file that is read, whether it holds a message or a model."""


@dataclass(frozen=True)
class UpdateInfo:
    """Description of a message of `klms.compress`."""

    parameters: int
    total_bytes: int
    bits_per_parameter: float
    carries_key: bool
    """Whether the message carries its own key, so that anybody can decode it."""
    key_digest: bytes
    """Digest of the key that the message was made with, or the seed that it carries."""
    round: int
    """Round of the key that the message was made with."""
    arrays: dict[str, str]
    """Shape and type of each array by name; an array that was not in a dictionary has no name."""
    is_difference: bool
    """Whether the message holds the difference from another file; `klms decode` needs this file as `--base`."""


@dataclass(frozen=True)
class SchemeInfo:
    """Header of a message of a scheme that does not use the codec. Its checksum covers the key and is not checked."""

    scheme: str
    """Name of the scheme, or names of all schemes with the same wire number."""
    version: int
    d: int
    total_bytes: int
    bits_per_parameter: float


class ModelInfo(export.ModelDescription):
    """Description of an exported model."""

    parameter_bytes: int


Info = MessageInfo | UpdateInfo | SchemeInfo | ModelInfo | Summary


def inspect(source: bytes | bytearray | memoryview | Path | str) -> Info:
    """Describe a message, an exported model or a run; `p` and the key are not needed.

    Args:
        source: The message itself, the path of a file that holds a message or a model, or the path of a run folder.
            It is not trusted.

    Returns:
        A description: `MessageInfo` for messages of the codec, `UpdateInfo` for messages of `klms.compress`,
        `SchemeInfo` for messages of other schemes, `ModelInfo` for an exported model, `Summary` for a run.

    Raises:
        KLMSError: The source is none of these, or is damaged.

    >>> import klms, numpy as np
    >>> info = inspect(klms.compress(np.ones((30, 40), np.float32), 1.0))
    >>> info.parameters, info.carries_key
    (1200, True)
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _read(bytes(source))
    path = Path(source)
    if path.is_dir():
        return _run(RunFolder(path))
    try:
        return _read(files.read(path, LARGEST))
    except UnreadableFile:
        raise
    except KLMSError as error:
        raise type(error)(f"{path}: {error}") from error


def fields(info: Info) -> dict[str, object]:
    """Return everything that `inspect` found, as values by name that JSON can hold."""
    if isinstance(info, BaseModel):
        return info.model_dump(mode="json")
    found: dict[str, object] = dataclasses.asdict(info)
    found["bits_per_parameter"] = info.bits_per_parameter
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in found.items()}


def _run(folder: RunFolder) -> Summary:
    config = folder.config()
    records, note = folder.read_ledger()
    if note:
        raise RunFolderError(f"{folder.path}: {note}")
    return Summary.of(config.method, records)


def _read(data: bytes) -> Info:
    """Recognise the kind of data by its first bytes, and read it."""
    if data[:2] == envelope.MAGIC:
        return _scheme(data)
    if data[:2] != frame.MAGIC:
        return inspect_codec(data)
    if Frame.from_bytes(data, Kind.UPDATE, Kind.MODEL).kind == Kind.UPDATE:
        return _update(data)
    about, parameters = export.describe(data, "the model")
    return ModelInfo(**about.model_dump(), parameter_bytes=parameters.nbytes)


def _update(data: bytes) -> UpdateInfo:
    update, described = inspect_update(data)
    arrays = {one.name: f"{list(one.shape)} {one.type_name}" for one in described.arrays}
    parameters = sum(one.entries for one in described.arrays)
    bits = 8 * len(data) / max(1, parameters)
    return UpdateInfo(
        parameters, len(data), bits, carries_key(update), update.digest, update.first, arrays, is_difference(described)
    )


def _scheme(data: bytes) -> SchemeInfo:
    header = envelope.read_header(data)
    named = [scheme.name for scheme in SCHEMES.values() if scheme.wire_number == header.scheme]
    name = " or ".join(named) or f"unknown, number {header.scheme}"
    return SchemeInfo(name, header.version, header.d, len(data), 8 * len(data) / max(1, header.d))
