import asyncio
import json

import pytest

pytest.importorskip("aviary.core")

from aviary_hooks import Safe
from playing import expert_play, failed, say

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, ConfigError
from sojourn.types import Message, Role, ToolCall
from sojourn_worlds.adapters.aviary import Aviary

SAFES = {"dataset": "aviary_hooks:Safes", "expert": "aviary_hooks:halve", "scale": 0.5}


@pytest.mark.parametrize("arguments", [{}, {"handle": True}], ids=["copied", "replayed"])
async def test_a_dataset_keeps_the_promises_of_a_world(arguments):
    report = await check_env(Aviary(**SAFES, arguments=arguments), episodes=3)
    assert report.passed, failed(report)
    assert report["forks are equal and independent"].outcome is Outcome.PASSED
    assert report["the expert succeeds"].outcome is Outcome.PASSED


async def test_tasks_are_split_and_the_expert_solves_them():
    family = Aviary(**SAFES)
    assert [len(family.tasks(split)) for split in ("train", "test")] == [16, 4]
    assert [task.data["index"] for task in family.tasks("test")] == [4, 9, 14, 19]
    for split in ("train", "test"):
        for index in range(4):
            steps, said = await expert_play(family, index, split)
            assert steps[-1].success
            assert sum(step.rewards["agent"] for step in steps) == 1.0
            assert len(said) <= 6
    apart = Aviary(**SAFES, splits={"train": {"size": 7}, "test": {"first": 100, "size": 3}})
    assert [len(apart.tasks(split)) for split in ("train", "test")] == [7, 3]
    assert apart.build(apart.tasks("test")[1]).number == apart.build(apart.tasks("test")[1]).number


async def test_words_and_structured_calls_are_understood_and_errors_told():
    family = Aviary(**SAFES, arguments={"hammer": True})
    env = family.make(family.tasks("train")[0])
    first = await env.start()
    assert first.system[0].text.splitlines() == [
        "You crack safes.",
        "Say one of these calls:",
        "guess(number: int): Try a number.",
        "smash(): Hit it.",
        "wait(): Takes a while.",
    ]
    assert first.messages[0].text == "Open the safe: its number is from 1 to 50."
    assert first.tools[0].parameters["required"] == ["number"]
    for text in ("guess('x')", "guess()", "open()", "", "5"):
        with pytest.raises(ActionError):
            await env.step("agent", say(text))
    told = await env.step("agent", say("guess(99)"))
    assert (told.info["error"], told.observation.messages[0].text) == (1.0, "error: 99 is not on the dial")
    calls = (ToolCall("guess", {"number": 1}, "a"), ToolCall("guess", {"number": 50}, "b"))
    step = await env.step("agent", Message(Role.ASSISTANT, calls=calls))
    assert [(m.role, m.text, m.answers) for m in step.observation.messages] == [
        (Role.TOOL, "higher", "a"),
        (Role.TOOL, "lower", "b"),
    ]
    with pytest.raises(RuntimeError, match="the hammer is gone"):
        await env.step("agent", say("smash()"))
    await env.close()


async def test_others_go_on_while_a_tool_takes_its_time():
    family = Aviary(**SAFES, arguments={"hammer": True})
    env = family.make(family.tasks("train")[0])
    await env.start()

    async def meanwhile():
        Safe.go.set()

    Safe.go.clear()
    step, _ = await asyncio.gather(env.step("agent", say("wait()")), meanwhile())
    assert step.observation.messages[0].text == "at last"
    await env.close()


async def test_an_environment_of_a_fork_that_was_given_up_is_closed(tmp_path):
    rows = tmp_path / "tasks.toml"
    rows.write_text("[[task]]\narguments = { seed = 1, hammer = true }\n")
    family = Aviary(env="aviary_hooks:Safe", instructions=str(rows), forks="replay", threads=0)
    env = family.make(family.tasks("train")[0])
    await env.start()
    await env.step("agent", say("guess(1)"))
    env.calls_made.append([ToolCall("smash", {})])  # as a machine would have it that failed meanwhile
    before = Safe.closed
    with pytest.raises(RuntimeError, match="the hammer is gone"):
        await env.fork()
    assert Safe.closed == before + 1
    await env.close()
    assert Safe.closed == before + 2


async def test_the_environments_own_limit_truncates(tmp_path):
    rows = tmp_path / "tasks.toml"
    rows.write_text("[[task]]\narguments = { seed = 1, tries = 1 }\n")
    family = Aviary(env="aviary_hooks:Safe", instructions=str(rows))
    env = family.make(family.tasks("train")[0])
    await env.start()
    wrong = 1 if env.env.env.number != 1 else 2
    last = await env.step("agent", say(f"guess({wrong})"))
    assert (last.done, last.success, last.info["truncated"], last.rewards["agent"]) == (True, False, 1.0, 0.0)


async def test_registered_environments_and_tasks_as_text(tmp_path):
    rows = tmp_path / "tasks.jsonl"
    rows.write_text("\n".join(json.dumps({"task": str(i)}) for i in range(10)))
    family = Aviary(env="dummy", instructions=str(rows), expert="aviary_hooks:story")
    steps, _ = await expert_play(family, 0, "test")
    assert steps[-1].success
    env = family.make(family.tasks("train")[3])
    assert (await env.start()).messages[0].text == "Write a 5 word story via print_story about 3"
    told = await env.step("agent", say("cast_float('much')"))
    assert told.observation.messages[0].text.startswith("error: could not convert string")


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path):
    for fields, message in [
        ({}, "name either a dataset"),
        (SAFES | {"env": "dummy"}, "name either a dataset"),
        ({"env": "dummy"}, "takes its tasks from `instructions`"),
        (SAFES | {"splits": {"train": {}}}, "both train and test"),
        (SAFES | {"turns": 0}, "turns = 0"),
        (SAFES | {"form": "spoken"}, "form = 'spoken'"),
        (SAFES | {"expert": "aviary_hooks:nobody"}, "cannot be imported"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Aviary(**fields)
    with pytest.raises(ConfigError, match="cannot be made: Unknown environment name"):
        Aviary(dataset="no_such_dataset").tasks("train")
    with pytest.raises(ConfigError, match="has no length"):
        Aviary(dataset="dummy").tasks("train")
