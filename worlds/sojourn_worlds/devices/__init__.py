"""Devices of a car or a home that depend on each other, set by function calls or by writing their state.

A task is a state of the devices and a user's requests. An action sets or reads a device, or says that all is done,
which ends the episode; an observation is the result. The reward is the fraction of the necessary changes that are
right, less what was changed besides, at least 0.

After VehicleWorld (Yang et al. 2025, arXiv:2509.06736), where an agent that knows the state writes it in place of
calling functions. Theirs is a cabin of 30 modules, 250 functions and 680 properties; ours are twenty small devices with
rules between them, and requests are generated, so the state that they should end in is known exactly.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import Method, method_of
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.envs.tools import Interface
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Task, Tool
from sojourn_worlds.devices.errand import Errand, draw
from sojourn_worlds.devices.table import Property, State, devices
from sojourn_worlds.tool_env_info import ToolsEnvWithInfo

DIFFICULTY = ("place", "devices", "requests", "relative", "mode", "shown", "turns")
SYSTEM_PROMPT = (
    "Do what the user wants with the devices and change nothing else, then call done. Some settings need others."
)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """A car's and a home's devices that depend on each other: bring them into the state that the user wants.

    `requests` settings of `devices` devices (and of those that they depend on) are asked for, numbers with probability
    `relative` as a difference. With `mode` "function" every setting has its own calls, with "state" the agent writes
    values by path, "both" offers both. With `shown` the first message tells the state, else the agent has to look.

    After done() the reward is the fraction of what had to change that is right, less what was changed besides, at least
    0; 1 is the exact state. After `turns` actions without done() it is 0.

    `Task.data["answer"]` lists what has to change, needed settings included. In the info of an action that sets
    something `tool_score` is 1 where it brought the state nearer, else -1, and `subgoal` is 1 where something came
    right for the first time.
    """

    place: Literal["car", "home", "both"] = "both"
    devices: Annotated[int, Range(1)] = 2
    requests: Annotated[int, Range(1)] = 2
    relative: Annotated[float, Range(0, 1)] = 0.3
    mode: Literal["function", "state", "both"] = "function"
    shown: bool = True
    turns: Annotated[int, Range(2)] = 20
    form: Literal["both", "text", "native"] = "both"
    train: Annotated[int, Range(1)] = 100_000
    test: Annotated[int, Range(1)] = 1_000

    about: ClassVar[About] = About(
        source="Ours, after VehicleWorld (Yang et al. 2025, arXiv:2509.06736)",
        licence="Apache-2.0",
        smallest={"devices": 1, "requests": 1, "relative": 0.0, "mode": "state"},
    )

    def __post_init__(self) -> None:
        options = {"place": ("car", "home", "both"), "mode": ("function", "state", "both")}
        require_one_of("devices", self, {**options, "form": ("both", "text", "native")})
        limits = {"devices": (1, len(devices(self.place).names())), "requests": (1, 1 + self.devices)}
        sizes = {"relative": (0, 1), "turns": (4 * self.requests + 1, 10**6), **SIZES}
        require_within("devices", self, {**limits, **sizes})

    def tasks(self, split: str) -> Sequence[Task]:
        data = {name: getattr(self, name) for name in DIFFICULTY}

        def answered(seed: int) -> Mapping[str, Any]:
            errand = draw(seed, tuple(data.items()))
            return {**data, "answer": ", ".join(f"{path}={errand.target[path]}" for path in errand.needed)}

        return make_tasks_from_data("devices", self, split, answered)

    def make(self, task: Task) -> ToolsEnvWithInfo:
        fields = {name: task.data[name] for name in DIFFICULTY}
        panel = Panel(draw(task.seed, tuple(fields.items())), fields)
        return ToolsEnvWithInfo(_interface(panel, self.form), panel)


@dataclass
class Panel:
    """The devices at play. The calls of each setting are made by name: `set_seat_heating`, `change_media_volume`."""

    errand: Errand
    data: Mapping[str, Any]
    turns_taken: int = 0
    finished: bool = False
    best: frozenset[str] = frozenset()  # what has been right at some time
    state: State = field(init=False)
    info: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = dict(self.errand.initial)

    def __deepcopy__(self, memo: dict[int, Any]) -> Panel:
        twin = Panel(self.errand, self.data, self.turns_taken, self.finished, self.best)
        twin.state, twin.info = dict(self.state), dict(self.info)
        return twin

    def __getattr__(self, name: str) -> Callable[..., str]:
        """Returns the call of a setting."""
        verb, _, rest = name.partition("_")
        if verb not in ("set", "change") or name not in self.functions():
            raise AttributeError(f"there is no {name} here")
        setting = next(p for p in self.errand.devices.properties.values() if p.path.replace(".", "_") == rest)
        return partial(self._set if verb == "set" else self._change, setting.path)

    def functions(self) -> dict[str, Property]:
        """Returns the names of the settings' calls; none where only states are written."""
        if self.data["mode"] == "state":
            return {}
        named = [(p.path.replace(".", "_"), p) for p in self.errand.devices.properties.values()]
        verbs = {f"set_{name}": p for name, p in named}
        return verbs | {f"change_{name}": p for name, p in named if not p.options}

    def goal(self) -> str:
        names = self.errand.devices.names()
        lines = [self._shown(name) for name in names] if self.data["shown"] else [f"Devices: {', '.join(names)}."]
        return "\n".join([*lines, f"User: {' '.join(self.errand.wishes)}"])

    def look(self, device: str) -> str:
        """See the state of a device."""
        if device not in self.errand.devices.names():
            raise ValueError(f"there is no {device[:30]!r}, use one of {', '.join(self.errand.devices.names())}")
        self.turns_taken += 1
        self.info = {}
        return self._shown(device)

    def set_state(self, path: str, value: int | str) -> str:
        """Write a value, such as set_state("lamp.power", "on")."""
        return self._set(path, value)

    def done(self) -> None:
        """Say that all is as the user wants it: this ends the play."""
        self.finished = True
        self.info = {
            "right": float(len(self.errand.reached(self.state))),
            "needed": float(len(self.errand.needed)),
            "side_effects": float(len(self.errand.spoilt(self.state))),
        }

    def reward(self) -> float | None:
        if self.finished:
            return self.errand.worth(self.state)
        return None if self.turns_taken < self.data["turns"] else 0.0

    def success(self) -> bool:
        return self.finished and self.state == self.errand.target

    def expert(self) -> str:
        if self.state == self.errand.target:
            return "done()"
        path, value = self.errand.devices.toward(self.state, self.errand.target)
        value_text = f'"{value}"' if isinstance(value, str) else str(value)
        if self.data["mode"] == "state":
            return f'set_state("{path}", {value_text})'
        return f"set_{path.replace('.', '_')}({value_text})"

    def state_key(self) -> str:
        known = [
            self.errand.wishes,
            self.errand.initial,
            self.state,
            self.turns_taken,
            sorted(self.best),
            self.finished,
        ]
        return json.dumps(known, sort_keys=True)

    def _shown(self, device: str) -> str:
        of = [p for p in self.errand.devices.properties.values() if p.device == device]
        values = [f"{p.path.partition('.')[2]} {self.state[p.path]} ({_range(p)})" for p in of]
        return f"{device}: {', '.join(values)}"

    def _change(self, path: str, by: int) -> str:
        return self._set(path, int(self.state[path]) + by)

    def _set(self, path: str, value: int | str) -> str:
        before, wrong = dict(self.state), self._distance()
        self.errand.devices.write(self.state, path, value)
        self.turns_taken += 1
        right = frozenset(self.errand.reached(self.state))
        self.info = {
            "tool_score": 1.0 if self._distance() < wrong else -1.0,
            "subgoal": float(bool(right - self.best)),
        }
        self.best |= right
        also = [f"{p} is now {v}" for p, v in self.state.items() if p != path and before[p] != v]
        return ". ".join([f"{path} is {value}", *also]) + "."

    def _distance(self) -> int:
        return sum(value != self.errand.target[path] for path, value in self.state.items())


