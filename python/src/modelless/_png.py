"""A PNG of an array of pixels, without a library for pictures."""

from __future__ import annotations

import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
#: Colour types by the number of channels: grey, grey with alpha, RGB, RGB with alpha.
_COLOUR = {1: 0, 2: 4, 3: 2, 4: 6}


def png(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """`pixels` row by row, one byte for each channel."""
    step = width * channels
    # Every row begins with its filter: none. Pictures are sent once, so the quickest packing is right.
    rows = b"".join(b"\0" + pixels[at : at + step] for at in range(0, step * height, step))
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR[channels], 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 1)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
