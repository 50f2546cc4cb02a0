"""Small modules with planted bugs to find and repair, judged by tests of which the agent sees half.

A task draws modules and bugs from its seed. An action reads, replaces or writes a file, runs the visible tests, or
submits; the observation is the file or the tests' report. The reward is 1 if all tests pass when the agent submits,
hidden ones included, else 0; the episode ends then, or without success after `turns` actions.

In the manner of repository repair (SWE-bench, Jimenez et al. 2024, arXiv:2310.06770) with bugs made automatically
(SWE-smith, Yang et al. 2025, arXiv:2504.21798). It differs: the modules are our own and small, a bug is one mutation
that at least one test notices, files are read and changed through a few actions without a shell, and tests are calls
whose results are compared outside the sandbox in which they run. Every bug is tried before it is used; the unchanged
modules pass all tests, which proves that each task can be done.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Annotated, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.calls import LONGEST_ACTION
from sojourn.envs.fields import Count, check_fields, require_within
from sojourn.envs.sandbox.command import require_sandbox
from sojourn.envs.sandbox.risks import risks
from sojourn.errors import ActionError, InfrastructureError
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Message, Observation, Step, Task
from sojourn_worlds.repo.bugs import Bug, Case, bugs_of, cases_of, expected, source_of
from sojourn_worlds.repo.cases import CASES
from sojourn_worlds.repo.trial import describe, is_same, is_value, run_cases
from sojourn_worlds.sandbox_env import last_step, observe

MAX_FILE_CHARS = 20_000  # characters
SYSTEM_PROMPT = """Some functions of a small Python repository are wrong. Repair them, and then submit. \
Their docstrings say what is right. Say one action:
read FILE
replace FILE 3-5 (the new lines follow, instead of lines 3 to 5)
write FILE (the whole new text follows)
test
submit"""


@dataclass(frozen=True, kw_only=True)
class Repo:
    """Modules with planted bugs, judged by tests of which the agent sees half.

    A repository has so many `modules`, of which `bugs` have a bug each. `seen`: whether the tests that the agent can
    run notice every bug; without it they notice none, and only the docstrings tell. `turns` ends the episode, without
    success, after so many actions; all tests together take `timeout_s` at most.
    """

    about: ClassVar[About] = About(
        source="modules of our own; after SWE-bench (arXiv:2310.06770) and SWE-smith (arXiv:2504.21798)",
        licence="Apache-2.0",
        programs={"bwrap": "bubblewrap", "setpriv": "util-linux", "python3": "python3"},
        smallest={"modules": 1, "bugs": 1, "turns": 8},
    )

    modules: Annotated[int, Range(1, len(CASES))] = 2
    bugs: Annotated[int, Range(1)] = 1
    seen: bool = True
    turns: Annotated[int, Range(1)] = 16
    timeout_s: Annotated[float, Range(above=0)] = 10.0
    train: Count = 100_000
    test: Count = 1_000

    def __post_init__(self) -> None:
        check_fields("repo", self)
        require_within("repo", self, {"bugs": (1, self.modules)})

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_from_data(
            "repo", self, split, {"modules": self.modules, "bugs": self.bugs, "seen": self.seen}
        )

    def risks(self) -> tuple[str, ...]:
        """Returns one sentence for each protection of a sandbox that does not hold on this machine."""
        return risks()

    def make(self, task: Task) -> RepoEnv:
        require_sandbox("repo")
        names, planted = planted_in(task)
        files = {f"{name}.py": source_of(name) for name in names}
        for bug in planted:
            files[f"{bug.module}.py"] = bug.plant(files[f"{bug.module}.py"])
        return RepoEnv(self, task, names, files)


def planted_in(task: Task) -> tuple[tuple[str, ...], tuple[Bug, ...]]:
    """Returns the modules of a task, sorted, and the bugs in them; each bug belongs to one split by its own hash."""
    rng = random.Random(f"repo {task.split} {task.seed}")
    names = rng.sample(sorted(CASES), task.data["modules"])
    planted: list[Bug] = []
    for name in rng.sample(names, len(names)):
        possible = [bug for bug in bugs_of(name, task.data["seen"]) if bug.split == task.split]
        if possible and len(planted) < task.data["bugs"]:
            planted.append(rng.choice(possible))
    if len(planted) < task.data["bugs"]:  # unseen bugs are few: take modules that have some
        return planted_in(Task(task.env, task.data, task.seed + 10**12, task.split))
    return tuple(sorted(names)), tuple(planted)


@dataclass
class RepoEnv:
    """One episode: the files as they are now."""

    family: Repo
    task: Task
    names: tuple[str, ...]
    files: dict[str, str]
    turns_taken: int = 0
    done: bool = False
    tests_were_run: bool = False
    files_read: frozenset[str] = field(default_factory=frozenset)

    @property
    def tests(self) -> dict[str, str]:
        """Returns the tests that the agent may read, as if they were files."""
        tests: dict[str, str] = {}
        for name in self.names:
            pairs = zip(cases_of(name), expected(name), strict=True)
            lines = [f"{case.call} must have {describe(right)}\n" for case, right in pairs if case.seen]
            tests[f"test_{name}.txt"] = "".join(lines)
        return tests

    async def start(self) -> Observation:
        listed = ", ".join([*self.files, *self.tests])
        text = f"Files: {listed}."
        return observe(text, (), SYSTEM_PROMPT)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a repository was given an action after its end: play each once")
        text = action.text.strip("\n")
        if len(text) > LONGEST_ACTION:
            raise ActionError(f"{len(text)} characters are too many, say at most {LONGEST_ACTION}")
        head, _, body = text.partition("\n")
        crashed = False
        match head.split():
            case ["submit"]:
                return self._end(agent, await self._passes())
            case ["test"]:
                answers = await run_cases(
                    self.files, [case for case, _ in self._cases(seen=True)], self.family.timeout_s
                )
                self.tests_were_run, result, crashed = True, self._report(answers), self._crashed(answers)
            case ["read", name]:
                result = _numbered(self._file(name, {**self.files, **self.tests}))
                self.files_read |= {name}
            case ["replace", name, lines]:
                result = self._replace(name, lines, _plain(body))
            case ["write", name]:
                result = self._write(name, f"{_plain(body)}\n" if body else "")
            case _:
                raise ActionError(f'"{head[:30]}" is no action, say read, replace, write, test or submit')
        self.turns_taken += 1
        if self.turns_taken >= self.family.turns:
            return self._end(agent, False, error=float(crashed))
        return Step(observe(result, ()), {agent: 0.0}, info={"error": float(crashed)})

    async def close(self) -> None:
        self.done = True

    async def fork(self) -> RepoEnv:
        twin = RepoEnv(
            self.family, self.task, self.names, dict(self.files), self.turns_taken, self.done, self.tests_were_run
        )
        twin.files_read = self.files_read
        return twin

    def state_key(self) -> str:
        texts = hashlib.sha256(repr(sorted(self.files.items())).encode(errors="replace")).hexdigest()
        return f"{self.task.id}/{texts[:16]}/{self.family.turns - self.turns_taken}"

    def expert(self) -> str:
        """Tests, reads and repairs, as long as there are turns for it; it knows the unchanged modules."""
        wrong = [name for name in self.names if self.files[f"{name}.py"] != source_of(name)]
        if not wrong:
            return "submit"
        spare = self.family.turns - self.turns_taken - len(wrong) - 1
        file = f"{wrong[0]}.py"
        if not self.tests_were_run and spare > 0:
            return "test"
        if file not in self.files_read and spare > 0:
            return f"read {file}"
        return repair(file, self.files[file], source_of(wrong[0]))

    def _file(self, name: str, files: Mapping[str, str]) -> str:
        if name not in files:
            what = "change" if files is self.files else "read"
            raise ActionError(f'there is no file "{name[:40]}" to {what}, use one of {", ".join(files)}')
        return files[name]

    def _replace(self, name: str, lines: str, body: str) -> str:
        old = self._file(name, self.files).splitlines()
        numbers = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", lines, re.ASCII)
        first, last = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (0, 0)
        if not 1 <= first <= last <= len(old) + 1:
            raise ActionError(f'"{lines[:20]}" are no lines of {name}, which has 1 to {len(old)}, say as in 3-5')
        new = [*old[: first - 1], *(body.split("\n") if body else []), *old[last:]]
        return self._write(name, "".join(f"{line}\n" for line in new))

    def _write(self, name: str, text: str) -> str:
        self._file(name, self.files)
        if len(text) > MAX_FILE_CHARS:
            raise ActionError(f"{name} would have {len(text)} characters, but {MAX_FILE_CHARS} is the most")
        self.files[name] = text
        return f"{name} is changed."

    def _cases(self, seen: bool) -> list[tuple[Case, str]]:
        pairs = [pair for name in self.names for pair in zip(cases_of(name), expected(name), strict=True)]
        return [(case, right) for case, right in pairs if case.seen or not seen]

    def _crashed(self, answers: Sequence[str]) -> bool:
        """Returns whether the code raised an error that no test asks for, or gave no answer."""
        pairs = zip(self._cases(seen=True), answers, strict=True)
        return any(not is_value(answer) and not is_same(answer, right) for (_, right), answer in pairs)

    def _report(self, answers: Sequence[str]) -> str:
        pairs = self._cases(seen=True)
        failed = [
            f"{case.call} must have {describe(right)}, but it has {describe(answer)}"
            for (case, right), answer in zip(pairs, answers, strict=True)
            if not is_same(answer, right)
        ]
        lines = [
            f"{len(failed)} of {len(pairs)} tests fail." if failed else f"All {len(pairs)} tests pass.",
            *failed[:4],
        ]
        return "\n".join(lines)

    async def _passes(self) -> bool:
        pairs = self._cases(seen=False)
        answers = await run_cases(self.files, [case for case, _ in pairs], self.family.timeout_s)
        return all(is_same(answer, right) for (_, right), answer in zip(pairs, answers, strict=True))

    def _end(self, agent: str, passed: bool, **info: float) -> Step:
        self.done = True
        return last_step(agent, passed, **info)


def repair(file: str, now: str, right: str) -> str:
    """Returns the action that makes a file right: its lines that differ replaced, or all of it where they are many."""
    old, new = now.splitlines(), right.splitlines()
    spans = [span for span in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if span[0] != "equal"]
    if len(spans) == 1 and spans[0][0] == "replace":
        _, first, last, start, end = spans[0]
        return f"replace {file} {first + 1}-{last}\n" + "\n".join(new[start:end])
    return f"write {file}\n{right}"


def _plain(body: str) -> str:
    """Returns the text without the code fence around it."""
    fenced = re.fullmatch(r"```\w*\n(.*?)\n?```\s*", body, re.DOTALL)
    return fenced[1] if fenced else body


def _numbered(text: str) -> str:
    return "\n".join(f"{number} {line}" for number, line in enumerate(text.splitlines(), 1)) or "(empty)"
