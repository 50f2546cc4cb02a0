"""A judge behind a server of chat completions, whose verdicts a Python function gives."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.envs.loopback import Raw, answered

Says = Callable[[dict[str, Any]], Mapping[str, Any] | str | Raw]


def code(body: Mapping[str, Any]) -> str:
    """The code of the question that a request asks."""
    return re.findall(r'"code": "(\w+)"', body["messages"][-1]["content"])[-1]


def keys(body: Mapping[str, Any]) -> list[str]:
    """The keys that the verdict is to have."""
    return re.findall(r'"([^"]+)": <', body["messages"][-1]["content"].rpartition("\n")[2])


def records(body: Mapping[str, Any]) -> list[str]:
    """The texts of the records that a request shows, in order."""
    mark = re.escape(f"[{code(body)}]")
    return re.findall(rf"{mark} (?:\w+ )?record(?: \d+)? begins\n(.*?)\n{mark}[^\n]* ends", text(body), re.DOTALL)


def text(body: Mapping[str, Any]) -> str:
    return body["messages"][-1]["content"]


def by_content(body: dict[str, Any]) -> Mapping[str, Any]:
    """Numbers from 0 to 10 that follow from the question alone."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()
    return {key: digest[n] % 11 for n, key in enumerate(keys(body))}


def reply(content: str | None, prompt: int = 100, sampled: int = 10) -> Raw:
    usage = {"prompt_tokens": prompt, "completion_tokens": sampled}
    return Raw(200, json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}], "usage": usage}))


@contextmanager
def judging(says: Says = by_content) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the base URL of a judge and the requests so far. `says` returns its verdict without the code, its whole
    text, or a raw response."""

    def answer(path: str, body: dict[str, Any]) -> Raw:
        said = says(body)
        if isinstance(said, Raw):
            return said
        return reply(said if isinstance(said, str) else f"Because.\n{json.dumps({'code': code(body), **said})}")

    with answered(answer) as found:
        yield found
