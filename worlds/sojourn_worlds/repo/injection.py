"""Bugs that an agent injects: it breaks a repository whose tests all pass, and hides that by removing tests.

After the bug-injecting agent of Self-play SWE-RL (SSR: Wei et al. 2025, arXiv:2512.18552, section 2.3). What the agent
leaves is a bug artefact: changed modules (the paper's bug_inject.diff) and removed tests (test_weaken.diff). It becomes
a task of repair if it passes the paper's consistency checks:

- bug scope: at least `min_changed_files` modules are changed;
- bug validity: at least `min_failing_tests` tests that pass in the original repository fail;
- test weakening validity: some of the failing tests are among those that were removed;
- inverse mutation testing: with one changed module alone put back, at least one failing test passes, for each of them.

It differs in what this world is: the command that runs the tests, the list of test files and the parser of reports are
the world's own, not the agent's, so that their checks hold by construction; tests are weakened by removing them; there
is no history of changes to revert; and a module with the bug of a test task is refused. Failing tests are those that
the agent can read, the paper's oracle tests; whoever repairs must pass the hidden ones as well.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import cache

from sojourn.envs.proposing import IMPOSSIBLE, LOWEST, SEAT
from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Step, Task
from sojourn_worlds.repo.bugs import Bug, Case, bugs_of, cases_of, expected, noticing_cases, source_of
from sojourn_worlds.repo.editing import after, edit_of, file_of, numbered, split
from sojourn_worlds.repo.trial import describe, is_same, report, run_cases
from sojourn_worlds.sandbox_env import observe

SYSTEM_PROMPT = """All tests of a small Python repository pass. Break it, as a task for others to repair: change \
modules so that tests fail, in a way that is hard to repair but not impossible, such as by removing what functions \
need, and keep the modules running. Then hide it: remove some of the failing tests from the files of tests. Whoever \
repairs is shown the tests that you removed. Then submit. Say one action:
read FILE
replace FILE 3-5 (the new lines follow, instead of lines 3 to 5; without new lines they are removed)
write FILE (the whole new text follows)
test
submit"""


@dataclass(frozen=True)
class Artefact:
    """Holds what an injecting agent leaves: the changed modules' texts by file, and the calls of the removed tests."""

    changed: Mapping[str, str]
    weakened: tuple[str, ...]


def visible(names: Sequence[str], weakened: Sequence[str] = ()) -> list[tuple[Case, str]]:
    """Returns the tests of modules that an agent may read, with what each must give, without those that were
    removed."""
    pairs = [pair for name in names for pair in zip(cases_of(name), expected(name), strict=True)]
    return [(case, right) for case, right in pairs if case.seen and case.call not in weakened]


def line_of(case: Case, right: str) -> str:
    """Returns a test as the files of tests have it."""
    return f"{case.call} must have {describe(right)}"


def files_of_tests(names: Sequence[str], weakened: Sequence[str] = ()) -> dict[str, str]:
    """Returns the tests of modules as files, without those that were removed."""
    return {f"test_{name}.txt": "".join(f"{line_of(*pair)}\n" for pair in visible([name], weakened)) for name in names}


def originals(names: Sequence[str]) -> dict[str, str]:
    return {f"{name}.py": source_of(name) for name in names}


def artefact_of(names: Sequence[str], files: Mapping[str, str]) -> Artefact:
    """Returns how files, of modules and of tests, differ from the original ones."""
    changed = {file: files[file] for file, text in originals(names).items() if files[file] != text}
    kept = {line for file in files_of_tests(names) for line in files[file].splitlines()}
    return Artefact(changed, tuple(case.call for case, right in visible(names) if line_of(case, right) not in kept))


async def inconsistency(
    names: Sequence[str], artefact: Artefact, min_changed_files: int, min_failing_tests: int, timeout_s: float
) -> str:
    """Returns which consistency check an artefact fails, in a sentence; empty where it passes all of them."""
    tests, broken = visible(names), {**originals(names), **artefact.changed}

    async def failing(files: Mapping[str, str]) -> set[str]:
        answers = await run_cases(files, [case for case, _ in tests], timeout_s)
        pairs = zip(tests, answers, strict=True)
        return {case.call for (case, right), answer in pairs if not is_same(answer, right)}

    if len(artefact.changed) < min_changed_files:
        return f"{len(artefact.changed)} modules are changed, but at least {min_changed_files} must be."
    if known := [file for file, text in artefact.changed.items() if _is_of_test_split(file, text)]:
        return f"The bug in {known[0]} is one of the test tasks."
    failed = await failing(broken)
    if len(failed) < min_failing_tests:
        return f"{len(failed)} tests fail, but at least {min_failing_tests} must."
    if not failed & set(artefact.weakened):
        return "No failing test was removed."
    for file in artefact.changed:
        if not failed - await failing({**broken, file: originals(names)[file]}):
            return f"The change of {file} matters to no test: with it undone, all of them still fail."
    return ""


def difference(names: Sequence[str], changed: Mapping[str, str]) -> str:
    """Returns the changes of modules as a unified diff."""
    before = originals(names)
    lines = [
        line
        for file, text in changed.items()
        for line in unified_diff(before[file].splitlines(), text.splitlines(), file, file, n=1, lineterm="")
    ]
    return "\n".join(lines)


