"""Turns a plain class into an environment: its public methods are the tools, its docstring is the system message.

    class Calculator:
        '''Work out the sum with the tools, then submit it.'''

        def __init__(self, seed: int): ...           # every task has a seed; or `tasks` lists arguments, see below
        def goal(self) -> str: ...                   # the first user message (optional)
        def add(self, x: int, y: int) -> int: ...    # a tool: what it returns is shown to the agent
        def submit(self, answer: int) -> None: ...
        def reward(self) -> float | None: ...        # None while the play goes on

The agent writes one call as in Python, `add(x=1, y=2)` or `add(1, 2)`, with literal values only, or it makes structured
tool calls. A tool refuses a call by raising ValueError, with the object unchanged; where earlier calls of the same turn
worked, the turn's info has `error` 1.

Optional members are found by name, on the object or its class: `success()`, asked at the end (without it, a reward
above 0 is a success); `tasks`, a sequence of keyword arguments (every fifth is a test task), a mapping from "train" and
"test" to such sequences, or a static method that returns the sequence of a split (`tags` of a task, where the class has
no such argument, are those by which evaluations report); `expert()`, the next call as text; `choices()`, all calls that
are possible now; `state_key()`; `close()`. A class without `close` holds no resources, so it is forked by deep copy,
where that is possible for its first object; a later one that cannot be copied stops the run. Any method may be a
coroutine, except `state_key`. Static methods, class methods, names with `_`, and what `__getattr__` would return are
not found.

A play of a class without coroutines is made, and lives, in a thread of its own. So a tool that takes long holds up
neither other plays nor the engine, and one that takes longer than `rollout.limits.stall_s` ends its turn. The objects
of a class with a coroutine live in the event loop, which their other methods block.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from sojourn.abilities import HasExpert, HasStateKey
from sojourn.call_text import answer
from sojourn.config.fields import Range
from sojourn.config.lookup import import_object, nearest
from sojourn.config.registry import is_plain
from sojourn.envs.calls import Method, as_text, method_of, parse_call, settled, short
from sojourn.envs.plain_class import (
    DeclaresTasks,
    HasGoal,
    JudgesSuccess,
    ListsChoices,
    ReleasesResources,
    has_coroutines,
    offers,
)
from sojourn.envs.play_thread import PlayThread
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.finite import as_finite
from sojourn.protocols import EnvFamily
from sojourn.tasks import Generated
from sojourn.tasks.splits import first_seed, make_tasks_from_data
from sojourn.types import Message, Observation, Role, Step, Task, ToolCall

RESERVED = frozenset({"tasks", "goal", "reward", "success", "expert", "choices", "state_key", "close"})
OWN_FIELDS = ("form", "train", "test")  # of the family; all other keys of a plain class are its arguments
MAX_REWARD = 1e30  # beyond it, what is computed from rewards overflows in fp32


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The family of any plain class with typed methods; its name is the class's, such as `examples.guess:Guess`.

    `cls` is "module:Class" or the class. `arguments` are passed to its constructor in every task. `form` says how the
    tools are declared: in the system message ("text", for models without a tool format), as schemas ("native"), or
    "both". Written and structured calls are understood whatever the form is; with "native", demonstrations of the
    expert make structured calls.
    """

    cls: str | type
    form: Literal["both", "text", "native"] = "both"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    train: Annotated[int, Range(1)] = 100_000  # generated tasks, where the class lists none
    test: Annotated[int, Range(1)] = 1_000

    def __post_init__(self) -> None:
        if not is_plain(self.plain):
            raise ConfigError(f"{self.name} has no method reward(): define it, returning None while the play goes on")
        if not self.interface.methods:
            raise ConfigError(f"{self.name} has no public method besides {', '.join(sorted(RESERVED))}: add a tool")
        if self.form not in ("both", "text", "native"):
            raise ConfigError(f'{self.name}: form = {self.form!r}, but it must be "both", "text" or "native"')
        if unknown := [key for key in self.arguments if key not in self.parameters]:
            known = {*self.parameters, *OWN_FIELDS}
            raise ConfigError(f"{self.name} takes no argument {unknown[0]!r}: {nearest(unknown[0], known)}")

    @cached_property
    def plain(self) -> type:
        return import_object(self.cls, "tools: cls") if isinstance(self.cls, str) else self.cls

    @cached_property
    def name(self) -> str:
        return f"{self.plain.__module__}:{self.plain.__qualname__}"

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.plain)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.signature.parameters)

    @property
    def seeded(self) -> bool:
        """Returns whether the class takes a seed, without which the arguments alone make a task."""
        return "seed" in self.parameters

    @cached_property
    def in_event_loop(self) -> bool:
        return has_coroutines(self.plain)

    @cached_property
    def interface(self) -> Interface:
        return Interface.of(self.plain, self.name, self.form)

    def tasks(self, split: str) -> Sequence[Task]:
        first = first_seed(self.name, split)
        listed = self._listed(split)
        if listed is None:
            return make_tasks_from_data(self.name, self, split, self.arguments)
        return Generated(lambda index: self._task(listed[index], first + index, split), len(listed))

    def make(self, task: Task) -> ToolsEnv:
        arguments = copy.deepcopy(dict(task.data))
        if self.seeded:
            arguments.setdefault("seed", task.seed)
        try:
            self.signature.bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"{self.name} cannot be made from the task {arguments}: {error}") from None
        if self.in_event_loop:
            return ToolsEnv(self.interface, self.plain(**arguments))
        thread = PlayThread(f"a play of {self.name}")
        return ToolsEnv(self.interface, thread.now(self.plain, **arguments), thread)

    def _listed(self, split: str) -> Sequence[Any] | None:
        """Returns the tasks that the class lists for a split, or None where a task is only a seed."""
        declared: Any = self.plain.tasks if offers(self.plain, DeclaresTasks) else None
        if declared is None and not self.seeded:
            raise ConfigError(f"{self.name} has no tasks: list keyword arguments in `tasks`, or take a `seed: int`")
        if callable(declared):
            declared = declared(split)
            listed = declared if isinstance(declared, Sequence) else tuple(typing.cast(Any, declared))
            return self._no_path(listed)
        if isinstance(declared, Mapping):
            return self._no_path(declared.get(split, ()))
        if declared is None:
            return None
        self._no_path(declared)
        return [item for index, item in enumerate(declared) if (index % 5 == 4) == (split == "test")]

    def _no_path(self, listed: Any) -> Sequence[Any]:
        if isinstance(listed, str):
            raise ConfigError(
                f"{self.name}: tasks: {listed!r:.100} is a text, not a list of tasks: read the file, such as "
                "[json.loads(line) for line in open(path)]"
            )
        return listed

    def _task(self, item: Any, seed: int, split: str) -> Task:
        if not isinstance(item, Mapping):
            raise ConfigError(f"{self.name}: the task {item!r} must be keyword arguments, such as {{'size': 3}}")
        given = dict(item)
        tags = given.pop("tags", ()) if "tags" not in self.parameters else ()
        if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
            raise ConfigError(f"{self.name}: tags = {tags!r:.100}: expected a list of texts, such as ['easy']")
        try:
            data = json.loads(json.dumps({**self.arguments, **given}))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name}: the task {item!r} must be made of JSON values ({error})") from None
        return Task(self.name, data, int(item.get("seed", seed)), split, tuple(tags))


