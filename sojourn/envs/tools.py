"""A plain class as an environment: its public methods are the tools, its docstring is the brief.

    class Calculator:
        '''Work out the sum with the tools, then submit it.'''

        def __init__(self, seed: int): ...           # every task has a seed; or `tasks` lists arguments, see below
        def goal(self) -> str: ...                   # the first message (optional)
        def add(self, x: int, y: int) -> int: ...    # a tool: what it returns is shown to the agent
        def submit(self, answer: int) -> None: ...
        def reward(self) -> float | None: ...        # None while the play goes on

The agent says one call as it would be written in Python, `add(x=1, y=2)` or `add(1, 2)`, with literal values alone;
or it makes structured calls. A tool refuses by raising ValueError, with the object unchanged; where calls before
it in the same turn worked, the turn's info has `error` 1.

Optional, by name: `tasks`, a sequence of keyword arguments (every fifth is for testing), a mapping from "train" and
"test" to such sequences, or a static method from the split to one; `expert()`, the next call as text; `choices()`, all
calls possible now; `state_key()`; `close()`. A class without `close` holds nothing, so it can be forked by deep copy.
Any method may be a coroutine, except `state_key`. Static methods, class methods and names with `_` are not tools.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import math
import sys
import types
import typing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, Union

from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.registry import Range
from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task, Tool, ToolCall

RESERVED = frozenset({"tasks", "goal", "reward", "expert", "choices", "state_key", "close"})
LONGEST_ACTION = 10_000  # characters
LARGEST = 1e30  # a reward; beyond it, what is made of rewards overflows in fp32
SCALARS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


@dataclass(frozen=True)
class Method:
    """A public method as a tool."""

    tool: Tool
    signature: str
    hints: Mapping[str, Any]
    required: frozenset[str]

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, checked; ActionError names the tool, the value and what it should have been."""
        name = self.tool.name
        for key, value in given.items():
            if key not in self.hints:
                raise ActionError(f"{name}: there is no argument {_short(key)}, the call is {self.signature}")
            if not _fits(self.hints[key], value):
                expected = inspect.formatannotation(self.hints[key])
                raise ActionError(f"{name}: {key} = {_short(value)}, but it must be {expected}")
        if missing := [key for key in self.hints if key in self.required and key not in given]:
            raise ActionError(f"{name}: {', '.join(missing)} is missing, the call is {self.signature}")
        return dict(given)


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Any plain class with typed methods, by its own name: `examples.guess:Guess`.

    `cls` is "module:Class" (or the class). `arguments` are given to its constructor in every task. `form` says how
    the tools are declared: in the brief ("text", for models without a tool format), as schemas ("native"), or "both".
    Both ways of calling are understood in any form.
    """

    cls: str | type
    form: Literal["both", "text", "native"] = "both"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    train: Annotated[int, Range(1)] = 100_000  # generated tasks, where the class lists none
    test: Annotated[int, Range(1)] = 1_000

    def __post_init__(self) -> None:
        reward = getattr(self.plain, "reward", None)
        if not callable(reward):
            raise ConfigError(f"{self.name} has no method reward(): define it, returning None while the play goes on")
        if not self.methods:
            raise ConfigError(f"{self.name} has no public method besides {', '.join(sorted(RESERVED))}: add a tool")
        if self.form not in ("both", "text", "native"):
            raise ConfigError(f'{self.name}: form = {self.form!r}, but it must be "both", "text" or "native"')
        if unknown := [key for key in self.arguments if key not in self.parameters]:
            raise ConfigError(
                f"{self.name} takes no argument {unknown[0]!r}: it takes {', '.join(self.parameters) or 'none'}"
            )

    @cached_property
    def plain(self) -> type:
        return _import(self.cls) if isinstance(self.cls, str) else self.cls

    @cached_property
    def name(self) -> str:
        return f"{self.plain.__module__}:{self.plain.__qualname__}"

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.plain).parameters)

    @cached_property
    def methods(self) -> dict[str, Method]:
        """The tools in the order in which they are written, those of parents first."""
        names = dict.fromkeys(name for parent in reversed(self.plain.__mro__) for name in vars(parent))
        public = [name for name in names if not name.startswith("_") and name not in RESERVED]
        found = {name: inspect.getattr_static(self.plain, name) for name in public}
        return {n: method_of(n, f, self.name) for n, f in found.items() if isinstance(f, types.FunctionType)}

    @cached_property
    def brief(self) -> str:
        lines = [inspect.cleandoc(self.plain.__doc__ or "")]
        if self.form != "native":
            lines.append("Say one call:" if len(self.methods) == 1 else "Say one of these calls:")
            lines += [f"{m.signature}: {m.tool.description}".rstrip(": ") for m in self.methods.values()]
        return "\n".join(line for line in lines if line)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in ("train", "test"):
            raise ConfigError(f'{self.name}: there is no split "{split}", use "train" or "test"')
        first, size = (0, self.train) if split == "train" else (10**9, self.test)
        listed = self._listed(split)
        if listed is None:
            return Generated(lambda index: Task(self.name, dict(self.arguments), first + index, split), size)
        return Generated(lambda index: self._task(listed[index], first + index, split), len(listed))

    def make(self, task: Task) -> ToolsEnv:
        arguments = copy.deepcopy(dict(task.data))
        if "seed" in self.parameters:
            arguments.setdefault("seed", task.seed)
        try:
            inspect.signature(self.plain).bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"{self.name} cannot be made from the task {arguments}: {error}") from None
        return ToolsEnv(self, self.plain(**arguments))

    def _listed(self, split: str) -> Sequence[Any] | None:
        """The class's own list of tasks for a split, or None where seeds are all there is to it."""
        declared = getattr(self.plain, "tasks", None)
        if declared is None and "seed" not in self.parameters:
            raise ConfigError(f"{self.name} has no tasks: list keyword arguments in `tasks`, or take a `seed: int`")
        if callable(declared):
            declared = declared(split)
            return declared if isinstance(declared, Sequence) else tuple(typing.cast(Any, declared))
        if isinstance(declared, Mapping):
            return declared.get(split, ())
        if declared is None:
            return None
        return [item for index, item in enumerate(declared) if (index % 5 == 4) == (split == "test")]

    def _task(self, item: Any, seed: int, split: str) -> Task:
        if not isinstance(item, Mapping):
            raise ConfigError(f"{self.name}: the task {item!r} must be keyword arguments, such as {{'size': 3}}")
        try:
            data = json.loads(json.dumps({**self.arguments, **item}))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name}: the task {item!r} must be made of JSON values ({error})") from None
        return Task(self.name, data, int(item.get("seed", seed)), split)


