"""A desktop: real windows on a screen of 800 by 600, a mouse and a keyboard.

A task is a job with files or a form. An action is a mouse or keyboard call, or done(), which ends the episode; an
observation is the screen as text, as a screenshot, or both. The reward is 1 if what was saved is right, else 0, and 0
after `turns` actions.

Ours, after OSWorld (Xie et al. 2024, arXiv:2404.07972). It differs in size: no virtual machine, but an X server, a
window manager and one application in a sandbox, started in about a second. The applications are Mousepad, the text
editor of Xfce, and three small ones of ours. Only what was saved counts: it is judged outside of the sandbox. The text
of the screen is the same in every episode; pixels may differ.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import parse_call
from sojourn.envs.fields import Count, check_fields, check_names
from sojourn.envs.tools import Interface
from sojourn.errors import ActionError, InfrastructureError
from sojourn.tasks.splits import make_tasks_by_kind
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.desktop.expert import advise
from sojourn_worlds.desktop.sandbox import HEIGHT, PROGRAMS, WIDTH, Sandbox, Screens, check, panel_command
from sojourn_worlds.desktop.tasks import KINDS, NOTES, Job, draw

LONGEST_TEXT = 1000
NAMED = ("Return", "Tab", "Escape", "BackSpace", "Delete", "Home", "End", "Page_Up", "Page_Down", "Left", "Right", "Up",
         "Down", "space", *(f"F{number}" for number in range(1, 11)))  # fmt: skip
KEYS = frozenset(NAMED) | frozenset("abcdefghijklmnopqrstuvwxyz0123456789")


class Hands:
    """You have a screen of 800 x 600 pixels, a mouse and a keyboard."""

    def click(self, x: int, y: int, button: Literal["left", "right"] = "left") -> None: ...
    def double_click(self, x: int, y: int) -> None: ...
    def drag(self, x: int, y: int, to_x: int, to_y: int) -> None: ...
    def scroll(self, x: int, y: int, way: Literal["up", "down"]) -> None: ...
    def type(self, text: str) -> None: ...
    def key(self, combination: str) -> None:
        """such as Return, Escape, Left, ctrl+s"""

    def wait(self) -> None: ...
    def done(self) -> None:
        """ends the task; what was saved then counts"""


HANDS = Interface.of(Hands, "desktop", "text")


@dataclass(frozen=True, kw_only=True)
class Desktop:
    """Real applications on a screen: edit a file, fill in a form, use a calculator, drag things into boxes.

    `kinds` of tasks, which take turns. `observation`: "text" (windows, and in our own applications every widget, with
    their places: the text of an editor is not shown), "screenshot", or "both". `turns` is how many actions an episode
    has. `displays` bounds the concurrent episodes: each has a screen of its own, of about 150 MB; one more is started
    ahead.
    """

    lowest_reward = 0.0
    about: ClassVar[About] = About(
        source="ours, after OSWorld (Xie et al. 2024, arXiv:2404.07972); with Mousepad, Openbox and Xvfb",
        licence="Apache-2.0; the programs it runs are GPL-2.0-or-later and MIT, python-xlib is LGPL-2.1-or-later",
        extra="desktop",
        programs=PROGRAMS,
        modalities=("text", "image"),
        smallest={"kinds": ("calculator",), "displays": 2},
    )

    kinds: tuple[str, ...] = KINDS
    observation: Literal["text", "screenshot", "both"] = "text"
    turns: Annotated[int, Range(1)] = 40
    displays: Annotated[int, Range(1)] = 4
    timeout_s: Annotated[float, Range(above=0)] = 60.0
    train: Count = 100_000
    test: Count = 1_000
    _screens: list[Screens] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(self.kinds))
        check_fields("desktop", self)
        check_names("desktop", "kinds", self.kinds, KINDS)

    @property
    def capacity(self) -> int:
        return self.displays

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_by_kind("desktop", self, split, self.kinds, lambda kind: {"kind": kind})

    async def open(self) -> None:
        """Checks that everything needed is installed. Until its `close`, the next screen is started ahead."""
        check(self.kinds)
        self.screens.keep()

    async def close(self) -> None:
        await self.screens.let_go()

    @property
    def screens(self) -> Screens:
        if not self._screens:
            self._screens.append(Screens(self.timeout_s))
        return self._screens[0]

    def make(self, task: Task) -> DesktopEnv:
        return DesktopEnv(self, draw(str(task.data["kind"]), task.seed))


class DesktopEnv:
    """One episode on a screen of its own. It cannot fork, as a running program cannot be copied."""

    def __init__(self, config: Desktop, job: Job) -> None:
        self.blobs: dict[str, bytes] = {}
        self._config = config
        self._job = job
        self._sandbox: Sandbox | None = None
        self._shown: Mapping[str, Any] | None = None
        self._calls_taken: list[str] = []
        self._over = False

    async def start(self) -> Observation:
        check((self._job.kind,))
        self._sandbox = await self._config.screens.take()
        job = self._job
        program = ["mousepad", "--disable-server", NOTES]
        if job.spec is not None:
            program = panel_command(job.spec)
        opened = {"program": program, "files": dict(job.files), "panel": job.spec is not None}
        self._shown = await self._ask("open", opened)
        return self._observe((Message(Role.SYSTEM, f"{HANDS.system}\nTask: {job.goal}"),))

    async def step(self, agent: str, action: Message) -> Step:
        if self._over or self._shown is None:
            raise InfrastructureError("a desktop was given an action before its start or after its end")
        name, given, call = _read(action)
        self._calls_taken.append(call)
        if name == "done":
            return self._end(agent, self._job.right(self._shown))
        if name == "scroll":
            name, given = "click", {"x": given["x"], "y": given["y"], "button": given["way"], "times": 3}
        if name == "double_click":
            name, given = "click", {**given, "times": 2}
        self._shown = await self._ask(name, {"seconds": 0.5} if name == "wait" else given)
        if len(self._calls_taken) >= self._config.turns:
            return self._end(agent, False)
        return Step(self._observe(), {agent: 0.0})

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()

    def expert(self) -> str:
        if self._shown is None or self._over:
            raise InfrastructureError("the desktop is not under way: start it first")
        return advise(self._job, self._shown, self._calls_taken)

    def state_key(self) -> str:
        """Hashes the task, the text of the screen, and the saved files."""
        screen = self._shown or {}
        known = repr((self._job.goal, screen.get("windows"), screen.get("widgets"), screen.get("files"), self._over))
        return hashlib.sha256(known.encode()).hexdigest()[:16]

    async def _ask(self, do: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._sandbox is not None  # it was started
        return await self._sandbox.ask(do, picture=self._config.observation != "text", **given)

    def _end(self, agent: str, right: bool) -> Step:
        self._over = True
        return Step(None, {agent: float(right)}, done=True, success=right)

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        assert self._shown is not None
        images: tuple[str, ...] = ()
        if self._config.observation != "text":
            picture = base64.b64decode(self._shown["picture"])
            images = (hashlib.sha256(picture).hexdigest(),)
            self.blobs[images[0]] = picture
        text = "" if self._config.observation == "screenshot" else describe(self._shown)
        return Observation((Message(Role.USER, text, images=images),), system=system)


def describe(screen: Mapping[str, Any]) -> str:
    """Returns a line for each window and widget: its name, centre, size, and value."""
    lines = []
    for window in screen["windows"]:
        middle = f"{window['x'] + window['w'] // 2},{window['y'] + window['h'] // 2} {window['w']}x{window['h']}"
        kind = f"window {window['title']}" if window["title"] else "menu"
        lines.append(f"{kind} {middle}{': active' if window['active'] and window['title'] else ''}")
    for widget in screen["widgets"]["widgets"] if screen["widgets"] else ():
        value = f": {widget['value']}" if widget["value"] else ""
        lines.append(
            f"{widget['role']} {widget['name']} {widget['x']},{widget['y']} {widget['w']}x{widget['h']}{value}"
        )
    return "\n".join(lines) or "(no windows)"


def _read(action: Message) -> tuple[str, dict[str, Any], str]:
    """Returns the name of the call, its arguments, and the call as the expert would write it."""
    if len(action.calls) > 1:
        raise ActionError("Make one call at a time.")
    call = action.calls[0] if action.calls else parse_call(action.text, HANDS.methods)
    method = HANDS.methods.get(call.name)
    if method is None:
        raise ActionError(f"There is no {call.name[:30]!r}: use one of {', '.join(HANDS.methods)}.")
    given = method.arguments(call.arguments)
    for name, most in (("x", WIDTH), ("to_x", WIDTH), ("y", HEIGHT), ("to_y", HEIGHT)):
        if name in given and not 0 <= given[name] < most:
            raise ActionError(f"{name} = {given[name]} is not on the screen: it must be from 0 to {most - 1}.")
    if call.name == "key":
        *held, last = given["combination"].split("+")
        if last not in KEYS or len(set(held)) < len(held) or not set(held) <= {"ctrl", "alt", "shift"}:
            raise ActionError(f"There is no key {given['combination'][:30]!r}: use {', '.join(NAMED[:9])}, ctrl+s ...")
    if call.name == "type":
        text = given["text"]
        if not 0 < len(text) <= LONGEST_TEXT:
            raise ActionError(f"The text has {len(text)} characters: from 1 to {LONGEST_TEXT} can be typed.")
        if wrong := [letter for letter in text if not (" " <= letter <= "~" or letter in "\n\t")]:
            raise ActionError(f"{wrong[0]!r} cannot be typed: the keyboard has plain ASCII letters.")
    values = [given[key] for key in method.hints if key in given and (key, given[key]) != ("button", "left")]
    return call.name, given, f"{call.name}({', '.join(json.dumps(value, ensure_ascii=False) for value in values)})"
