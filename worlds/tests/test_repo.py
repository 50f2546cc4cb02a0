"""Modules with bugs: every bug is one, the modules as they were pass, and code has no say in its own judgement."""

import gc
import json
import random
import shutil

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role
from sojourn_worlds.repo import Repo, planted_in
from sojourn_worlds.repo.bugs import MAX_LINES, Case, _outcome, bugs_of, cases_of, expected, is_noticed, source_of
from sojourn_worlds.repo.cases import CASES
from sojourn_worlds.repo.trial import is_same, run_cases

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def enter(index: int = 0, split: str = "train", **fields):
    family = Repo(**fields)
    return family.make(family.tasks(split)[index])


def shown(step) -> str:
    return step.observation.messages[0].text


async def finish(env):
    await env.start()
    while not env.done:
        step = await env.step("agent", say(env.expert()))
    return step


async def test_the_modules_as_they_were_pass_in_the_sandbox_too():
    cases = [case for name in CASES for case in cases_of(name)]
    answers = await run_cases({f"{name}.py": source_of(name) for name in CASES}, cases, 60)
    right = [line for name in CASES for line in expected(name)]
    assert answers == right
    assert len(cases) > 350


async def test_bugs_that_were_noticed_here_are_noticed_in_the_sandbox():
    rng = random.Random(0)
    for name in CASES:
        seen, unseen = bugs_of(name, True), bugs_of(name, False)
        assert len(seen) > 60
        assert not set(seen) & set(unseen)
        for bug in (rng.choice(seen if rng.random() < 0.7 else unseen),):
            source = bug.plant(source_of(name))
            assert source != source_of(name)
            assert is_noticed(name, source) == (bug in seen)
            cases = cases_of(name)
            answers = await run_cases({f"{name}.py": source}, cases, 60)
            wrong = [c.seen for c, a, r in zip(cases, answers, expected(name), strict=True) if not is_same(a, r)]
            assert wrong
            assert any(wrong) == (bug in seen)


def test_a_case_that_is_stopped_stops_no_finalizer_of_something_else():
    finished = []

    class Other:
        def __init__(self):
            self.circle = self

        def __del__(self):
            for number in range(3 * MAX_LINES):
                last = number
            finished.append(last)

    names = {"collect": gc.collect}
    exec(compile("def case():\n    collect()\n    while True:\n        pass", "case", "exec"), names)
    gc.disable()
    try:
        Other()
        outcome = _outcome(names["case"], Case("case", "case", (), True))
    finally:
        gc.enable()
    assert json.loads(outcome) == {"error": "TimeoutError"}
    assert finished == [3 * MAX_LINES - 1]


def test_no_bug_is_in_both_splits_and_tasks_are_decided_by_their_seed():
    planted = {}
    for split in ("train", "test"):
        tasks = Repo(modules=3, bugs=2).tasks(split)
        planted[split] = {bug for index in range(200) for bug in planted_in(tasks[index])[1]}
        assert all(len(planted_in(tasks[index])[1]) == 2 for index in range(200))
    assert not planted["train"] & planted["test"]
    assert min(map(len, planted.values())) > 150
    task = Repo(seen=False).tasks("test")[3]
    assert planted_in(task) == planted_in(Repo(seen=False).tasks("test")[3])
    assert planted_in(task)[1][0] in bugs_of(planted_in(task)[1][0].module, False)


@pytest.mark.parametrize("fields", [{}, {"modules": 3, "bugs": 3}, {"modules": 1, "seen": False}])
async def test_the_expert_repairs_and_what_is_left_alone_fails(fields):
    for index in range(2):
        for split in ("train", "test"):
            env = enter(index, split, **fields)
            lazy = await env.fork()
            step = await lazy.step("agent", say("submit"))
            assert (step.success, step.rewards) == (False, {"agent": 0.0})
            step = await finish(env)
            assert (step.done, step.success, step.rewards) == (True, True, {"agent": 1.0})