@dataclass(frozen=True)
class Interface:
    """The tools of a plain class: `system` is the system message that describes them, `methods` are called by name."""

    name: str
    system: str
    methods: Mapping[str, Method]
    form: Literal["both", "text", "native"] = "both"

    @classmethod
    def of(cls, plain: type, name: str, form: Literal["both", "text", "native"] = "both") -> Interface:
        """Makes the interface of a class: the system messages are its docstring and, unless `form` is "native", its
        tools, in the order in which they are defined, those of parent classes first."""
        names = dict.fromkeys(name for parent in reversed(plain.__mro__) for name in vars(parent))
        public = [name for name in names if not name.startswith("_") and name not in RESERVED]
        members = {name: inspect.getattr_static(plain, name) for name in public}
        methods = {n: method_of(n, f, name) for n, f in members.items() if isinstance(f, types.FunctionType)}
        lines = [inspect.cleandoc(plain.__doc__ or "")]
        if form != "native":
            lines.append("Say one call:" if len(methods) == 1 else "Say one of these calls:")
            lines += [f"{m.signature}: {m.tool.description}".rstrip(": ") for m in methods.values()]
        return cls(name, "\n".join(line for line in lines if line), methods, form)

    def method(self, call: ToolCall) -> Method:
        """Returns the method that a call names; raises `ActionError` where there is none of the name."""
        method = self.methods.get(call.name)
        if method is None:
            raise ActionError(f"there is no tool {short(call.name)}, use one of {', '.join(self.methods)}")
        return method

    def native_action(self, text: str) -> Message:
        """Returns the structured call that does what a call written as text does."""
        call = parse_call(text, self.methods)
        return Message(Role.ASSISTANT, calls=(replace(call, arguments=self.method(call).arguments(call.arguments)),))


_copied = WeakKeyDictionary[type, bool]()  # whether objects of a class can be copied, by the first of them


def _can_be_copied(game: Any) -> bool:
    """Returns whether objects of a class are forked by a deep copy; where they hold a generator, a lock or a
    connection, they are not, and their actions are done again."""
    if type(game) not in _copied:
        try:
            copy.deepcopy(game)
            _copied[type(game)] = True
        except Exception:  # a TypeError of `copy`, mostly, or an error of what the object holds
            _copied[type(game)] = False
    return _copied[type(game)]


