"""Images of an episode, with the place of a click drawn on them."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.files import open_regular
from sojourn.record.blobs import Blobs
from sojourn.types import Message
from sojourn.view.page import address

PNG = b"\x89PNG\r\n\x1a\n"
KINDS = {PNG: "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
POINT = re.compile(r"\b[a-z_]+\(\s*(?:x\s*=\s*)?(\d{1,5}(?:\.\d+)?)\s*,\s*(?:y\s*=\s*)?(\d{1,5}(?:\.\d+)?)\s*[,)]")


@dataclass(frozen=True)
class Picture:
    """An image of a run; width and height are 0 where they are not known, `trouble` says why it is not there."""

    address: str
    width: int
    height: int
    trouble: str = ""


def picture(folder: Path, run: str, digest: str) -> Picture:
    """An image by its digest, at the viewer's address."""
    try:
        path = Blobs(folder / "blobs").path(digest)
        with open_regular(path) as file:
            _, width, height = measured(file.read(24))
    except (RecordError, OSError):
        return Picture("", 0, 0, f"the image {digest[:16]} is not in the run's blobs folder")
    return Picture(address("runs", run, "blobs", digest), width, height)


def measured(head: bytes) -> tuple[str | None, int, int]:
    """What kind of image begins with these 24 bytes, None for none; and of a PNG its width and height, else 0."""
    kind = next((kind for start, kind in KINDS.items() if head.startswith(start)), None)
    width, height = struct.unpack(">II", head[16:24]) if head.startswith(PNG) and len(head) == 24 else (0, 0)
    return kind, width, height


def pointed(said: Message | None) -> tuple[float, float] | None:
    """Where an action points to in pixels: the arguments x and y of a call, or the first two numbers of one in text."""
    if said is None:
        return None
    for call in said.calls:
        x, y = call.arguments.get("x"), call.arguments.get("y")
        if isinstance(x, (int, float)) and isinstance(y, (int, float)):
            return float(x), float(y)
    found = POINT.search(said.text[:1000])
    return (float(found[1]), float(found[2])) if found else None
