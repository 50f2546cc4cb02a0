"""Draws a board as a PNG file: square tiles of plain colours, made with numpy and zlib alone."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

WALL, FLOOR, GOAL, PLAYER = (70, 74, 84), (236, 232, 222), (208, 60, 60), (48, 96, 176)
BOX, DONE, RIM = (176, 122, 58), (72, 148, 78), (96, 64, 28)


def picture(text: str, scale: int) -> bytes:
    """Returns the board that is given as text, `scale` pixels to a cell, as the bytes of a PNG file."""
    rows = [[_tile(sign, scale) for sign in row] for row in text.split("\n")]
    return png(np.concatenate([np.concatenate(row, axis=1) for row in rows], axis=0))


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Encodes pixels (height, width, 3) as a PNG file."""
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(lines, 6)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@lru_cache(64)
def _tile(sign: str, scale: int) -> NDArray[np.uint8]:
    """Draws one cell: a wall fills it, a box is a square with a rim, the player a disc, a goal a small diamond."""
    tile = np.empty((scale, scale, 3), dtype=np.uint8)
    tile[:] = WALL if sign == "#" else FLOOR
    across = (np.arange(scale) + 0.5) / scale * 2 - 1  # the middle of each pixel, from -1 to 1
    x, y = np.meshgrid(across, across)
    if sign in "$*":
        side = np.maximum(np.abs(x), np.abs(y))
        tile[side < 0.8] = BOX if sign == "$" else DONE
        tile[(side < 0.8) & (side > 0.6)] = RIM
    if sign in "@+":
        tile[x**2 + y**2 < 0.64] = PLAYER
    if sign in ".+*":
        tile[np.abs(x) + np.abs(y) < 0.45] = GOAL
    return tile
