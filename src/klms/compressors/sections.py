"""Sections that several schemes' messages are made of; readers trust nothing."""

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage

LARGEST = 2.0**96  # so that what is made of scales, levels and rotations stays finite


def write_scales(scales: npt.NDArray[np.floating]) -> bytes:
    """Return norms or scales as bytes, f32 each."""
    return scales.astype("<f4").tobytes()


def read_scales(payload: bytes, count: int) -> tuple[npt.NDArray[np.float32], bytes]:
    """Return `count` scales and the bytes after them."""
    if len(payload) < 4 * count:
        raise CorruptMessage(f"{len(payload)} bytes cannot hold {count} scales")
    return check_scales(np.frombuffer(payload[: 4 * count], dtype="<f4").astype(np.float32)), payload[4 * count :]


def check_scales(scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the scales if none is negative, huge or not a number."""
    if not ((scales >= 0) & (scales <= LARGEST)).all():
        raise CorruptMessage(f"a scale is negative, above {LARGEST:g} or not a number")
    return scales


def write_signs(plus: npt.NDArray[np.bool_]) -> bytes:
    """Return signs as bytes: one bit each, low bits first, 1 for plus."""
    return np.packbits(plus, bitorder="little").tobytes()


def read_signs(section: bytes, count: int) -> npt.NDArray[np.float32]:
    """Return -1 and +1; `section` must hold exactly `count` of them."""
    packed = np.frombuffer(section, dtype=np.uint8)
    if packed.size != (count + 7) // 8 or (count % 8 and packed[-1] >> count % 8):
        raise CorruptMessage(f"{packed.size} bytes for {count} signs")
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.float32) * 2 - 1
