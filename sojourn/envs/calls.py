"""Turns typed methods into tools: makes their JSON Schemas, checks arguments, and parses calls written as in Python."""

from __future__ import annotations

import inspect
import json
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

from sojourn.call_text import read_call
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Tool, ToolCall

LONGEST_ACTION = 10_000  # characters
LARGEST = sys.float_info.max  # also of integers where a float is expected; neither nan nor infinity is below it
SCALARS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


@dataclass(frozen=True)
class Method:
    """A public method that is offered to the agent as a tool."""

    tool: Tool
    signature: str
    hints: Mapping[str, Any]
    required: frozenset[str]

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments once they are checked. The ActionError names the tool, the value and the expected
        type."""
        name = self.tool.name
        if not isinstance(given, Mapping):
            raise ActionError(f"{name}: the arguments {short(given)} must be given by name")
        for key, value in given.items():
            if key not in self.hints:
                raise ActionError(f"{name}: there is no argument {short(key)}, the call is {self.signature}")
            if not _fits(self.hints[key], value):
                expected = inspect.formatannotation(self.hints[key])
                raise ActionError(f"{name}: {key} = {short(value)}, but it must be {expected}")
        try:
            json.dumps(dict(given), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ActionError(f"{name}: the arguments have half a character, say whole ones") from None
        except (TypeError, ValueError, RecursionError):  # sets, lists in lists in lists ...
            raise ActionError(f"{name}: the arguments cannot be written as JSON, give plain values") from None
        if missing := [key for key in self.hints if key in self.required and key not in given]:
            raise ActionError(f"{name}: {', '.join(missing)} is missing, the call is {self.signature}")
        return dict(given)


def parse_call(text: str, methods: Mapping[str, Method]) -> ToolCall:
    """Parses one call with literal values, such as `name(1, key="two")`, without evaluating anything. Raises
    ActionError for any other text."""
    expected = "say one call, such as name(1, key='two')"
    if len(text) > LONGEST_ACTION:
        raise ActionError(f"{len(text)} characters are too many, {expected}")
    try:
        call = read_call(text)
    except ValueError as error:
        raise ActionError(f"{short(text)} {error}, {expected}") from None
    if call.name not in methods:
        return ToolCall(call.name, {})
    method = methods[call.name]
    arguments = call.arguments(tuple(method.hints))
    if arguments is None:
        raise ActionError(f"{short(text)} gives too many values or one twice, the call is {method.signature}")
    return ToolCall(call.name, arguments)


def method_of(name: str, function: types.FunctionType, owner: str) -> Method:
    """Makes a tool of a method's signature and docstring. Raises ConfigError where a type hint is missing or cannot be
    read."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigError(f"{owner}.{name}: a type hint cannot be read ({error}): import it at the top") from None
    descriptions = _descriptions(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    properties: dict[str, Any] = {}
    for parameter in parameters:
        key = parameter.name
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{owner}.{name}: {key} comes before a '/', but tools are called by names: take that out")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or key not in hints:
            raise ConfigError(f"{owner}.{name}: the parameter {parameter} needs a type hint, such as {key}: int")
        properties[key] = schema_of(hints[key], f"{owner}.{name}: {key}")
        if key in descriptions:
            properties[key]["description"] = descriptions[key]
    required = [p.name for p in parameters if p.default is p.empty]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    signature = ", ".join(str(p.replace(annotation=hints[p.name])) for p in parameters)
    types_of = {key: hints[key] for key in properties}
    return Method(Tool(name, descriptions[""], schema), f"{name}({signature})", types_of, frozenset(required))


def schema_of(hint: Any, where: str) -> dict[str, Any]:
    """Returns the JSON Schema of a type hint. Raises ConfigError for a type that has no values in JSON."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if hint in SCALARS:
        return {"type": SCALARS[hint]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(option, where) for option in inner]}
    if hint is list or origin is list:
        return {"type": "array", "items": schema_of(inner[0] if inner else Any, where)}
    if hint is dict or (origin is dict and inner[0] is str):
        return {"type": "object", "additionalProperties": schema_of(inner[1] if inner else Any, where)}
    raise ConfigError(f"{where} has the type hint {hint}: use int, float, str, bool, list, dict, Literal or unions")


def as_text(value: Any) -> str:
    """Returns the result of a tool as the text that the agent reads."""
    if value is None:
        return "done"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _fits(hint: Any, value: Any) -> bool:
    """Returns whether a value of JSON has the type of the hint, without converting it: 1 is no `Literal[True]`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return isinstance(value, (int, float, str, list, dict, type(None)))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if hint in SCALARS:
        return isinstance(value, hint)
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in inner)
    if origin in (Union, types.UnionType):
        return any(_fits(option, value) for option in inner)
    if hint is list or origin is list:
        return isinstance(value, list) and all(_fits(inner[0] if inner else Any, item) for item in value)
    if not isinstance(value, dict):
        return False
    return all(isinstance(key, str) and _fits(inner[1] if inner else Any, item) for key, item in value.items())


def _descriptions(function: types.FunctionType) -> dict[str, str]:
    """Returns the docstring's first paragraph under the key "", and each parameter's description in `Args:` by name."""
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.strip() or line.strip() == "Args:"), len(lines))
    described = {"": " ".join(line.strip() for line in lines[:end])}
    start = next((i + 1 for i, line in enumerate(lines) if line.strip() == "Args:"), len(lines))
    key = indent = None
    for line in lines[start:]:
        depth = len(line) - len(line.lstrip())
        if not line.strip() or depth == 0:
            break
        indent = indent or depth
        if depth == indent and ":" in line:
            head, _, text = line.strip().partition(":")
            key = head.split("(")[0].strip().lstrip("*")
            described[key] = text.strip()
        elif key is not None:
            described[key] += f" {line.strip()}"
    return described


def short(value: Any) -> str:
    """Returns the value as text for a message, cut where it is long."""
    try:
        text = repr(value[:100] if isinstance(value, str) else value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    except RecursionError:
        return "a value that is nested too deep"
    return text if len(text) <= 60 else f"{text[:60]}..."


async def settled(value: Any) -> Any:
    """Returns the value, or the result of awaiting it where it is awaitable."""
    return await value if inspect.isawaitable(value) else value