class ToolsEnv:
    """One play of a plain object."""

    def __init__(self, family: Tools, game: Any) -> None:
        self.family = family
        self.game = game
        self.over = self.closed = False
        for name in ("expert", "state_key"):  # offered where the object offers them
            if hasattr(game, name):
                setattr(self, name, getattr(game, name))
        if not hasattr(game, "close"):
            self.fork = self._fork

    async def start(self) -> Observation:
        goal = getattr(self.game, "goal", "Begin.")
        text = await _settled(goal()) if callable(goal) else goal
        brief = (Message(Role.SYSTEM, self.family.brief),) if self.family.brief else ()
        return await self._observe((Message(Role.USER, str(text)),), brief)

    async def step(self, agent: str, action: Message) -> Step:
        if self.over:
            raise InfrastructureError(f"{self.family.name} was given an action after its end: play each object once")
        calls = action.calls or (parse_call(action.text, self.family.methods),)
        chosen = [(call, self._method(call).arguments(call.arguments)) for call in calls]  # all, before any is run
        answers: list[Message] = []
        info: dict[str, float] = {}
        for call, arguments in chosen:
            try:
                text = as_text(await _settled(getattr(self.game, call.name)(**arguments)))
            except ValueError as error:
                if not answers:
                    raise ActionError(f"{call.name}: {error}") from error
                text, info["error"] = f"error: {error}", 1.0
            role, answered = (Role.TOOL, call.id or call.name) if action.calls else (Role.USER, None)
            answers.append(Message(role, text, answers=answered))
            reward = await _settled(self.game.reward())
            if reward is not None:
                self.over = True
                return Step(None, {agent: self._checked(reward)}, done=True, info=info)
        return Step(await self._observe(tuple(answers)), {agent: 0.0}, info=info)

    async def close(self) -> None:
        if not self.closed and hasattr(self.game, "close"):
            self.closed = True
            await _settled(self.game.close())

    async def _fork(self) -> ToolsEnv:
        twin = ToolsEnv(self.family, copy.deepcopy(self.game))
        twin.over = self.over
        return twin

    async def _observe(self, messages: tuple[Message, ...], brief: tuple[Message, ...] = ()) -> Observation:
        choices: Any = await _settled(self.game.choices()) if hasattr(self.game, "choices") else ()
        methods = () if self.family.form == "text" else self.family.methods.values()
        return Observation(messages, brief=brief, tools=tuple(m.tool for m in methods), choices=tuple(choices))

    def _method(self, call: ToolCall) -> Method:
        method = self.family.methods.get(call.name)
        if method is None:
            raise ActionError(f"there is no tool {_short(call.name)}, use one of {', '.join(self.family.methods)}")
        if not isinstance(call.arguments, Mapping):
            raise ActionError(f"{call.name}: the arguments {_short(call.arguments)} must be given by name")
        return method

    def _checked(self, reward: Any) -> float:
        if not isinstance(reward, (int, float)) or not abs(reward) <= LARGEST:
            raise InfrastructureError(
                f"{self.family.name}.reward() gave {_short(reward)}: return a finite number or None"
            )
        return float(reward)


