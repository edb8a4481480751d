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
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from klms.codec import SharedKey
from klms.compressors.base import check_update
from klms.compressors.klms import KLMS, Effort
from klms.compressors.layout import Layout
from klms.compressors.piece_rates import MAX_RATE, MIN_RATE
from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch, UnsupportedMessage
from klms.numerics.checks import checked_shape
from klms.numerics.parallel import Progress
from klms.progress import reporting

Array = npt.NDArray[Any]
MAGIC = b"KU"
VERSION = 1
MAX_PARAMETERS = 1 << 28
"""Default limit of `decompress`: a few bytes can stand for many zeros, and 2^28 parameters are a gigabyte."""

_HEAD = struct.Struct("<2sB4sI")
_MAX_DESCRIPTION = 1 << 20
_MAX_ARRAYS = 100_000
_PARTS: dict[str, Any] = {"shapes": None, "types": None, "names": [""]}
_BFLOAT16 = "bfloat16"  # NumPy has no such type: these arrays come back as float32
_TYPES = {name: name for name in ("<f2", "<f4", "<f8", "|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")}
_TYPES[_BFLOAT16] = "<f4"


def compress(
    update: object,
    bits_per_parameter: float = 1.0,
    *,
    key: SharedKey,
    effort: Effort = "balanced",
    threads: int | None = None,
    rng: np.random.Generator | None = None,
    progress: Progress | bool = False,
) -> bytes:
    """Return an update as bytes: an array or a mapping of arrays (NumPy or torch), such as a difference of state dicts.

    What `decompress` returns is the update plus noise whose mean is zero; `bits_per_parameter`, from 0.0001 to 8,
    counts the whole message, up to half of it for names and shapes (many tiny arrays may take more). Arrays of integers
    and truth values are sent unchanged, on top; those of bfloat16 come back as float32, those of float16 within its
    range. No two messages may share a `key`. Rounding takes its randomness from `rng`, by default from the operating
    system. `progress` is a function that is called with the steps done and their number; True draws a bar on a
    terminal.

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
    overhead = min(8 * (_HEAD.size + len(description)) / layout.d, bits_per_parameter / 2)
    rate = max(bits_per_parameter - overhead, MIN_RATE)
    vector = np.concatenate([array.astype(np.float32, copy=False).ravel() for array in dense.values()])
    check_update(vector, layout.d, bits_per_parameter)
    with reporting(progress, "compressing") as report:
        scheme = KLMS(layout, rate, effort, threads, progress=report)
        return head + scheme.encode(vector, {}, key=key, rng=rng or np.random.default_rng())


def decompress(
    message: bytes,
    *,
    key: SharedKey,
    max_parameters: int = MAX_PARAMETERS,
    threads: int | None = None,
    progress: Progress | bool = False,
) -> Array | dict[str, Array]:
    """Return what `compress` was given, up to its noise, as NumPy arrays; raise a `KLMSError` on any other bytes.

    A message for more than `max_parameters` entries is refused before anything is allocated. `progress` is as in
    `compress`.
    """
    tag, described, place = describe(message)
    if tag != _tag(key):
        raise SideInformationMismatch("the message was made with another key")
    total = described.parameters
    if total > max_parameters:
        raise InvalidArgument(
            f"the message is for {total} parameters; raise max_parameters ({max_parameters}) if right"
        )
    arrays: dict[str, Array] = {}
    dense: list[Described] = []
    for one in described.arrays:
        arrays[one.name] = np.empty(0)  # keeps the order
        dtype = np.dtype(_TYPES[one.kind])
        if dtype.kind == "f":
            dense.append(one)
            continue
        count = math.prod(one.shape)
        if len(message) - place < dtype.itemsize * count:
            raise CorruptMessage("the arrays are cut off")
        arrays[one.name] = np.frombuffer(message, dtype, count, place).reshape(one.shape).copy()
        place += dtype.itemsize * count
    layout = Layout(tuple(one.name for one in dense), tuple(one.shape for one in dense))
    vector = np.zeros(0, dtype=np.float32)
    if layout.d:
        with reporting(progress, "decompressing") as report:
            decoded = KLMS(layout, threads=threads, agreed=False, progress=report).decode(message[place:], {}, key=key)
        vector = np.asarray(decoded.vector, dtype=np.float32)
    elif place != len(message):
        raise CorruptMessage("there is more in the message than its arrays")
    for one, (_, array) in zip(dense, layout.split(vector), strict=True):
        limits = np.finfo(_TYPES[one.kind])
        arrays[one.name] = np.clip(array, limits.min, limits.max).astype(_TYPES[one.kind])
    return arrays if described.named else arrays[""]


def _named(update: object) -> Mapping[str, object]:
    if isinstance(update, list | tuple):
        raise InvalidArgument("a list of arrays has no names: pass a dictionary of arrays")
    if not isinstance(update, Mapping):
        return {"": update}
    if not all(isinstance(name, str) for name in update):
        raise InvalidArgument("the names of arrays must be strings")
    return cast(Mapping[str, object], update)


def _as_numpy(name: str, value: object) -> Array:
    """Return an array or a tensor of any library as a NumPy array of a type that can be sent."""
    if isinstance(value, Mapping):
        raise InvalidArgument(f"{name!r} is a dictionary itself: pass one flat dictionary of arrays")
    tensor: Any = value
    if hasattr(tensor, "detach"):  # a torch tensor
        tensor = tensor.detach().cpu()
        tensor = (tensor.float() if str(tensor.dtype) == f"torch.{_BFLOAT16}" else tensor).numpy()
    array = np.asarray(tensor)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument(
            f"array {name!r} holds {array.dtype}, not numbers"
            if name
            else f"an update must hold numbers, not {array.dtype}"
        )
    return array.astype(np.float64) if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array


def _kind(value: object, array: Array) -> str:
    """Return the type of an array, as it is written in the description."""
    half = str(getattr(value, "dtype", "")) == f"torch.{_BFLOAT16}"
    return _BFLOAT16 if half else array.dtype.newbyteorder("<").str


def _split(arrays: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the arrays of floating-point numbers, and the others."""
    dense = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    return dense, {name: array for name, array in arrays.items() if name not in dense}


