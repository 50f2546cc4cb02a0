"""A Python session as a tool: problems of numbers and data whose answer is submitted, of 18 kinds, from seeds.

A task is a generated problem with its files. An action is Python code, which runs in the session, or the submission of
an answer; the observation is what the code printed. The reward is 1 for the right answer, else 0; submitting ends the
episode, and so does the last of `turns` actions.

In the manner of reasoning with a code interpreter (ReTool, Feng et al. 2025, arXiv:2504.11536; ToRL, Li et al. 2025,
arXiv:2503.23383): code runs when it is said, its output is seen, and the submitted answer alone is judged. It differs
in that problems are generated, each with an answer and with code that computes it in another way, so that no answer is
ever wrong or unknown; and variables last from cell to cell, as in a notebook.

A fork begins a new session with the files that the session began with, and runs its cells again; what depends on the
clock or on chance may come out differently there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import short
from sojourn.envs.fields import Count, check_fields, check_names
from sojourn.envs.sandbox import End, Entry, LostError, Result, Sandbox, Tree, format_result
from sojourn.envs.sandbox.command import require_sandbox
from sojourn.envs.sandbox.risks import risks
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.tasks.splits import draw_for_split, make_tasks_by_kind
from sojourn.types import Message, Observation, Role, Step, Task, Tool, ToolCall
from sojourn_worlds.python import numbers, tables
from sojourn_worlds.python.problem import Kind, Problem
from sojourn_worlds.sandbox_env import arguments_of, checked, last_step, observe, single_call, without_fence

KINDS: dict[str, Kind] = {**numbers.KINDS, **tables.KINDS}
WANTED = "Python code, or your answer, such as: submit 42"
SYSTEM_PROMPT = (
    "Say Python code to run it in your session, where variables last; print what you want to see. When you know the "
    "answer, say it like: submit 42"
)


def _schema(name: str) -> dict[str, object]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


TOOLS = (
    Tool("python", "Runs code in a session where variables last, and shows what it prints.", _schema("code")),
    Tool("submit", "Submits the answer, which ends the task.", _schema("answer")),
    Tool("restart", "Begins a new session, without the variables.", {"type": "object", "properties": {}}),
)
RAISED = re.compile(r'^(Traceback \(most recent call last\):|  File "<cell \d+>", line )', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Python:
    """Problems to solve with Python in a sandbox, judged by the submitted answer.

    `kinds` are names from `KINDS` (empty: all); `level` says how large a problem is. `turns` ends the episode, without
    success, after so many actions; a cell takes `timeout_s` at most, and `shown` characters of what it printed are
    shown. `form` "native" declares tools; an action may be a text or a tool call in either form.
    """

    about: ClassVar[About] = About(
        source="problems of our own; after ReTool (arXiv:2504.11536) and ToRL (arXiv:2503.23383)",
        licence="Apache-2.0",
        programs={"bwrap": "bubblewrap", "setpriv": "util-linux", "python3": "python3"},
        smallest={"kinds": ("divisible", "ones", "best"), "turns": 4},
    )

    level: Annotated[int, Range(1, 3)] = 1
    kinds: tuple[str, ...] = ()
    turns: Annotated[int, Range(1)] = 8
    timeout_s: Annotated[float, Range(above=0)] = 10.0
    shown: Annotated[int, Range(100)] = 1_500
    form: Literal["text", "native"] = "text"
    train: Count = 100_000
    test: Count = 1_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(self.kinds))
        check_fields("python", self)
        check_names("python", "kinds", self.kinds or KINDS, KINDS)

    def tasks(self, split: str) -> Sequence[Task]:
        kinds = self.kinds or tuple(KINDS)
        return make_tasks_by_kind("python", self, split, kinds, lambda kind: {"kind": kind, "level": self.level})

    def risks(self) -> tuple[str, ...]:
        """Returns one sentence for each protection of a sandbox that does not hold on this machine."""
        return risks()

    def make(self, task: Task) -> PythonEnv:
        require_sandbox("python")
        return PythonEnv(self, task, problem_of(task))


def problem_of(task: Task) -> Problem:
    """Returns the first of the seed's problems whose own hash falls to the task's split, so that no problem is in
    both."""
    kind, level = task.data["kind"], task.data["level"]
    if kind not in KINDS:
        raise ConfigError(f"python: the task has the kind {kind!r}, which is none of {', '.join(KINDS)}")
    return draw_for_split(
        task,
        f"python {kind} {level}",
        lambda rng: KINDS[kind](rng, level),
        lambda problem: repr((problem.question, problem.files)).encode(),
    )


@dataclass
class PythonEnv:
    """One episode: a session in a sandbox."""

    family: Python
    task: Task
    problem: Problem
    sandbox: Sandbox = field(default_factory=Sandbox)
    turns_taken: int = 0
    done: bool = False
    base: Tree = field(default_factory=Tree)  # the files that the session began with
    tree: Tree = field(default_factory=Tree)  # after the last action
    cells: tuple[str, ...] = ()  # the code that was run in this session

    def __post_init__(self) -> None:
        if self.family.form == "native":
            self.native_action = native_action

    async def start(self) -> Observation:
        await self.sandbox.open()
        files = {path: Entry.file(text) for path, text in self.problem.files.items()}
        if failed := await self.sandbox.write(files):
            raise InfrastructureError(f"python: {failed[0]}: the problem's files do not fit into its sandbox")
        self.base = self.tree = await self.sandbox.tree()
        return self._observe(self.problem.question, SYSTEM_PROMPT)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a Python problem was given an action after its end: play each once")
        tool, content = parse(action)
        self.turns_taken += 1
        if tool == "submit":
            return self._end(agent, self.problem.is_correct(content))
        try:
            result = None if tool == "restart" else await self._run(content)
            text = self._output_of(result) if result is not None else await self._restart()
        except LostError:
            return self._end(agent, False, lost=1.0)
        info = {} if result is None else {"error": float(bool(result.note or RAISED.search(result.output)))}
        if self.turns_taken >= self.family.turns:
            return self._end(agent, False, **info)
        return Step(self._observe(text, call=single_call(action)), {agent: 0.0}, info=info)

    async def close(self) -> None:
        self.done = True
        await self.sandbox.close()

    async def fork(self) -> PythonEnv:
        twin = PythonEnv(
            self.family, self.task, self.problem, Sandbox(), self.turns_taken, self.done, self.base, self.tree
        )
        twin.cells = self.cells
        if not self.done:
            await twin.sandbox.open()
            try:
                await twin.sandbox.write(self.base.entries)
                for cell in self.cells:
                    await twin.sandbox.cell(cell, 2 * self.family.timeout_s)
            except BaseException:
                await twin.close()
                raise
        return twin

    def state_key(self) -> str:
        """Identifies the files and the cells that were run, since the session's variables cannot be seen from here."""
        cells = hashlib.sha256(repr(self.cells).encode(errors="replace")).hexdigest()
        return f"{self.task.id}/{self.tree.digest[:16]}/{cells[:16]}/{self.family.turns - self.turns_taken}"

    def expert(self) -> str:
        """Runs the reference code, then submits."""
        last_turn = self.turns_taken + 1 >= self.family.turns
        if last_turn or self.problem.code in self.cells:
            return f"submit {self.problem.submission}"
        return self.problem.code

    async def _run(self, code: str) -> Result:
        result = await self.sandbox.cell(code, self.family.timeout_s)
        self.tree = await self.sandbox.tree()
        self.cells = (*self.cells, code)
        if result.end is not End.ANSWERED:
            self.base, self.cells = self.tree, ()
        return result

    def _output_of(self, result: Result) -> str:
        text = format_result(result, self.family.shown)
        return text if result.end is End.ANSWERED else f"{text}\n[the session has ended, and its variables are gone]"

    async def _restart(self) -> str:
        await self.sandbox.restart()
        self.base, self.cells = self.tree, ()
        return "A new session."

    def _observe(self, text: str, system: str = "", call: ToolCall | None = None) -> Observation:
        return observe(text, TOOLS if self.family.form == "native" else (), system, call)

    def _end(self, agent: str, passed: bool, **info: float) -> Step:
        self.done = True
        return last_step(agent, passed, **info)


def native_action(text: str) -> Message:
    """Returns the structured call that does what an action in words does."""
    tool, content = parse(Message(Role.ASSISTANT, text))
    key = {"python": "code", "submit": "answer"}.get(tool)
    return Message(Role.ASSISTANT, calls=(ToolCall(tool, {key: content} if key else {}),))


def parse(action: Message) -> tuple[str, str]:
    """Returns the tool ("python", "submit" or "restart") with its code or answer; raises `ActionError` for anything
    else.
    """
    if call := single_call(action):
        if call.name == "restart":
            return "restart", ""
        value = arguments_of(call).get({"python": "code", "submit": "answer"}.get(call.name, ""))
        if not isinstance(value, (str, int, float)):
            raise ActionError(f"{short(call.name)} is no tool with these arguments, use python(code) or submit(answer)")
        return call.name, checked(str(value), WANTED)
    text = checked(action.text, WANTED).strip()  # the length first: regular expressions are slow on long texts
    text = without_fence(text, "python|py")
    if text.lower() == "restart":
        return "restart", ""
    if match := re.fullmatch(r"submit[ :]+([^ :\n][^\n]*)", text, re.IGNORECASE):
        return "submit", checked(match[1], WANTED)
    return "python", checked(text, WANTED)
