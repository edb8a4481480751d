"""Any update as bytes, and back: two functions for programs that have their own engine.

The message describes itself. After the magic bytes `KU` come a version (u8), a tag of the key (4 bytes), the length of
the description (u32) and the description: names, shapes and types of all arrays as JSON, deflated. Then follow, as they
are, arrays of other than floating-point numbers, and, at last, a message of the scheme `klms` for all others.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.compressors.klms import KLMS, Effort
from klms.compressors.layout import Layout
from klms.compressors.piece_rates import MAX_RATE, MIN_RATE
from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch, UnsupportedMessage

Array = npt.NDArray[Any]
MAGIC = b"KU"
VERSION = 1
MAX_PARAMETERS = 1 << 28
"""Default limit of `decompress`: a few bytes can stand for many zeros, and 2^28 parameters are a gigabyte."""

_HEAD = struct.Struct("<2sB4sI")
_MAX_DESCRIPTION = 1 << 24
_HALF = "bfloat16"  # NumPy has no such type: these arrays come back as float32


def compress(
    update: object,
    bits_per_parameter: float = 1.0,
    *,
    key: SharedKey,
    effort: Effort = "balanced",
    threads: int | None = None,
    rng: np.random.Generator | None = None,
) -> bytes:
    """Return an update as bytes: an array or a mapping of arrays (NumPy or torch), such as a difference of state dicts.

    What `decompress` returns is the update plus noise whose mean is zero; `bits_per_parameter`, from 0.0001 to 8,
    counts the whole message. Arrays of integers and truth values are sent unchanged, on top. No two messages may share
    a `key`. Rounding takes its randomness from `rng`, by default from the operating system.

    >>> update = {"weight": np.ones((40, 50), dtype=np.float32), "steps": np.array(7)}
    >>> message = compress(update, 2.0, key=SharedKey(seed=1, round=1, client=0))
    >>> len(message) < 2000 * 2 / 8 + 8
    True
    >>> decoded = decompress(message, key=SharedKey(seed=1, round=1, client=0))
    >>> decoded["weight"].shape, int(decoded["steps"])
    ((40, 50), 7)
    """
    named = _named(update)
    arrays = {name: _as_numpy(name, value) for name, value in named.items()}
    kinds = [_kind(value, arrays[name]) for name, value in named.items()]
    described: dict[str, object] = {"shapes": [array.shape for array in arrays.values()], "types": kinds}
    if isinstance(update, Mapping):
        described["names"] = list(arrays)
    dense, exact = _split(arrays)
    layout = _layout(dense)
    description = zlib.compress(json.dumps(described, separators=(",", ":")).encode(), 9)
    head = _HEAD.pack(MAGIC, VERSION, _tag(key), len(description)) + description
    head += b"".join(np.ascontiguousarray(array).tobytes() for array in exact.values())
    if not layout.d:
        return head
    if not MIN_RATE <= bits_per_parameter <= MAX_RATE:
        raise InvalidArgument(f"bits_per_parameter must be from {MIN_RATE:g} to {MAX_RATE:g}, got {bits_per_parameter}")
    overhead = 8 * (_HEAD.size + len(description)) / layout.d
    scheme = KLMS(layout, max(bits_per_parameter - overhead, MIN_RATE), effort, threads)
    vector = np.concatenate([array.astype(np.float32, copy=False).ravel() for array in dense.values()])
    return head + scheme.encode(vector, {}, key=key, rng=rng or np.random.default_rng())


def decompress(
    message: bytes, *, key: SharedKey, max_parameters: int = MAX_PARAMETERS, threads: int | None = None
) -> Array | dict[str, Array]:
    """Return what `compress` was given, up to its noise, as NumPy arrays; raise a `KLMSError` on any other bytes.

    A message for more than `max_parameters` entries is refused before anything is allocated.
    """
    described, rest = _describe(message, key)
    names, shapes, types = described.get("names", [""]), described["shapes"], described["types"]
    total = sum(_size(shape) for shape in shapes)
    if total > max_parameters:
        raise InvalidArgument(
            f"the message is for {total} parameters; raise max_parameters ({max_parameters}) if right"
        )
    arrays: dict[str, Array] = {}
    dense: list[tuple[str, tuple[int, ...], np.dtype[Any]]] = []
    for name, shape, kind in zip(names, map(tuple, shapes), types, strict=True):
        dtype = np.dtype(np.float32 if kind == _HALF else kind)
        arrays[name] = np.empty(0)  # keeps the order
        if dtype.kind == "f":
            dense.append((name, shape, dtype))
            continue
        length = dtype.itemsize * math.prod(shape)
        if len(rest) < length:
            raise CorruptMessage("the arrays are cut off")
        arrays[name] = np.frombuffer(rest[:length], dtype=dtype).reshape(shape).copy()
        rest = rest[length:]
    layout = Layout(tuple(name for name, _, _ in dense), tuple(shape for _, shape, _ in dense))
    if layout.d:
        vector = np.asarray(KLMS(layout, threads=threads).decode(rest, {}, key=key).vector, dtype=np.float32)
    elif rest:
        raise CorruptMessage("there is more in the message than its arrays")
    else:
        vector = np.zeros(0, dtype=np.float32)
    for (name, _, dtype), (_, array) in zip(dense, layout.split(vector), strict=True):
        arrays[name] = array.astype(dtype)
    return arrays if "names" in described else arrays[""]


def _named(update: object) -> Mapping[str, object]:
    if not isinstance(update, Mapping):
        return {"": update}
    if not all(isinstance(name, str) for name in update):
        raise InvalidArgument("the names of arrays must be strings")
    return cast(Mapping[str, object], update)


def _as_numpy(name: str, value: object) -> Array:
    """Return an array or a tensor of any library as a NumPy array."""
    tensor: Any = value
    if hasattr(tensor, "detach"):  # a torch tensor
        tensor = tensor.detach().cpu()
        tensor = (tensor.float() if str(tensor.dtype) == f"torch.{_HALF}" else tensor).numpy()
    array = np.asarray(tensor)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument(f"array {name!r} holds {array.dtype}, not numbers" if name else "an update holds numbers")
    return array


def _kind(value: object, array: Array) -> str:
    """Return the type of an array, as it is written in the description."""
    half = str(getattr(value, "dtype", "")) == f"torch.{_HALF}"
    return _HALF if half else array.dtype.newbyteorder("<").str


def _split(arrays: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the arrays of floating-point numbers, and the others."""
    dense = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    return dense, {name: array for name, array in arrays.items() if name not in dense}


