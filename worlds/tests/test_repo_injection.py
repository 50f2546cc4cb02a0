"""Bugs that an agent injects into a repository: the consistency checks of SSR, and the tasks of repair that follow."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
from made_world import Says, components

from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.envs.proposing import IMPOSSIBLE, LOWEST, MADE, Proposing
from sojourn.errors import ActionError, ConfigError
from sojourn.models.spec import Sampling
from sojourn.sources.proposals import Proposals
from sojourn.types import Ending, Episode, Message, Prompt, Role, Sample, SamplingParams, Task, Trajectory, Turn
from sojourn_worlds.repo import Repo, broken_in
from sojourn_worlds.repo.bugs import bugs_of, noticing_cases, source_of
from sojourn_worlds.repo.injection import Artefact, inconsistency, injected, originals, visible

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

NAMES = ("money", "ranking")
MEDIAN = source_of("ranking").replace("    if not numbers:\n        return None\n", "", 1)  # fails for no numbers alone


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def world(tries: int = 1, **fields) -> Proposing:
    return Proposing(world=Repo(**fields), tries=tries)


def proposing(family: Proposing, index: int = 0) -> Task:
    return family.proposal(family.tasks("train")[index], (), 5)


def episode_of(task: Task, actions: list[str], success: bool) -> Episode:
    turns = [Turn(-1, None, None, say(action)) for action in actions]  # type: ignore[arg-type]
    turns[-1] = Turn(-1, None, None, say(actions[-1]), info={"success": float(success)})  # type: ignore[arg-type]
    return Episode("e", task, (Trajectory("proposer", tuple(turns), Ending.DONE),))


async def injected_by_the_expert(family: Proposing, index: int = 0) -> tuple[Task, list[str]]:
    """Returns the task that the expert's play of injecting makes, and its actions."""
    task = proposing(family, index)
    env = family.make(task)
    await env.start()
    actions: list[str] = []
    while True:
        actions.append(env.expert())
        step = await env.step("proposer", say(actions[-1]))
        if step.done:
            assert (step.success, step.rewards) == (True, {"proposer": 0.0})
            made = family.proposed(episode_of(task, actions, success=True))
            assert made is not None
            return made, actions


def removed(*calls: str) -> tuple[str, ...]:
    found = [case.call for case, _ in visible(NAMES) if case.call.startswith(calls)]
    assert found
    return tuple(found)


async def reason(changed: dict[str, str], weakened: tuple[str, ...], files: int = 1, tests: int = 1) -> str:
    return await inconsistency(NAMES, Artefact(changed, weakened), files, tests, 20)


async def test_a_consistent_artefact_passes():
    assert await reason({"ranking.py": MEDIAN}, removed("ranking.median([])")) == ""


async def test_bug_scope():
    """At least `min_changed_files` files are changed."""
    changed = {"ranking.py": MEDIAN}
    assert "1 modules are changed, but at least 2" in await reason(changed, removed("ranking.median([])"), files=2)
    assert "0 modules are changed" in await reason({}, removed("ranking.median"))


async def test_bug_validity():
    """At least `min_failing_tests` tests that passed fail."""
    assert "0 tests fail" in await reason({"ranking.py": source_of("ranking") + "\n"}, removed("ranking.median"))
    assert "1 tests fail, but at least 2" in await reason({"ranking.py": MEDIAN}, removed("ranking.median"), tests=2)


async def test_test_weakening_validity():
    """Some of the failing tests are hidden by the weakening."""
    assert await reason({"ranking.py": MEDIAN}, ()) == "No failing test was removed."
    assert await reason({"ranking.py": MEDIAN}, removed("ranking.ranks")) == "No failing test was removed."


async def test_inverse_mutation_testing():
    """A file that can be put back without any failing test passing does not belong to the bug."""
    idle = source_of("money") + "\nUNUSED = 1\n"
    told = await reason({"ranking.py": MEDIAN, "money.py": idle}, removed("ranking.median([])"))
    assert told.startswith("The change of money.py matters to no test")
    bug = next(bug for bug in bugs_of("money", True) if bug.split == "train")
    both = {"ranking.py": MEDIAN, "money.py": bug.plant(source_of("money"))}
    assert await reason(both, removed("ranking.median([])"), files=2) == ""


async def test_a_bug_of_a_test_task_is_refused():
    bug = next(bug for bug in bugs_of("ranking", True) if bug.split == "test")
    text = bug.plant(source_of("ranking"))
    weakened = tuple(case.call for case in noticing_cases(bug))
    assert await reason({"ranking.py": text}, weakened) == "The bug in ranking.py is one of the test tasks."
    assert "test tasks" in await reason({"ranking.py": f"{text}# another comment\n"}, weakened)


@pytest.mark.parametrize("fields", [{}, {"modules": 3, "min_changed_files": 2, "min_failing_tests": 3}])
async def test_what_the_expert_injects_is_a_task_that_can_be_repaired(fields):
    family = world(**fields)
    made, _ = await injected_by_the_expert(family)
    assert (made.env, made.split, MADE in made.tags) == ("repo", "train", True)
    assert len(made.data["changed"]) == fields.get("min_changed_files", 1)
    env = family.make(made)
    first = (await env.start()).messages[0].text
    [hidden] = made.data["weakened"]
    assert f"These tests must pass too, though no file has them:\n{hidden} must have" in first
    assert all(f"{hidden} must" not in text for text in env.tests.values())
    lazy = await (await env.fork()).step("agent", say("submit"))
    assert lazy.success is False
    while not env.done:
        step = await env.step("agent", say(env.expert()))
    assert step.success
    assert family.written(made).count("---") == len(made.data["changed"])