def _range(setting: Property) -> str:
    return "/".join(setting.options) or f"{setting.low}-{setting.high}"


def _interface(panel: Panel, form: Literal["both", "text", "native"]) -> Interface:
    """Returns the tools that this panel has."""
    methods = {name: _method(name, setting) for name, setting in panel.functions().items()}
    for function in (Panel.set_state, Panel.look, Panel.done):
        if function is not Panel.set_state or panel.data["mode"] != "function":
            methods[function.__name__] = method_of(function.__name__, function, "devices")
    lines = [SYSTEM_PROMPT]
    if form != "native":
        lines += ["Say one of these calls:", *(f"{m.signature}: {m.tool.description}" for m in methods.values())]
    return Interface("devices", "\n".join(lines), methods, form)


def _method(name: str, setting: Property) -> Method:
    if name.startswith("change_"):
        key, hint, description = "by", int, f"Raise the {setting.words} by so much, or lower it by a negative number."
        schema: dict[str, Any] = {"type": "integer"}
    elif setting.options:
        key, hint, description = "value", Literal[setting.options], f"Set the {setting.words}."
        schema = {"enum": list(setting.options)}
    else:
        key, hint, description = "value", int, f"Set the {setting.words}, from {setting.low} to {setting.high}."
        schema = {"type": "integer", "minimum": setting.low, "maximum": setting.high}
    parameters = {"type": "object", "properties": {key: schema}, "required": [key], "additionalProperties": False}
    signature = f"{name}({key}: {inspect.formatannotation(hint)})"
    return Method(Tool(name, description, parameters), signature, {key: hint}, frozenset({key}))