def _layout(arrays: Mapping[str, Array]) -> Layout:
    return Layout(tuple(arrays), tuple(array.shape for array in arrays.values()))


def _tag(key: SharedKey) -> bytes:
    return blake2b(SharedKey.checked(key).to_bytes(), digest_size=4, person=b"klms key").digest()


class Described(NamedTuple):
    """What the message says of an array."""

    name: str
    shape: tuple[int, ...]
    kind: str


class Description(NamedTuple):
    """What the message says of all arrays; one that was not in a dictionary has no name."""

    arrays: list[Described]
    named: bool

    @property
    def parameters(self) -> int:
        return sum(math.prod(one.shape) for one in self.arrays)


def describe(message: bytes) -> tuple[bytes, Description, int]:
    """Return the tag of the key, the checked description and the place after it; the key is not needed."""
    if len(message) < _HEAD.size or message[:2] != MAGIC:
        raise CorruptMessage("this is not a message of klms.compress: it does not begin with 'KU'")
    _, version, tag, length = _HEAD.unpack_from(message)
    if version != VERSION:
        raise UnsupportedMessage(f"version {version} of the container; this release reads version {VERSION}")
    end = _HEAD.size + length
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(message[_HEAD.size : end], _MAX_DESCRIPTION)
        if end > len(message) or not inflater.eof or inflater.unused_data:
            raise CorruptMessage("the description is cut off or too long")
        described = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise CorruptMessage("the description does not decode") from error
    if not isinstance(described, dict):
        raise CorruptMessage("the description makes no sense")
    shapes, kinds, names = (described.get(part, absent) for part, absent in _PARTS.items())
    lists = all(isinstance(part, list) for part in (shapes, kinds, names))
    if not lists or not len(shapes) == len(kinds) == len(names) <= _MAX_ARRAYS:
        raise CorruptMessage("the description makes no sense")
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise CorruptMessage("the names of arrays are not different strings")
    if not all(isinstance(kind, str) and kind in _TYPES for kind in kinds):
        raise CorruptMessage("an array has an unknown type")
    arrays = [
        Described(name, checked_shape(shape), kind) for name, shape, kind in zip(names, shapes, kinds, strict=True)
    ]
    return tag, Description(arrays, "names" in described), end