def as_family(obj: Any, **options: Any) -> Any:
    """An EnvFamily from a plain class, from the class of a family, from a family, or from the "module:name" of one.

    `options` are the fields of the family's class; for a plain class, those of `Tools` or its constructor's arguments.
    """
    if isinstance(obj, str):
        return as_family(_import(obj), **options)
    is_family = callable(getattr(obj, "make", None)) and callable(getattr(obj, "tasks", None))
    plain = isinstance(obj, type) and hasattr(obj, "reward")
    if is_family and not plain:
        if isinstance(obj, type):
            return obj(**options)
        if options:
            raise ConfigError(f"{obj!r} is already made: it takes no options, but {', '.join(options)} were given")
        return obj
    if not isinstance(obj, type):
        raise ConfigError(f"{obj!r} is no environment: give a class with reward() and tools, or tasks() and make()")
    own = {key: options.pop(key) for key in ("form", "train", "test") if key in options}
    where = f"{obj.__module__}:{obj.__qualname__}"
    importable = "<locals>" not in where and getattr(sys.modules.get(obj.__module__), obj.__qualname__, None) is obj
    return Tools(cls=where if importable else obj, arguments=options, **own)


def parse_call(text: str, methods: Mapping[str, Method]) -> ToolCall:
    """Reads `name(1, key="two")`: one call, literal values, nothing is ever evaluated; ActionError otherwise."""
    expected = "say one call, such as name(1, key='two')"
    if len(text) > LONGEST_ACTION:
        raise ActionError(f"{len(text)} characters are too many, {expected}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about the agent's odd literals
            call = ast.parse(text.strip(), mode="eval").body
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                raise ActionError(f"{_short(text)} is no call, {expected}")
            values = [ast.literal_eval(value) for value in call.args]
            named = [(keyword.arg, ast.literal_eval(keyword.value)) for keyword in call.keywords]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ActionError(f"{_short(text)} is no call with plain values, {expected}") from None
    if call.func.id not in methods:
        return ToolCall(call.func.id, {})
    method = methods[call.func.id]
    arguments = {key: value for key, value in [*zip(method.hints, values, strict=False), *named] if key}
    if len(arguments) < len(values) + len(named):
        raise ActionError(f"{_short(text)} gives too many values or one twice, the call is {method.signature}")
    return ToolCall(call.func.id, arguments)


def method_of(name: str, function: types.FunctionType, owner: str) -> Method:
    """A method's signature and docstring as a tool."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigError(f"{owner}.{name}: a type hint cannot be read ({error}): import it at the top") from None
    documented = _documentation(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    properties: dict[str, Any] = {}
    for parameter in parameters:
        key = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or key not in hints:
            raise ConfigError(f"{owner}.{name}: the parameter {parameter} needs a type hint, such as {key}: int")
        properties[key] = schema_of(hints[key], f"{owner}.{name}: {key}")
        if key in documented:
            properties[key]["description"] = documented[key]
    required = [p.name for p in parameters if p.default is p.empty]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    shown = ", ".join(str(p.replace(annotation=hints[p.name])) for p in parameters)
    kinds = {key: hints[key] for key in properties}
    return Method(Tool(name, documented[""], schema), f"{name}({shown})", kinds, frozenset(required))


def schema_of(hint: Any, where: str) -> dict[str, Any]:
    """The JSON Schema of a type hint; ConfigError for one that JSON cannot say."""
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
    """What a tool returned, as the agent reads it."""
    if value is None:
        return "done"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _fits(hint: Any, value: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return isinstance(value, (int, float, str, list, dict, type(None)))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
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


def _documentation(function: types.FunctionType) -> dict[str, str]:
    """The docstring's first paragraph under "", and the lines of its `Args:` by parameter."""
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.strip() or line.strip() == "Args:"), len(lines))
    found = {"": " ".join(line.strip() for line in lines[:end])}
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
            found[key] = text.strip()
        elif key is not None:
            found[key] += f" {line.strip()}"
    return found


def _import(path: str) -> Any:
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f'"{path}" cannot be imported ({error}): write "module:Class"') from error
    return found


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _short(value: Any) -> str:
    try:
        text = repr(value[:100] if isinstance(value, str) else value)
    except ValueError:  # an integer of more digits than Python prints
        return "a huge number"
    return text if len(text) <= 60 else f"{text[:60]}..."
