"""Small modules with planted bugs to find and repair, judged by tests of which the agent sees half.

A task draws modules and bugs from its seed. An action reads, replaces or writes a file, runs the visible tests, or
submits; the observation is the file or the tests' report. The reward is 1 if all tests pass when the agent submits,
hidden ones included, else 0; the episode ends then, or without success after `turns` actions.

In the manner of repository repair (SWE-bench, Jimenez et al. 2024, arXiv:2310.06770) with bugs made automatically
(SWE-smith, Yang et al. 2025, arXiv:2504.21798). It differs: the modules are our own and small, a bug is one mutation
that at least one test notices, files are read and changed through a few actions without a shell, and tests are calls
whose results are compared outside the sandbox in which they run. Every bug is tried before it is used; the unchanged
modules pass all tests, which proves that each task can be done. In a world `proposing`, an agent injects the bugs
itself (`injection`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Annotated, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.fields import Count, check_fields, require_within
from sojourn.envs.sandbox.command import require_sandbox
from sojourn.envs.sandbox.risks import risks
from sojourn.errors import ActionError, InfrastructureError
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Episode, Message, Observation, Step, Task
from sojourn_worlds.repo.bugs import Bug, Case, bugs_of, cases_of, expected, source_of
from sojourn_worlds.repo.cases import CASES
from sojourn_worlds.repo.editing import after, edit_of, file_of, numbered, split
from sojourn_worlds.repo.injection import (
    Injection,
    difference,
    files_of_tests,
    injected,
    line_of,
    originals,
    visible,
)
from sojourn_worlds.repo.trial import is_same, is_value, report, run_cases
from sojourn_worlds.sandbox_env import last_step, observe

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

    In a world `proposing`, an agent breaks the repository and removes tests that show it, as in Self-play SWE-RL (SSR:
    Wei et al. 2025, arXiv:2512.18552): at least `min_changed_files` modules must be changed, each so that a failing
    test needs it, and at least `min_failing_tests` tests that it can read must fail. Whoever repairs is shown the tests
    that were removed.
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
    min_changed_files: Annotated[int, Range(1)] = 1
    min_failing_tests: Annotated[int, Range(1)] = 1
    train: Count = 100_000
    test: Count = 1_000

    def __post_init__(self) -> None:
        check_fields("repo", self)
        require_within("repo", self, {"bugs": (1, self.modules), "min_changed_files": (1, self.modules)})

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_from_data(
            "repo", self, split, {"modules": self.modules, "bugs": self.bugs, "seen": self.seen}
        )

    def risks(self) -> tuple[str, ...]:
        """Returns one sentence for each protection of a sandbox that does not hold on this machine."""
        return risks()

    def make(self, task: Task) -> RepoEnv:
        require_sandbox("repo")
        names, changed = broken_in(task)
        return RepoEnv(self, task, names, {**originals(names), **changed})

    def propose(self, like: Task, examples: Sequence[str], seed: int, tries: int) -> Injection:
        """Returns a play in which an agent injects a bug into the modules of a task."""
        require_sandbox("repo")
        return Injection(
            Task(like.env, like.data, seed, like.split), broken_in(like)[0], tuple(examples), tries, self.turns,
            self.min_changed_files, self.min_failing_tests, self.timeout_s,
        )  # fmt: skip

    def made_by(self, like: Task, actions: Sequence[str], seed: int) -> Task:
        """Returns the task of repairing what the actions of a play of injecting have left."""
        names = broken_in(like)[0]
        artefact = injected(names, actions)
        found = {"names": list(names), "changed": dict(artefact.changed), "weakened": list(artefact.weakened)}
        return Task(like.env, {**like.data, **found}, seed, "train")

    def write_task(self, task: Task) -> str:
        return difference(*broken_in(task))

    def left_by(self, episode: Episode) -> Task | None:
        """Returns the task of repairing what a failed repair of an injected bug has left (the higher-order bugs of SSR,
        up to the second order); None where the agent submitted nothing, or changed nothing."""
        task = episode.task
        actions = [turn.message.text for turn in episode.trajectories[0].turns if turn.message is not None]
        if "changed" not in task.data or "order" in task.data or not actions or actions[-1].split()[:1] != ["submit"]:
            return None
        names, changed = broken_in(task)
        files = after({**originals(names), **changed}, actions)
        left = {file: text for file, text in files.items() if text != source_of(file.removesuffix(".py"))}
        return None if left == changed else replace(task, data={**task.data, "changed": left, "order": 2})


def broken_in(task: Task) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the modules of a task, and the files of those that are changed."""
    if "changed" in task.data:
        return tuple(task.data["names"]), dict(task.data["changed"])
    names, planted = planted_in(task)
    changed: dict[str, str] = {}
    for bug in planted:
        changed[f"{bug.module}.py"] = bug.plant(source_of(bug.module))
    return names, changed


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
        return files_of_tests(self.names, self.weakened)

    @property
    def weakened(self) -> tuple[str, ...]:
        """Returns the calls of the tests that were removed from those files."""
        return tuple(self.task.data.get("weakened", ()))

    async def start(self) -> Observation:
        listed = ", ".join([*self.files, *self.tests])
        removed = [line_of(*pair) for pair in visible(self.names) if pair[0].call in self.weakened]
        wanted = "\n".join(["\nThese tests must pass too, though no file has them:", *removed]) if removed else ""
        return observe(f"Files: {listed}.{wanted}", (), SYSTEM_PROMPT)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a repository was given an action after its end: play each once")
        words, body = split(action.text)
        crashed = False
        match words:
            case ["submit"]:
                return self._end(agent, await self._passes())
            case ["test"]:
                pairs = self._cases(seen=True)
                answers = await run_cases(self.files, [case for case, _ in pairs], self.family.timeout_s)
                self.tests_were_run, result, crashed = True, report(pairs, answers), self._crashed(answers)
            case ["read", name]:
                result = numbered(file_of(name, {**self.files, **self.tests}, "read"))
                self.files_read |= {name}
            case _:
                result = self._change(words, body)
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

    def _change(self, words: list[str], body: str) -> str:
        edit = edit_of(words, body, self.files)
        if edit is None:
            raise ActionError(f'"{" ".join(words)[:30]}" is no action, say read, replace, write, test or submit')
        self.files[edit.name] = edit.text
        return f"{edit.name} is changed."

    def _cases(self, seen: bool) -> list[tuple[Case, str]]:
        """Returns the tests with what each must give: with `seen` those that the agent can run, else all of them."""
        if seen:
            return visible(self.names, self.weakened)
        return [pair for name in self.names for pair in zip(cases_of(name), expected(name), strict=True)]

    def _crashed(self, answers: Sequence[str]) -> bool:
        """Returns whether the code raised an error that no test asks for, or gave no answer."""
        pairs = zip(self._cases(seen=True), answers, strict=True)
        return any(not is_value(answer) and not is_same(answer, right) for (_, right), answer in pairs)

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
