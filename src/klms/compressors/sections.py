"""The sections that messages are made of, read without trust."""

import numpy as np
import numpy.typing as npt

from klms.codec import CorruptMessage

LARGEST = 2.0**96  # so that what is made of scales, levels and rotations stays finite


def write_scales(scales: npt.NDArray[np.floating]) -> bytes:
    """Norms, scales and the like: f32 each."""
    return scales.astype("<f4").tobytes()


def read_scales(payload: bytes, count: int) -> tuple[npt.NDArray[np.float32], bytes]:
    """`count` scales and what comes after them."""
    if len(payload) < 4 * count:
        raise CorruptMessage(f"{len(payload)} bytes do not hold {count} scales")
    scales = np.frombuffer(payload[: 4 * count], dtype="<f4").astype(np.float32)
    if not ((scales >= 0) & (scales <= LARGEST)).all():
        raise CorruptMessage("a scale is not a number it can be")
    return scales, payload[4 * count :]


def write_signs(plus: npt.NDArray[np.bool_]) -> bytes:
    """A bit each, low bits first."""
    return np.packbits(plus, bitorder="little").tobytes()


def read_signs(section: bytes, count: int) -> npt.NDArray[np.float32]:
    """-1 and +1; `section` holds exactly `count` of them."""
    packed = np.frombuffer(section, dtype=np.uint8)
    if packed.size != (count + 7) // 8 or (count % 8 and packed[-1] >> count % 8):
        raise CorruptMessage(f"{packed.size} bytes for {count} signs")
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.float32) * 2 - 1