async def test_an_inconsistent_artefact_ends_the_play_or_is_told_while_tries_are_left():
    env = world().make(proposing(world()))
    await env.start()
    step = await env.step("proposer", say("submit"))
    assert (step.done, step.success, step.rewards) == (True, False, {"proposer": LOWEST})
    assert step.info == {IMPOSSIBLE: 1.0}
    env = world(tries=2).make(proposing(world()))
    await env.start()
    step = await env.step("proposer", say("submit"))
    assert not step.done
    assert "0 modules are changed" in step.observation.messages[0].text
    assert (await env.step("proposer", say("submit"))).info == {IMPOSSIBLE: 1.0}


async def test_turns_run_out():
    env = world(turns=1).make(proposing(world(turns=1)))
    await env.start()
    step = await env.step("proposer", say("test"))
    assert (step.done, step.rewards, step.info) == (True, {"proposer": LOWEST}, {"malformed": 1.0})


async def test_tests_can_be_removed_alone():
    family = world(modules=1)
    task = proposing(family)
    env = family.make(task)
    await env.start()
    [name] = env.names
    file = f"test_{name}.txt"
    with pytest.raises(ActionError, match="tests can be removed, not written or changed"):
        await env.step("proposer", say(f"replace {file} 1\n{name}.nothing() must have given 3"))
    before = len(visible(env.names))
    await env.step("proposer", say(f"replace {file} 1-2"))
    told = (await env.step("proposer", say("test"))).observation.messages[0].text
    assert told == f"All {before - 2} tests pass."
    actions = [f"replace {file} 1\nsomething else", f"replace {file} 1-2", "read nothing"]
    assert len(injected(env.names, actions).weakened) == 2, "refused actions change nothing in the artefact either"


async def test_what_a_failed_repair_leaves_is_a_bug_of_the_second_order():
    family = world(modules=1)
    made, _ = await injected_by_the_expert(family)
    [file] = made.data["changed"]
    repo = family.world
    tried = [f"replace {file} 1\n# tried", "submit"]
    left = repo.left_by(episode_of(made, tried, success=False))
    assert left is not None
    assert left.data["changed"][file].startswith("# tried\n")
    assert left.data["weakened"] == made.data["weakened"]
    env = repo.make(left)
    await env.start()
    while not env.done:
        step = await env.step("agent", say(env.expert()))
    assert step.success
    assert repo.left_by(episode_of(left, [f"replace {file} 1\n# again", "submit"], success=False)) is None
    assert repo.left_by(episode_of(made, ["submit"], success=False)) is None, "nothing was changed"
    assert repo.left_by(episode_of(made, tried[:1], success=False)) is None, "nothing was submitted"
    assert repo.left_by(episode_of(repo.tasks("train")[0], tried, success=False)) is None, "no injected bug"


async def test_a_fork_goes_its_own_way():
    family = world(modules=1)
    env = family.make(proposing(family))
    await env.start()
    twin = await env.fork()
    assert (await twin.step("proposer", say(env.expert()))).done is False
    assert twin.artefact.changed
    assert not env.artefact.changed


def test_what_is_no_key_of_such_a_world_is_refused():
    task = Repo().tasks("train")[0]
    for keys in ({"choices": True}, {"limits": {"modules": (1, 2)}}):
        with pytest.raises(ConfigError, match="proposed by acting"):
            Proposing(world=Repo(), **keys).proposal(task, (), 1)
    with pytest.raises(ConfigError, match="min_changed_files = 3"):
        Repo(modules=2, min_changed_files=3)


def test_a_task_without_a_proposed_bug_is_as_before():
    task = Repo().tasks("train")[0]
    names, changed = broken_in(task)
    assert len(changed) == 1
    assert set(changed) <= set(originals(names))


@dataclass
class BothRoles(Says):
    """Takes the engine's place in both roles: says the actions of an injection, and repairs in vain."""

    injection: tuple[str, ...] = ()
    repair: tuple[str, ...] = ()

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        read = build_tokenizer().decode(prompt.tokens)
        actions = self.injection if "Break it" in read else self.repair
        self.text = actions[read.count(" is changed.")]
        return await super().sample(prompt, params)


async def test_one_policy_injects_a_bug_and_repairs_it_in_a_step():
    family = world(modules=1)
    made, injection = await injected_by_the_expert(family)
    repair = (f"replace {next(iter(made.data['changed']))} 1\n# tried", "submit")
    parts = components(family, BothRoles(injection=tuple(injection), repair=repair))
    parts.runner.max_context = 100_000
    parts = replace(parts, recipe=replace(parts.recipe, sampling=Sampling(max_tokens=20_000)))
    source = Proposals(
        prompts=1, proposals=1, solves=2, examples=0, reward="ssr", unsolved=-0.8, higher_order=2
    ).bind(parts, "rl", 1)  # fmt: skip
    groups = await source.take(0)
    scores = await parts.rewards(groups)
    assert [group.task.data.get("order", 1) for group in groups[1:]] == [1, 2]
    assert groups[1].task.data["changed"] == made.data["changed"]
    assert [len(group.trajectories) for group in groups] == [1, 2, 2]
    np.testing.assert_allclose([score.total for score in scores[0]], [-0.8], rtol=1e-6)