def _layout(arrays: Mapping[str, Array]) -> Layout:
    return Layout(tuple(arrays), tuple(array.shape for array in arrays.values()))


def _tag(key: SharedKey) -> bytes:
    return blake2b(key.to_bytes(), digest_size=4, person=b"klms key").digest()


def _size(shape: object) -> int:
    """Return the number of entries of an untrusted shape."""
    if not isinstance(shape, list) or len(shape) > 32:
        raise CorruptMessage("a shape is not a list of numbers")
    size = 1
    for length in shape:
        if type(length) is not int or length < 0:
            raise CorruptMessage("a shape is not a list of numbers")
        size *= length
    return size


def _describe(message: bytes, key: SharedKey) -> tuple[dict[str, Any], bytes]:
    """Return the untrusted description, with lists of equal lengths, and what follows it."""
    if len(message) < _HEAD.size or message[:2] != MAGIC:
        raise CorruptMessage("this is not a message of klms.compress: it does not begin with 'KU'")
    _, version, tag, length = _HEAD.unpack_from(message)
    if version != VERSION:
        raise UnsupportedMessage(f"version {version} of the container; this release reads version {VERSION}")
    if tag != _tag(key):
        raise SideInformationMismatch("the message was made with another key")
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(message[_HEAD.size : _HEAD.size + length], _MAX_DESCRIPTION)
        if not inflater.eof or inflater.unused_data:
            raise CorruptMessage("the description is cut off or too long")
        described = json.loads(text)
        shapes, types, names = described["shapes"], described["types"], described.get("names", [""])
        known = all(kind == _HALF or np.dtype(kind).kind in "fiub" for kind in types)
        if not known or len(shapes) != len(types) or len(set(names)) != len(names) or len(names) != len(shapes):
            raise CorruptMessage("the description makes no sense")
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptMessage("the description does not decode") from error
    return described, bytes(message[_HEAD.size + length :])
