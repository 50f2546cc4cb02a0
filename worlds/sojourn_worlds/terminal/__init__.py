"""Jobs at a bash shell: 28 kinds over logs, tables, JSON, SQLite, files, rights, archives and scripts, from seeds.

After Endless Terminals (Gandhi, Garg, Goodman, Papailiopoulos 2026, arXiv:2601.16443): generated jobs, a reward of 0 or
1 at the end of the episode, a plain loop of command and output. Differs: there language models write each job, its
container and its tests, and jobs that no model solves are left out; here programs write jobs of known kinds, each with
commands that do it, and every kind is tested to fail when nothing is done and to pass when those are run. A job is
judged by its files alone, outside the sandbox but in a process of its own, when the agent says that it is done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.registry import Range
from sojourn.envs.about import About
from sojourn.envs.calls import LONGEST_ACTION, short
from sojourn.envs.fields import Count, check_fields, check_names
from sojourn.envs.grader import Check, Grader
from sojourn.envs.sandbox import LostError, Sandbox, Tree, format_result
from sojourn.envs.sandbox.command import require_sandbox
from sojourn.envs.sandbox.risks import risks
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import in_turns, of_its_split
from sojourn.types import Message, Observation, Role, Step, Task, Tool
from sojourn_worlds.terminal import data, folders, logs
from sojourn_worlds.terminal.job import Job, Kind

KINDS: dict[str, Kind] = {**logs.KINDS, **data.KINDS, **folders.KINDS}
BRIEF = "You work in bash, in the folder /task. Say one command at a time. When the task is done, say: done"
TOOLS = (
    Tool(
        "bash",
        "Runs a command.",
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    ),
    Tool("done", "Says that the task is done.", {"type": "object", "properties": {}}),
)


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """Jobs at a bash shell in a sandbox, judged by the files that are left.

    `kinds` are names from `KINDS` (empty: all); `level` says how large and how involved a job is. `turns` ends the
    play, lost, after so many actions; a command takes `timeout_s` at most, and `shown` characters of what it said are
    shown. `form` "native" declares tools; both ways of saying an action are understood in either form.
    """

    about: ClassVar[About] = About(
        source="jobs of our own; after Endless Terminals (arXiv:2601.16443)",
        licence="Apache-2.0",
        programs={"bwrap": "bubblewrap", "setpriv": "util-linux", "python3": "python3"},
        smallest={"kinds": ("count_lines", "sort_lines", "rename"), "turns": 6},
    )

    level: Annotated[int, Range(1, 3)] = 1
    kinds: tuple[str, ...] = ()
    turns: Annotated[int, Range(1)] = 12
    timeout_s: Annotated[float, Range(above=0)] = 10.0
    shown: Annotated[int, Range(100)] = 1_500
    form: Literal["text", "native"] = "text"
    train: Count = 100_000
    test: Count = 1_000
    _grader: Grader = field(default_factory=Grader, init=False, repr=False, compare=False)  # kept while it is open

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(self.kinds))
        check_fields("terminal", self)
        check_names("terminal", "kinds", self.kinds or KINDS, KINDS)

    async def open(self) -> None:
        await self._grader.open()

    async def close(self) -> None:
        await self._grader.close()

    def tasks(self, split: str) -> Sequence[Task]:
        kinds = self.kinds or tuple(KINDS)
        return in_turns("terminal", self, split, kinds, lambda kind: {"kind": kind, "level": self.level})

    def risks(self) -> tuple[str, ...]:
        """Returns one sentence for each protection of a sandbox that does not hold on this machine."""
        return risks()

    def make(self, task: Task) -> TerminalEnv:
        require_sandbox("terminal")
        return TerminalEnv(self, task, job_of(task))


def job_of(task: Task) -> Job:
    """The first of the seed's jobs whose own hash falls to the task's split: no job is in both."""
    kind, level = task.data["kind"], task.data["level"]
    if kind not in KINDS:
        raise ConfigError(f"terminal: the task has the kind {kind!r}, which is none of {', '.join(KINDS)}")
    return of_its_split(
        task,
        f"terminal {kind} {level}",
        lambda rng: KINDS[kind](rng, level),
        lambda job: (job.instruction + Tree(job.files).digest).encode(),
    )


def check_of(data: Mapping[str, Any], seed: int, split: str) -> Check:
    """Returns the check of a task, for the grading process."""
    return job_of(Task("terminal", data, seed, split)).check


@dataclass
class TerminalEnv:
    family: Terminal
    task: Task
    job: Job
    sandbox: Sandbox = field(default_factory=Sandbox)
    grader: Grader = field(default_factory=Grader)
    used: int = 0
    over: bool = False
    tree: Tree = field(default_factory=Tree)  # after the last action
    place: int = 0  # of the next of the solution's commands, for the expert

    async def start(self) -> Observation:
        await self.sandbox.open()
        if failed := await self.sandbox.write(self.job.files):
            raise InfrastructureError(f"terminal: {failed[0]}: the job's files do not fit into its sandbox")
        self.tree = await self.sandbox.tree()
        return self._observe(self.job.instruction, (Message(Role.SYSTEM, BRIEF),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.over:
            raise InfrastructureError("a terminal was given an action after its end: play each once")
        command = read(action)
        self.used += 1
        if command is None:
            return self._end(agent, await self._passes())
        try:
            result = await self.sandbox.run(command, self.family.timeout_s)
            self.tree = await self.sandbox.tree()
        except LostError:
            return self._end(agent, False, lost=1.0)
        steps = self.job.solution
        self.place = (self.place + 1) % len(steps) if command == steps[self.place] else 0
        info = {"error": float(bool(result.note))}
        if self.used >= self.family.turns:
            return self._end(agent, False, **info)
        return Step(self._observe(format_result(result, self.family.shown)), {agent: 0.0}, info=info)

    async def close(self) -> None:
        self.over = True
        try:
            await self.sandbox.close()
        finally:
            await self.grader.close()

    async def fork(self) -> TerminalEnv:
        sandbox = Sandbox() if self.over else await self.sandbox.fork()
        used, tree = self.used, self.tree
        return TerminalEnv(self.family, self.task, self.job, sandbox, Grader(), used, self.over, tree, self.place)

    def state_key(self) -> str:
        left = self.family.turns - self.used
        return f"{self.task.id}/{self.tree.digest[:16]}/{self.sandbox.digest[:16]}/{left}"

    async def expert(self) -> str:
        """Says the solution's commands from the first, in /task; begins again after anything else was said."""
        if await self._passes():
            return "done"
        if self.sandbox.folder != "/task":
            return "cd /task"
        return self.job.solution[self.place]

    async def _passes(self) -> bool:
        task = self.task
        check = f"{__name__}:{check_of.__name__}"
        return await self.grader(check, dict(task.data), task.seed, task.split, tree=self.tree) is True

    def _observe(self, text: str, brief: tuple[Message, ...] = ()) -> Observation:
        tools = TOOLS if self.family.form == "native" else ()
        return Observation((Message(Role.USER, text),), system=brief, tools=tools)

    def _end(self, agent: str, passed: bool, **info: float) -> Step:
        self.over = True
        return Step(None, {agent: float(passed)}, done=True, success=passed, info=info)


def read(action: Message) -> str | None:
    """The command that is said, None for "done"; ActionError where it is neither."""
    if len(action.calls) > 1:
        raise ActionError(f"{len(action.calls)} calls were made at once, make one")
    for call in action.calls:
        arguments: Mapping[str, object] = call.arguments if isinstance(call.arguments, Mapping) else {}
        if call.name == "done":
            return None
        command = arguments.get("command")
        if call.name != "bash" or not isinstance(command, str):
            raise ActionError(f"{short(call.name)} is no tool with these arguments, use bash(command) or done()")
        return _checked(command)
    text = _checked(action.text).strip()
    if fenced := re.fullmatch(r"```(?:bash|sh|shell)?\n(.*?)\n?```", text, re.DOTALL):
        text = fenced[1].strip()
    return None if text.lower().rstrip(".!") == "done" else _checked(text)


def _checked(command: str) -> str:
    if not command.strip():
        raise ActionError("nothing was said, say a command, such as: ls")
    if len(command) > LONGEST_ACTION:
        raise ActionError(f"{len(command)} characters are too many for a command, say at most {LONGEST_ACTION}")
    return command