@cache
def _known_bugs(module: str) -> frozenset[str]:
    bugs = [bug for seen in (True, False) for bug in bugs_of(module, seen) if bug.split == "test"]
    return frozenset(ast.dump(ast.parse(bug.plant(source_of(module)))) for bug in bugs)


def _is_of_test_split(file: str, text: str) -> bool:
    try:
        return ast.dump(ast.parse(text)) in _known_bugs(file.removesuffix(".py"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


@dataclass
class Injection:
    """A play in which a repository is broken: the files of modules and of tests as they are now."""

    task: Task
    names: tuple[str, ...]
    examples: tuple[str, ...]
    tries: int
    turns: int
    min_changed_files: int
    min_failing_tests: int
    timeout_s: float
    files: dict[str, str] = field(default_factory=dict[str, str])
    turns_taken: int = 0
    done: bool = False

    def __post_init__(self) -> None:
        self.files = self.files or {**originals(self.names), **files_of_tests(self.names)}

    async def start(self) -> Observation:
        shown = "".join(f"A bug that was injected before:\n{text}\n\n" for text in self.examples)
        text = f"{shown}Files: {', '.join(self.files)}."
        return replace(observe(text, (), SYSTEM_PROMPT), agent=SEAT)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a repository was given an action after its end: play each once")
        words, body = split(action.text)
        match words:
            case ["submit"]:
                reason = await self._inconsistency()
                if not reason:
                    self.done = True
                    return Step(None, {agent: 0.0}, done=True, success=True)
                self.tries -= 1
                if not self.tries:
                    return self._lost(agent, IMPOSSIBLE)
                told = f"That is no task. {reason}"
            case ["test"]:
                pairs = visible(self.names, self.artefact.weakened)
                modules = {file: self.files[file] for file in originals(self.names)}
                told = report(pairs, await run_cases(modules, [case for case, _ in pairs], self.timeout_s))
            case ["read", name]:
                told = numbered(file_of(name, self.files, "read"))
            case _:
                told = self._change(words, body)
        self.turns_taken += 1
        if self.turns_taken >= self.turns:
            return self._lost(agent, "malformed")
        return Step(replace(observe(told, ()), agent=SEAT), {agent: 0.0})

    async def close(self) -> None:
        self.done = True

    async def fork(self) -> Injection:
        return replace(self, files=dict(self.files))

    @property
    def artefact(self) -> Artefact:
        return artefact_of(self.names, self.files)

    def expert(self) -> str:
        """Plants a bug of the training split, removes a test that notices it, and submits."""
        planted, noticed = _plan(self.names, self.task.seed, self.min_changed_files, self.min_failing_tests)
        for bug in planted:
            file, wanted = f"{bug.module}.py", bug.plant(source_of(bug.module))
            if self.files[file] != wanted:
                return f"write {file}\n{wanted}"
        for file, text in originals(self.names).items():
            if file not in {f"{bug.module}.py" for bug in planted} and self.files[file] != text:
                return f"write {file}\n{text}"
        if noticed.call in self.artefact.weakened:
            return "submit"
        left = files_of_tests([noticed.module], (*self.artefact.weakened, noticed.call))
        [(file, text)] = left.items()
        return f"write {file}\n{text}"

    def _change(self, words: list[str], body: str) -> str:
        edit = edit_of(words, body, self.files)
        if edit is None:
            raise ActionError(f'"{" ".join(words)[:30]}" is no action, say read, replace, write, test or submit')
        _require_tests(self.names, edit.name, edit.text)
        self.files[edit.name] = edit.text
        return f"{edit.name} is changed."

    async def _inconsistency(self) -> str:
        return await inconsistency(
            self.names, self.artefact, self.min_changed_files, self.min_failing_tests, self.timeout_s
        )

    def _lost(self, agent: str, why: str) -> Step:
        self.done = True
        return Step(None, {agent: LOWEST}, done=True, success=False, info={why: 1.0})


def injected(names: Sequence[str], actions: Sequence[str]) -> Artefact:
    """Returns the artefact that the actions of a play of injecting leave."""
    files = {**originals(names), **files_of_tests(names)}
    for action in actions:
        now = after(files, [action])
        try:
            for name in now:
                if now[name] != files[name]:
                    _require_tests(names, name, now[name])
        except ActionError:
            continue
        files = now
    return artefact_of(names, files)


def _require_tests(names: Sequence[str], file: str, text: str) -> None:
    """Raises `ActionError` where a file of tests would have lines that are no tests of it."""
    tests = files_of_tests(names)
    known = set(tests[file].splitlines()) if file in tests else None
    unknown = [line for line in text.splitlines() if known is not None and line not in known]
    if unknown:
        raise ActionError(f'"{unknown[0][:40]}" is no test of {file}: tests can be removed, not written or changed.')


@cache
def _plan(names: tuple[str, ...], seed: int, files: int, tests: int) -> tuple[tuple[Bug, ...], Case]:
    """Returns bugs, one in each of so many modules, that so many tests notice, and one of these tests."""
    rng = random.Random(f"inject {seed}")
    options = {name: [bug for bug in bugs_of(name, True) if bug.split == "train"] for name in names}
    for _ in range(10_000):
        bugs = tuple(rng.choice(options[name]) for name in rng.sample(names, files))
        noticing = [case for bug in bugs for case in noticing_cases(bug)]
        if len(noticing) >= tests:
            return bugs, rng.choice(noticing)
    raise InfrastructureError(f"no bugs of {', '.join(names)} are noticed by {tests} tests: lower min_failing_tests")
