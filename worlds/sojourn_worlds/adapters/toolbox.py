"""Tools that a foreign world declares by JSON Schemas: how an agent is told of them, and how its calls are parsed.

A schema that type hints cannot express (references, patterns) lets any value through here: the foreign world judges it.
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sojourn.envs.calls import LONGEST_ACTION, Method, parse_call, short
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role, Tool, ToolCall

FORMS = ("both", "text", "native")
Form = Literal["both", "text", "native"]
TYPES: Mapping[str, Any] = {
    "integer": int,
    "number": float,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "object": dict,
}


@dataclass(frozen=True)
class Toolbox:
    """The tools of one episode. `form` says how they are declared: in the system messages ("text"), as schemas
    ("native"), or "both"; calls are understood in either form.
    """

    methods: Mapping[str, Method]
    form: Form = "both"

    @classmethod
    def of(cls, tools: Iterable[Tool], form: Form, world: str) -> Toolbox:
        methods: dict[str, Method] = {}
        for tool in tools:
            if tool.name in methods:
                raise ConfigError(f"{world} has two tools of the name {tool.name}: rename one of them, or hide it")
            methods[tool.name] = method_of_schema(tool)
        if not methods:
            raise ConfigError(f"{world} offers no tools: there is nothing that an agent could do")
        return cls(methods, form)

    @property
    def tools(self) -> tuple[Tool, ...]:
        return () if self.form == "text" else tuple(method.tool for method in self.methods.values())

    def system_messages(self, *first: str) -> tuple[Message, ...]:
        """Returns the system messages: the given texts first, and the calls where they are declared in words."""
        lines = [line.strip() for line in first if line.strip()]
        if self.form != "native":
            lines.append("Say one call:" if len(self.methods) == 1 else "Say one of these calls:")
            lines += [f"{m.signature}: {_summary(m.tool.description)}".rstrip(": ") for m in self.methods.values()]
        return (Message(Role.SYSTEM, "\n".join(lines)),) if lines else ()

    def read(self, action: Message) -> list[ToolCall]:
        """Returns the calls of an action, each checked against its schema before any is made; raises `ActionError`
        otherwise.
        """
        calls = action.calls or (parse_call(action.text, self.methods),)
        read: list[ToolCall] = []
        for call in calls:
            method = self.methods.get(call.name)
            if method is None:
                raise ActionError(f"there is no tool {short(call.name)}, use one of {', '.join(self.methods)}")
            arguments = method.arguments(call.arguments)  # they can be written as JSON
            text = json.dumps(arguments, ensure_ascii=False)
            if len(text) > LONGEST_ACTION:  # as of calls in words
                raise ActionError(f"{call.name}: arguments of {len(text)} characters are too long, say less")
            read.append(ToolCall(call.name, arguments, call.id))
        return read


class NativeActions:
    """A play whose tools are declared as schemas alone offers `native_action`, once its toolbox is known."""

    toolbox: Toolbox | None

    def offer_native_actions(self) -> None:
        if self.toolbox is not None and self.toolbox.form == "native":
            self.native_action = self._native_action

    def _native_action(self, text: str) -> Message:
        assert self.toolbox is not None
        return Message(Role.ASSISTANT, calls=tuple(self.toolbox.read(Message(Role.ASSISTANT, text))))


def require_sendable(text: str) -> None:
    """Refuses half a character (a lone surrogate): it could not be sent to a server, or would make it fail."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ActionError(f"{text[error.start]!r} is half a character, say whole ones") from None


def method_of_schema(tool: Tool) -> Method:
    """Returns a tool with the signature and the checks that its schema asks for."""
    properties = tool.parameters.get("properties") or {}
    required = frozenset(tool.parameters.get("required") or ())
    hints = {key: hint_of(schema) for key, schema in properties.items()}
    parameters = [_parameter(key, hints[key], properties[key], key in required) for key in hints]
    order = sorted(
        range(len(parameters)), key=lambda i: list(hints)[i] not in required
    )  # those that must be given first
    ordered = {key: hints[key] for key in (list(hints)[i] for i in order)}
    return Method(tool, f"{tool.name}({', '.join(parameters[i] for i in order)})", ordered, required)


def hint_of(schema: Any) -> Any:
    """Returns the type hint of a JSON Schema; Any for what no hint can express."""
    if not isinstance(schema, Mapping):
        return Any
    if "enum" in schema and all(isinstance(value, (str, int, bool, type(None))) for value in schema["enum"]):
        return Literal[tuple(schema["enum"])]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        hints = tuple(hint_of(option) for option in options)
        return Any if Any in hints else functools.reduce(operator.or_, hints)
    json_type = schema.get("type")
    if isinstance(json_type, list):
        return hint_of({"anyOf": [{**schema, "type": one} for one in json_type]})
    if json_type == "array":
        inner = hint_of(schema.get("items"))
        return list if inner is Any else types.GenericAlias(list, (inner,))
    return TYPES.get(json_type, Any) if isinstance(json_type, str) else Any


def _parameter(key: str, hint: Any, schema: Any, required: bool) -> str:
    annotation = (
        "" if hint is Any else f": {inspect.formatannotation(hint)}".replace("typing.", "").replace("NoneType", "None")
    )
    if required:
        return f"{key}{annotation}"
    default = schema.get("default") if isinstance(schema, Mapping) else None
    return f"{key}{annotation} = {default!r}" if annotation else f"{key}={default!r}"


def _summary(description: str) -> str:
    """Returns the first paragraph: the schema describes arguments and results."""
    return " ".join(inspect.cleandoc(description or "").partition("\n\n")[0].split())
