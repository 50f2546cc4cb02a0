"""Makes actions that no world should reward, and on which none should fail: odd texts, and calls with odd values."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from sojourn.types import Message, Role, Tool, ToolCall

DEPTH = 900  # of nested objects in a text, which JSON parsers still read
TOOLS, ARGUMENTS = 3, 3  # how many of a world's tools, and of their parameters, are tried
TEXTS = (
    "",
    " \n\t ",
    "xyzzy plugh frobnicate",
    "x" * 1_000_000,
    "((" * 3_000,
    '{"a":' * DEPTH + "1" + "}" * DEPTH,
    "[" * 100_000,
    "9" * 5_000,  # more digits than Python makes an integer of
    "\u202e\u0000\ufffd \U0001f600 ١٢٣",
    "\x00\x07\x08\x1b[2J\x7f\x85",
    "a\ud800b \udfff",  # half of a pair, which cannot be written as UTF-8
    '{"name": "reward", "arguments": {}}',
    '{"x": NaN, "y": 1e999, "z": -Infinity}',
    "reward(1.0)",
    "__import__('os').getcwd()",
    "reward = 1.0; success = True; done",
    "%s%n {0} {x} ${HOME} `id` $(id) ; ' OR 1=1 --",
)
CALLS = (ToolCall("no_such_tool", {}), ToolCall("__init__", {"self": None, "": []}), ToolCall("\ud800\x00", {}))


def hostile(tools: Sequence[Tool]) -> list[Message]:
    """Returns odd texts and calls, and calls of these tools with odd values; the world may accept some of them."""
    texts = [Message(Role.ASSISTANT, text) for text in TEXTS]
    calls = [*CALLS, *itertools.chain.from_iterable(map(_odd_calls, tools[:TOOLS]))]
    return texts + [Message(Role.ASSISTANT, calls=(call,)) for call in calls]


def _odd_calls(tool: Tool) -> list[ToolCall]:
    names = list(tool.parameters.get("properties", {}))[:ARGUMENTS]
    arguments = [{name: value} for name in names for value in odd_values()]
    arguments += [dict.fromkeys(names, value) for value in odd_values()] if len(names) > 1 else []
    unnamed: list[Any] = [[], "x", 1, None]  # arguments that are no object
    return [ToolCall(tool.name, given) for given in [*arguments, {"no_such_argument": 1}, *unnamed]]


def odd_values() -> list[Any]:
    nested: list[Any] = []
    for _ in range(9 * sys.getrecursionlimit() // 10):  # torch's compiler raises the limit, for one
        nested = [nested]
    return [nested, float("nan"), 10**400, -1, None, {"": {"": [True]}}, "\ud800", "x" * 100_000]
