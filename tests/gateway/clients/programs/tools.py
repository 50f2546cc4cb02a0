"""The tools that the programs of this folder give to their frameworks, and what they ask of the model."""

from __future__ import annotations

import sys
from pathlib import Path

API, BASE = [*sys.argv, "chat", ""][1:3]
KEY = "none"
SYSTEM = "You work with files."
PROMPTS = (
    "Read first.txt and second.txt, write what both say into answer.txt, and tell me when it is done.",
    "Thanks. Which bird was it?",
)


def read(name: str, lines: int = 10) -> str:
    """Reads the first lines of a file.

    Args:
        name: The name of the file.
        lines: How many lines to read.
    """
    return "".join(Path(name).read_text().splitlines(keepends=True)[: int(lines)])


def write(name: str, text: str, label: str = "") -> str:
    """Writes a text into a file.

    Args:
        name: The name of the file.
        text: What the file is to hold.
        label: A label.
    """
    Path(name).write_text(text)
    return "stored-ok-93"


TOOLS = {"read": read, "write": write}
PROPERTIES = {
    "read": {"name": {"type": "string"}, "lines": {"type": "integer"}},
    "write": {"name": {"type": "string"}, "text": {"type": "string"}, "label": {"type": "string"}},
}
SCHEMAS = {
    name: {"type": "object", "properties": properties, "required": ["name"]} for name, properties in PROPERTIES.items()
}
