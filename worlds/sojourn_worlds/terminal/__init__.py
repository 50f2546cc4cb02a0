"""Jobs at a bash shell: 28 kinds over logs, tables, JSON, SQLite, files, rights, archives and scripts, from seeds.

A task is a job: files and an instruction. An action is a shell command, or "done"; the observation is the command's
output. The reward is 1 if the files are as the job asks when the agent says "done", else 0; the episode ends then, or
without success after `turns` actions.

After Endless Terminals (Gandhi, Garg, Goodman, Papailiopoulos 2026, arXiv:2601.16443): generated jobs, a reward of 0 or
1 at the end of the episode, a plain loop of command and output. It differs: there language models write each job, its
container and its tests, and jobs that no model solves are left out; here programs write jobs of known kinds, each with
commands that do it, and every kind is tested to fail when nothing is done and to pass when those are run. A job is
judged by its files alone, outside the sandbox but in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import short
from sojourn.envs.fields import Count, check_fields, check_names
from sojourn.envs.grader import Check, Grader
from sojourn.envs.sandbox import LostError, Sandbox, Tree, format_result
from sojourn.envs.sandbox.command import require_sandbox
from sojourn.envs.sandbox.risks import risks
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import draw_for_split, make_tasks_by_kind
from sojourn.types import Message, Observation, Role, Step, Task, Tool, ToolCall
from sojourn_worlds.sandbox_env import arguments_of, checked, last_step, observe, single_call, without_fence
from sojourn_worlds.terminal import data, folders, logs
from sojourn_worlds.terminal.job import Job, Kind

KINDS: dict[str, Kind] = {**logs.KINDS, **data.KINDS, **folders.KINDS}
SYSTEM_PROMPT = "You work in bash, in the folder /task. Say one command at a time. When the task is done, say: done"
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
    episode, without success, after so many actions; a command takes `timeout_s` at most, and `shown` characters of its
    output are shown. `form` "native" declares tools; an action may be a text or a tool call in either form.
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
        return make_tasks_by_kind("terminal", self, split, kinds, lambda kind: {"kind": kind, "level": self.level})

    def risks(self) -> tuple[str, ...]:
        """Returns one sentence for each protection of a sandbox that does not hold on this machine."""
        return risks()

    def make(self, task: Task) -> TerminalEnv:
        require_sandbox("terminal")
        return TerminalEnv(self, task, job_of(task))


def job_of(task: Task) -> Job:
    """Returns the first of the seed's jobs whose own hash falls to the task's split, so that no job is in both."""
    kind, level = task.data["kind"], task.data["level"]
    if kind not in KINDS:
        raise ConfigError(f"terminal: the task has the kind {kind!r}, which is none of {', '.join(KINDS)}")
    return draw_for_split(
        task,
        f"terminal {kind} {level}",
        lambda rng: KINDS[kind](rng, level),
        lambda job: (job.instruction + Tree(job.files).digest).encode(),
    )


def check_of(data: Mapping[str, Any], seed: int, split: str) -> Check:
    """Returns the check that judges a task, for the process that judges."""
    return job_of(Task("terminal", data, seed, split)).check


@dataclass
class TerminalEnv:
    """One episode: a shell in a sandbox."""

    family: Terminal
    task: Task
    job: Job
    sandbox: Sandbox = field(default_factory=Sandbox)
    grader: Grader = field(default_factory=Grader)
    turns_taken: int = 0
    done: bool = False
    tree: Tree = field(default_factory=Tree)  # after the last action
    next_command: int = 0  # index of the solution's next command, for the expert

    def __post_init__(self) -> None:
        if self.family.form == "native":
            self.native_action = native_action

    async def start(self) -> Observation:
        await self.sandbox.open()
        if failed := await self.sandbox.write(self.job.files):
            raise InfrastructureError(f"terminal: {failed[0]}: the job's files do not fit into its sandbox")
        self.tree = await self.sandbox.tree()
        return self._observe(self.job.instruction, SYSTEM_PROMPT)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a terminal was given an action after its end: play each once")
        command = parse(action)
        self.turns_taken += 1
        if command is None:
            return self._end(agent, await self._passes())
        try:
            result = await self.sandbox.run(command, self.family.timeout_s)
            self.tree = await self.sandbox.tree()
        except LostError:
            return self._end(agent, False, lost=1.0)
        steps = self.job.solution
        self.next_command = (self.next_command + 1) % len(steps) if command == steps[self.next_command] else 0
        info = {"error": float(bool(result.note))}
        if self.turns_taken >= self.family.turns:
            return self._end(agent, False, **info)
        shown = format_result(result, self.family.shown)
        return Step(self._observe(shown, call=single_call(action)), {agent: 0.0}, info=info)

    async def close(self) -> None:
        self.done = True
        try:
            await self.sandbox.close()
        finally:
            await self.grader.close()

    async def fork(self) -> TerminalEnv:
        sandbox = Sandbox() if self.done else await self.sandbox.fork()
        turns_taken, tree = self.turns_taken, self.tree
        return TerminalEnv(
            self.family, self.task, self.job, sandbox, Grader(), turns_taken, self.done, tree, self.next_command
        )

    def state_key(self) -> str:
        left = self.family.turns - self.turns_taken
        return f"{self.task.id}/{self.tree.digest[:16]}/{self.sandbox.digest[:16]}/{left}"

    async def expert(self) -> str:
        """Returns the solution's commands from the first, in /task; begins again after any other command."""
        if await self._passes():
            return "done"
        if self.sandbox.folder != "/task":
            return "cd /task"
        return self.job.solution[self.next_command]

    async def _passes(self) -> bool:
        task = self.task
        check = f"{__name__}:{check_of.__name__}"
        return await self.grader(check, dict(task.data), task.seed, task.split, tree=self.tree) is True

    def _observe(self, text: str, system: str = "", call: ToolCall | None = None) -> Observation:
        return observe(text, TOOLS if self.family.form == "native" else (), system, call)

    def _end(self, agent: str, passed: bool, **info: float) -> Step:
        self.done = True
        return last_step(agent, passed, **info)


def native_action(text: str) -> Message:
    """Returns the structured call that does what an action in words does."""
    command = parse(Message(Role.ASSISTANT, text))
    call = ToolCall("done", {}) if command is None else ToolCall("bash", {"command": command})
    return Message(Role.ASSISTANT, calls=(call,))


def parse(action: Message) -> str | None:
    """Returns the command, None for "done"; raises `ActionError` where the action is neither."""
    if call := single_call(action):
        if call.name == "done":
            return None
        command = arguments_of(call).get("command")
        if call.name != "bash" or not isinstance(command, str):
            raise ActionError(f"{short(call.name)} is no tool with these arguments, use bash(command) or done()")
        return _checked(command)
    text = without_fence(_checked(action.text).strip(), "bash|sh|shell").strip()
    return None if text.lower().rstrip(".!") == "done" else _checked(text)


def _checked(command: str) -> str:
    return checked(command, "a command, such as: ls", " for a command")