async def test_the_expert_repairs_whatever_was_done():
    env = enter(2, modules=2)
    await env.start()
    names = list(env.files)
    await env.step("agent", say(f"write {names[0]}\nnonsense("))
    await env.step("agent", say(f"replace {names[1]} 1-9"))
    assert (await finish(env)).success
    hurried = enter(2, modules=2, bugs=2, turns=3)
    assert (await finish(hurried)).success


async def test_a_random_policy_earns_nothing():
    rng, won = random.Random(0), 0.0
    for index in range(12):
        env = enter(index, modules=1, turns=4)
        name = next(iter(env.files))
        await env.start()
        while not env.done:
            line = rng.randint(1, 40)
            action = rng.choice(
                ("submit", f"read {name}", f"replace {name} {line}\n    return None", f"write {name}\n")
            )
            try:
                step = await env.step("agent", say(action))
            except ActionError:
                continue
        won += step.rewards["agent"]
    assert won == 0


async def test_it_keeps_its_promises():
    report = await check_env(Repo(modules=1, turns=6), episodes=1, timeout_s=600.0)
    assert report.passed, report.failed


async def test_reading_testing_and_changing():
    env = enter(1, modules=1, turns=30)
    first = await env.start()
    (name,) = env.files
    module = name.removesuffix(".py")
    assert first.messages[0].text == f"Files: {name}, test_{module}.txt."
    assert shown(await env.step("agent", say(f"read {name}"))).startswith('1 """')
    assert f"{module}." in shown(await env.step("agent", say(f"read test_{module}.txt")))
    told = shown(await env.step("agent", say("test")))
    assert "tests fail.\n" in told
    assert "must have" in told
    assert shown(await env.step("agent", say(f"write {name}\n```python\nx = 1\ny = 2\n```"))) == f"{name} is changed."
    assert env.files[name] == "x = 1\ny = 2\n"
    await env.step("agent", say(f"replace {name} 2\n    z = 3\n"))
    assert env.files[name] == "x = 1\n    z = 3\n"
    await env.step("agent", say(f"replace {name} 3-3\nw = 4"))
    await env.step("agent", say(f"replace {name} 1-2"))
    assert env.files[name] == "w = 4\n"
    assert "raised AttributeError" in shown(await env.step("agent", say("test")))
    await env.step("agent", say(f"write {name}\nwhile True: pass"))
    assert "raised TimeoutError" in shown(await env.step("agent", say("test")))
    await env.step("agent", say(f"write {name}\n{source_of(module)}"))
    assert shown(await env.step("agent", say("test"))).startswith("All ")
    assert (await env.step("agent", say("submit"))).success
    with pytest.raises(InfrastructureError):
        await env.step("agent", say("test"))


@pytest.mark.parametrize(
    "wrong",
    [
        "", "edit", "read", "read ../../etc/passwd", "read /etc/passwd", "read nosuch.py", "write test_{0}.txt\nx",
        "write ../x.py\n1", "replace {0}.py\nx", "replace {0}.py 0-2\nx", "replace {0}.py 3-2\nx",
        "replace {0}.py 1-999\nx", "replace {0}.py -1\nx", "replace {0}.py 1-x\nx", "submit now", "x" * 20_000,
    ],
)  # fmt: skip
async def test_what_is_no_action_is_refused(wrong):
    env = enter(modules=1)
    await env.start()
    key = env.state_key()
    with pytest.raises(ActionError):
        await env.step("agent", say(wrong.format(env.names[0])))
    assert env.state_key() == key


async def test_a_fork_goes_its_own_way_and_turns_run_out():
    env = enter(modules=1, turns=2)
    await env.start()
    twin = await env.fork()
    await twin.step("agent", say(f"write {env.names[0]}.py\n1"))
    assert env.files != twin.files
    await env.step("agent", say("test"))
    step = await env.step("agent", say("test"))
    assert (step.done, step.success, step.rewards) == (True, False, {"agent": 0.0})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"modules": 0}, "modules = 0"), ({"modules": 1, "bugs": 2}, "bugs = 2"), ({"turns": 0}, "turns = 0")],
)
def test_wrong_configs_are_refused(wrong, told):
    with pytest.raises(ConfigError, match=told):
        Repo(**wrong)
    with pytest.raises(ConfigError, match='"dev"'):
        Repo().tasks("dev")
