"""TextWorld: a few small games, generated, compiled and played."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

pytest.importorskip("textworld")

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Step
from sojourn_worlds.textworld import TextWorld, TextWorldPlay

SMALL = {"rooms": 2, "objects": 4, "quest_length": 2, "quests": 2, "turns": 15}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("games"))


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def finish(play: TextWorldPlay) -> list[Step]:
    steps: list[Step] = []
    while not (steps and steps[-1].done):
        steps.append(await play.step("agent", say(await play.expert())))
    return steps


async def test_promises(cache: str) -> None:
    report = await check_env(TextWorld(cache=cache, choices=True, **SMALL), episodes=2, timeout_s=600.0)
    assert report.passed, report.failed


@pytest.mark.parametrize("partial", [False, True])
async def test_the_expert_earns_everything(cache: str, partial: bool) -> None:
    family = TextWorld(cache=cache, partial=partial, **SMALL)
    for split in ("train", "test"):
        play = family.make(family.tasks(split)[0])
        await play.start()
        steps = await finish(play)
        rewards = [step.rewards["agent"] for step in steps]
        assert sum(rewards) == 1.0
        assert steps[-1].success is True
        assert 2 <= len(steps) <= 4  # two quests may share their way
        assert [reward for reward in rewards if reward] == ([0.5, 0.5] if partial else [1.0])
        await play.close()


async def test_the_expert_goes_on_from_wherever_chance_stopped_and_chance_earns_little(cache: str) -> None:
    family, rng, won, finished = TextWorld(cache=cache, choices=True, **SMALL), random.Random(0), 0, 0
    for number in range(12):
        play = family.make(family.tasks("train")[number % 2])
        observation = await play.start()
        twin = None
        for turn in range(15):
            choices = [choice for choice in observation.choices if turn > 5 or not choice.startswith("eat")]
            step = await play.step("agent", say(rng.choice(choices)))
            if step.done:
                won += bool(step.success)
                break
            observation = step.observation
            if turn == 5 and number < 4:
                twin = await play.fork()
        if twin is not None:
            finished += bool((await finish(twin))[-1].success)
            await twin.close()
        await play.close()
    assert won <= 6
    assert finished == 4


def old_draft(folder: str) -> Path:
    draft = Path(folder) / "draft-of-a-killed-process"
    draft.mkdir()
    os.utime(draft, (time.time() - 10_000,) * 2)
    return draft


async def test_a_game_is_compiled_once_and_found_again(cache: str) -> None:
    family = TextWorld(cache=cache, **SMALL)
    task = family.tasks("train")[0]
    play = family.make(task)
    first = await play.start()
    assert "Say one command" in first.system[0].text
    assert first.messages[0].text.startswith("-= ")
    assert "$$" not in first.messages[0].text + first.system[0].text
    file = play.game.file()
    made = file.stat().st_mtime_ns
    draft = old_draft(cache)
    again = TextWorld(cache=cache, **{**SMALL, "turns": 3}).make(TextWorld(**{**SMALL, "turns": 3}).tasks("train")[0])
    assert again.game.file() == file
    assert file.stat().st_mtime_ns == made
    other = TextWorld(cache=cache, rooms=1, objects=2, quest_length=1)
    assert other.make(other.tasks("train")[0]).game.file() != file
    assert not draft.exists()
    assert not [name for name in os.listdir(cache) if name.startswith("draft-")]
    await play.close()


async def test_what_is_refused_and_how_a_play_ends(cache: str) -> None:
    family = TextWorld(cache=cache, **{**SMALL, "turns": 2})
    play = family.make(family.tasks("train")[0])
    with pytest.raises(InfrastructureError, match="before its start"):
        await play.step("agent", say("look"))
    await play.start()
    before = play.state_key()
    for said in ("", "restart", "save", "tw-trace-actions", "look " * 100, "go nowhere", "quit"):
        with pytest.raises(ActionError, match="not possible here"):
            await play.step("agent", say(said))
    assert play.state_key() == before
    seen = await play.step("agent", say("  LOOK\n"))
    assert seen.observation is not None
    assert ">" not in seen.observation.messages[0].text
    assert play.state_key() == before
    end = await play.step("agent", say("inventory"))
    assert (end.done, end.success, end.rewards) == (True, False, {"agent": 0.0})
    with pytest.raises(InfrastructureError, match="after its end"):
        await play.step("agent", say("look"))
    await play.close()


@pytest.mark.parametrize("wrong", [{"rooms": 0}, {"quest_length": 99}, {"instructions": "none"}, {"turns": 0}])
def test_wrong_configs_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"textworld: {next(iter(wrong))} = "):
        TextWorld(**wrong)
    with pytest.raises(ConfigError, match='"dev"'):
        TextWorld().tasks("dev")
