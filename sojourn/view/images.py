"""Reads the images of an episode, and finds the position at which an action clicked."""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.files import open_regular
from sojourn.record.blobs import Blobs
from sojourn.types import Message
from sojourn.view.page import address

PNG = b"\x89PNG\r\n\x1a\n"
MEDIA_TYPES = {PNG: "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
POINT = re.compile(r"\b[a-z_]+\(\s*(?:x\s*=\s*)?(\d{1,5}(?:\.\d+)?)\s*,\s*(?:y\s*=\s*)?(\d{1,5}(?:\.\d+)?)\s*[,)]")


@dataclass(frozen=True)
class Image:
    """An image of a page. Width and height are 0 if they are unknown; `problem` says why an image cannot be shown."""

    address: str
    width: int
    height: int
    problem: str = ""


def run_image(folder: Path, run: str, digest: str) -> Image:
    """Returns the image of a run with this digest, to be loaded from the viewer."""
    try:
        path = Blobs(folder / "blobs").path(digest)
        with open_regular(path) as file:
            _, width, height = image_format(file.read(24))
    except (RecordError, OSError):
        return Image("", 0, 0, f"the image {digest[:16]} is not in the run's blobs folder")
    return Image(address("runs", run, "blobs", digest), width, height)


def image_format(head: bytes) -> tuple[str | None, int, int]:
    """Returns the media type, the width and the height of an image from its first 24 bytes.

    The type is None for other data; width and height are known of PNG alone, and 0 otherwise.
    """
    kind = next((kind for start, kind in MEDIA_TYPES.items() if head.startswith(start)), None)
    width, height = struct.unpack(">II", head[16:24]) if head.startswith(PNG) and len(head) == 24 else (0, 0)
    return kind, width, height


def click_position(message: Message | None) -> tuple[float, float] | None:
    """Returns the position in pixels at which an action points, or None.

    That is the arguments x and y of a tool call, or the first two arguments of a call that is written in the text.
    """
    if message is None:
        return None
    for call in message.calls:
        x, y = call.arguments.get("x"), call.arguments.get("y")
        if isinstance(x, (int, float)) and isinstance(y, (int, float)):
            with suppress(OverflowError):  # a number of hundreds of digits, as an agent that repeats itself writes
                return float(x), float(y)
    match = POINT.search(message.text[:1000])
    return (float(match[1]), float(match[2])) if match else None
