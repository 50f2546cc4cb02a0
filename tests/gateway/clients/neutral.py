"""Writes what a client sent as a fixture, without texts of others and without names of machines, times and persons.

Whatever is replaced is replaced by the same each time, and different things by different ones, so that the gateway
finds in the fixture what it found in the requests. Kept are the texts of the task, which are ours, and what is short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gateway.clients.programs import tools
from tests.gateway.clients.recording import Exchange
from tests.gateway.clients.task import FILES, FURTHER, LONG, PROMPT, STORED, SUMMARY

LONGEST, LONGEST_OUTPUT = 40, 400  # characters of foreign texts, and of what tools answered, that are kept
HEADERS = frozenset({
    "x-session-id", "session-id", "thread-id", "x-parent-session-id", "x-claude-code-session-id",
    "x-codex-window-id", "x-stainless-retry-count",
})  # fmt: skip
OURS = re.compile("|".join([
    *map(re.escape, (SUMMARY, LONG, PROMPT, FURTHER, tools.SYSTEM, STORED, *(text.strip() for text in FILES.values()))),
    r"\[\[ ## \w+ ## \]\]", r"I read both files\.", "An umbrellabird", "It is done", "Reading two files",
    r"cat +\w+\.txt", "Now the third; ",
]))  # fmt: skip
NAMES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?<=_)(?=[A-Za-z]*\d)[0-9A-Za-z]{16,}|(?<![0-9A-Za-z])[0-9a-f]{16,}"  # identifiers
    r"|\d{4}-\d\d-\d\d(?:T[\d:.]+Z?)?|(?<!\d)\d{13}(?!\d)|(?<=PGID: )\d+|(?<=Chunk ID: )\w+|(?<=Wall time: )[\d.]+"
)
SAID = ("tool_use", "function_call", "function")  # types of calls, which are the model's words


def record(exchanges: Sequence[Exchange], folder: Path) -> list[dict[str, Any]]:
    """Returns the requests of a client, which worked in `folder`, in neutral words."""
    neutral = Neutral(folder)
    return [
        {
            "path": exchange.path,
            "headers": {
                name: neutral.named(text) for name, text in sorted(exchange.headers.items()) if name in HEADERS
            },
            "body": neutral.body(exchange.json),
        }
        for exchange in exchanges
    ]


@dataclass
class Neutral:
    """Replaces texts of others and names, the same by the same."""

    folder: Path
    texts: dict[str, str] = field(default_factory=dict[str, str])
    names: dict[str, str] = field(default_factory=dict[str, str])

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        whole = {name: self.value(value) for name, value in body.items() if name not in ("messages", "input", "tools")}
        for name in ("messages", "input"):
            if name in body:
                whole[name] = [self.message(item) for item in body[name]]
        return {**whole, "tools": self.value(body.get("tools", []))}

    def message(self, item: Mapping[str, Any]) -> dict[str, Any]:
        if item.get("role") == "assistant" and OURS.search(json.dumps(item)):
            return self.kept(item)
        if item.get("role") == "tool" or item.get("type") in ("function_call", "function_call_output", "reasoning"):
            return self.kept(item)
        content = item.get("content")
        if item.get("role") == "assistant" or not isinstance(content, list):
            return self.value(item)
        parts = [self.kept(part) if part.get("type") == "tool_result" else self.value(part) for part in content]
        return {**self.value({**item, "content": ""}), "content": parts}

    def kept(self, value: Any) -> Any:
        """Returns a value whose texts are ours, without names; long ones are none of ours."""
        match value:
            case str():
                return self.named(value) if len(value) <= LONGEST_OUTPUT else self.text(value)
            case Mapping():
                return {name: self.kept(inner) for name, inner in value.items()}
            case list():
                return [self.kept(inner) for inner in value]
        return value

    def value(self, value: Any, name: str = "") -> Any:
        match value:
            case str():
                return self.placeholder(value) if name == "description" and value else self.text(value)
            case Mapping():
                return {key: self.value(inner, key) for key, inner in value.items()}
            case list():
                return [self.value(inner, name) for inner in value]
        return value

    def text(self, text: str) -> str:
        """Returns a text in which what is not ours is replaced where it is long."""
        parts, at = list[str](), 0
        for match in OURS.finditer(text):
            parts += [self.foreign(text[at : match.start()]), match[0]]
            at = match.end()
        return "".join([*parts, self.foreign(text[at:])])

    def foreign(self, text: str) -> str:
        return self.named(text) if len(text) <= LONGEST else self.placeholder(text)

    def placeholder(self, text: str) -> str:
        """Returns what stands for a text; white space at its ends is kept."""
        inner = text.strip()
        number = self.texts.setdefault(inner, f"[text {len(self.texts) + 1} of {len(inner)} characters]")
        before, _, after = text.partition(inner or text)
        return f"{before}{number}{after}"

    def named(self, text: str) -> str:
        for name in ("task", "home"):
            path = str(self.folder / name)
            text = text.replace(path, f"/{name}").replace(re.sub(r"\W", "-", path), f"-{name}")
        return NAMES.sub(lambda match: self.names.setdefault(match[0], f"name{len(self.names) + 1}"), text)