class ToolsEnv:
    """One play of a plain object; the module's docstring says which members the object may have.

    Its methods run in `thread`, or, without one, in the event loop.
    """

    def __init__(self, interface: Interface, game: Any, thread: PlayThread | None = None) -> None:
        self.interface = interface
        self.game = game
        self.thread = thread
        self.over = self.closed = False
        if offers(game, HasStateKey):
            self.state_key = game.state_key if thread is None else self._state_key
        if not offers(game, ReleasesResources) and _can_be_copied(game):
            self.fork = self._fork
        if interface.form == "native":
            self.native_action = interface.native_action
        if offers(game, HasExpert) and isinstance(game, HasExpert):
            self.expert = game.expert if thread is None else self._expert

    async def start(self) -> Observation:
        goal = self.game.goal if offers(self.game, HasGoal) else "Begin."
        text = await self._ask(goal) if callable(goal) else goal
        system = (Message(Role.SYSTEM, self.interface.system),) if self.interface.system else ()
        return await self._observe((Message(Role.USER, str(text)),), system)

    async def step(self, agent: str, action: Message) -> Step:
        if self.over:
            raise InfrastructureError(f"{self.interface.name} was given an action after its end: play each object once")
        calls = action.calls or (parse_call(action.text, self.interface.methods),)
        chosen = [
            (call, self.interface.method(call).arguments(call.arguments)) for call in calls
        ]  # all are checked before any is run
        answers: list[Message] = []
        info = {"error": 0.0}
        for call, arguments in chosen:
            try:
                text = as_text(await self._ask(getattr(self.game, call.name), **arguments))
            except ValueError as error:
                if not answers:
                    raise ActionError(f"{call.name}: {error}") from error
                text, info["error"] = f"error: {error}", 1.0
            answers.append(answer(call if action.calls else None, text))
            reward = await self._ask(self.game.reward)
            if reward is not None:
                self.over = True
                success = bool(await self._ask(self.game.success)) if offers(self.game, JudgesSuccess) else None
                return Step(None, {agent: self._checked(reward)}, done=True, success=success, info=info)
        return Step(await self._observe(tuple(answers)), {agent: 0.0}, info=info)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        close = self.game.close if offers(self.game, ReleasesResources) else None
        if self.thread is not None:
            await settled(await self.thread.close(close))
        elif close is not None:
            await settled(close())

    async def _ask(self, method: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        """Returns the result of a method, which may be a coroutine where there is no thread."""
        if self.thread is None:
            return await settled(method(*arguments, **named))
        return await settled(await self.thread.call(method, *arguments, **named))

    async def _expert(self) -> str:
        return await self._ask(self.game.expert)

    def _state_key(self) -> str:
        assert self.thread is not None
        return self.thread.now(self.game.state_key)

    async def _fork(self) -> ToolsEnv:
        try:
            copied = await self._ask(copy.deepcopy, self.game)
        except Exception as error:  # of what was not there yet when the first object of its class was copied
            raise ConfigError(
                f"{self.interface.name}: a play cannot be copied, as its object came to hold what cannot ({error}): "
                "let it hold that from its constructor on, or define close(), so that its actions are repeated instead"
            ) from error
        fork = type(self)(self.interface, copied, None if self.thread is None else PlayThread(self.thread.name))
        fork.over = self.over
        return fork

    async def _observe(self, messages: tuple[Message, ...], system: tuple[Message, ...] = ()) -> Observation:
        choices: Any = await self._ask(self.game.choices) if offers(self.game, ListsChoices) else ()
        listed = (choices,) if isinstance(choices, str) else tuple(choices)  # it may be an iterator
        if isinstance(choices, str) or not all(isinstance(choice, str) for choice in listed):
            raise InfrastructureError(
                f"{self.interface.name}.choices() gave {short(choices)}: return a list of texts, one for each action"
            )
        methods = () if self.interface.form == "text" else self.interface.methods.values()
        return Observation(messages, system=system, tools=tuple(m.tool for m in methods), choices=listed)

    def _checked(self, reward: Any) -> float:
        number = as_finite(reward)
        if number is None or abs(number) > MAX_REWARD:
            raise InfrastructureError(
                f"{self.interface.name}.reward() gave {short(reward)}: return a finite number of at most "
                f"{MAX_REWARD:g} in size, or None"
            )
        return number


@runtime_checkable
class Family(EnvFamily, Protocol):
    """A family of environments, or a class of them, as `isinstance` can ask for it."""


def as_family(obj: Any, **options: Any) -> Any:
    """Returns the EnvFamily of a plain class, of a family's class, of a family, or of the "module:name" of one of
    these.

    `options` are fields of the family's class; for a plain class, fields of `Tools` or arguments of its constructor.
    """
    if isinstance(obj, str):
        return as_family(import_object(obj, "the environment"), **options)
    if isinstance(obj, Family) and not is_plain(obj):
        if isinstance(obj, type):
            return obj(**options)
        if options:
            raise ConfigError(f"{obj!r} is already made: it takes no options, but {', '.join(options)} were given")
        return obj
    if not isinstance(obj, type):
        raise ConfigError(f"{obj!r} is no environment: give a class with reward() and tools, or tasks() and make()")
    fields = {key: options.pop(key) for key in OWN_FIELDS if key in options}
    path = f"{obj.__module__}:{obj.__qualname__}"
    importable = "<locals>" not in path and getattr(sys.modules.get(obj.__module__), obj.__qualname__, None) is obj
    return Tools(cls=path if importable else obj, arguments=options, **fields)
