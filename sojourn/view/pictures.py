"""Images of an episode, with the place of a click drawn on them."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from sojourn.errors import RecordError
from sojourn.record.blobs import Blobs
from sojourn.types import Message

PNG = b"\x89PNG\r\n\x1a\n"
POINT = re.compile(r"\b[a-z_]+\(\s*(?:x\s*=\s*)?(\d{1,5}(?:\.\d+)?)\s*,\s*(?:y\s*=\s*)?(\d{1,5}(?:\.\d+)?)\s*[,)]")


@dataclass(frozen=True)
class Picture:
    """An image of a run; width and height are 0 where they are not known, `trouble` says why it is not there."""

    address: str
    width: int
    height: int
    trouble: str = ""


def picture(folder: Path, run: str, digest: str) -> Picture:
    """An image by its digest."""
    try:
        path = Blobs(folder / "blobs").path(digest)
        with path.open("rb") as file:
            head = file.read(24)
    except (RecordError, OSError):
        return Picture("", 0, 0, f"the image {digest[:16]} is not in the run's blobs folder")
    width, height = struct.unpack(">II", head[16:24]) if head[:8] == PNG and len(head) == 24 else (0, 0)
    return Picture(f"/runs/{run}/blobs/{digest}", width, height)


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
