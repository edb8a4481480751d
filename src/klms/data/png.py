"""A reader of plain PNG: 8 bits a channel, no palette, not interlaced. Enough for data kept as pictures."""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from klms.data.errors import DataError

_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
MAX_BYTES = 1 << 29


def decode(data: bytes, origin: str) -> npt.NDArray[np.uint8]:
    """The pixels, `(height, width, channels)`, of a PNG file whose name for error messages is `origin`."""
    compressed = bytearray()
    header = b""
    for kind, content in _chunks(data, origin):
        if kind == b"IHDR":
            header = content
        elif kind == b"IDAT":
            compressed += content
        elif kind == b"IEND":
            break
    if len(header) != 13:
        raise DataError(f"{origin}: a PNG without a header")
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", header)
    if depth != 8 or colour not in _CHANNELS or interlace:
        raise DataError(f"{origin}: only PNG of 8 bits a channel, without palette or interlacing, can be read")
    channels = _CHANNELS[colour]
    size = height * (1 + width * channels)
    if not 0 < size <= MAX_BYTES:
        raise DataError(f"{origin}: a PNG of {width} x {height} pixels is more than is read here")
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(bytes(compressed), size + 1)
    except zlib.error as error:
        raise DataError(f"{origin}: damaged ({error})") from error
    if len(raw) != size:
        raise DataError(f"{origin}: its pixels are cut short or too many")
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + width * channels)
    return _unfilter(lines[:, 0], lines[:, 1:].reshape(height, width, channels), origin)


def _chunks(data: bytes, origin: str) -> Iterator[tuple[bytes, bytes]]:
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise DataError(f"{origin}: not a PNG file")
    at = 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        checksum = data[at + 8 + length : at + 12 + length]
        if len(checksum) != 4 or zlib.crc32(content, zlib.crc32(kind)) != int.from_bytes(checksum, "big"):
            raise DataError(f"{origin}: damaged or cut short at byte {at}")
        yield kind, content
        at += 12 + length
    raise DataError(f"{origin}: cut short, its end is missing")


def _unfilter(filters: npt.NDArray[np.uint8], lines: npt.NDArray[np.uint8], origin: str) -> npt.NDArray[np.uint8]:
    """Undo each line's prediction (PNG specification, section 9): from the left, above, their mean, or Paeth's."""
    if filters.max() > 4:
        raise DataError(f"{origin}: unknown PNG filter {filters.max()}")
    pixels = lines.copy()
    # A line predicted from the left needs no other line: all of them at once, as running sums modulo 256.
    alone = filters == 1
    pixels[alone] = np.add.accumulate(pixels[alone], axis=1, dtype=np.uint8)
    nothing = np.zeros(lines.shape[1:], np.uint8)
    for i in np.flatnonzero(filters >= 2):
        above = pixels[i - 1] if i else nothing
        if filters[i] == 2:
            pixels[i] += above
        else:
            pixels[i] = _by_pixel(lines[i], above, paeth=bool(filters[i] == 4))
    return pixels


def _by_pixel(line: npt.NDArray[np.uint8], above: npt.NDArray[np.uint8], *, paeth: bool) -> npt.NDArray[np.uint8]:
    """Each pixel needs the one before it, so this goes one by one; few lines of photographs are like that."""
    result = np.empty_like(line)
    for channel in range(line.shape[1]):
        left = corner = 0
        values = []
        for value, up in zip(line[:, channel].tolist(), above[:, channel].tolist(), strict=True):
            left = (value + (_paeth(left, up, corner) if paeth else (left + up) // 2)) & 255
            corner = up
            values.append(left)
        result[:, channel] = values
    return result


def _paeth(left: int, up: int, corner: int) -> int:
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    if to_left <= to_up and to_left <= to_corner:
        return left
    return up if to_up <= to_corner else corner
