"""ALFWorld: games that are made and played by an interpreter that has it, ours or SOJOURN_ALFWORLD_PYTHON."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Step
from sojourn_worlds.alfworld import KINDS, ALFWorld, ALFWorldPlay

PYTHON = os.environ.get("SOJOURN_ALFWORLD_PYTHON", "")
if not PYTHON:
    pytest.importorskip("alfworld")
SMALL = {"alike": 2, "copies": 1, "python": PYTHON}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("games"))


@pytest.fixture
async def world(cache: str):
    """Its process is kept through a test."""
    family = ALFWorld(cache=cache, choices=True, **SMALL)
    await family.open()
    yield family
    await family.close()


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def finish(play: ALFWorldPlay) -> list[Step]:
    steps: list[Step] = []
    while not (steps and steps[-1].done):
        steps.append(await play.step("agent", say(await play.expert())))
    return steps


async def do(play: ALFWorldPlay, command: str) -> str:
    step = await play.step("agent", say(command))
    assert step.observation is not None
    return step.observation.messages[0].text


def games(folder: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*/game.tw-pddl"))]


async def test_promises(cache: str) -> None:
    family = ALFWorld(cache=cache, choices=True, kinds=KINDS[:2], turns=10, capacity=2, **SMALL)
    report = await check_env(family, episodes=1)
    assert report.passed, report.failed


@pytest.mark.parametrize("split", ["train", "test"])
async def test_the_expert_wins_every_kind_in_both_splits(world: ALFWorld, split: str) -> None:
    tasks = world.tasks(split)
    assert {tasks[number].tags for number in range(6)} == {(kind,) for kind in KINDS}
    for number in range(6):
        play = world.make(tasks[number])
        await play.start()
        steps = await finish(play)
        assert steps[-1].success is True
        assert [step.rewards["agent"] for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
        assert 3 <= len(steps) <= 16
        await play.close()


async def test_the_expert_goes_on_from_wherever_chance_stopped_and_chance_earns_little(world: ALFWorld) -> None:
    rng, won, finished = random.Random(0), 0, 0
    for number in range(6):
        play = world.make(world.tasks("train")[number])
        choices = (await play.start()).choices
        for _ in range(25):
            step = await play.step("agent", say(rng.choice(choices)))
            if step.done:
                won += bool(step.success)
                break
            choices = step.observation.choices
        else:
            finished += bool((await finish(play))[-1].success)
        await play.close()
    assert won <= 2
    assert finished == 6 - won


async def test_what_a_chore_takes(world: ALFWorld) -> None:
    """A thing is heated in the microwave and put away by hand; cooling undoes it."""
    task = world.tasks("train")[3]
    assert task.tags == ("pick_heat_then_place_in_recep",)
    play = world.make(task)
    first = await play.start()
    assert first.system[0].text.startswith("Your task is to: ")
    assert "Your task" not in first.messages[0].text
    assert first.messages[0].text.startswith("You are in the middle of a room.")
    while not (command := await play.expert()).startswith("heat"):
        await do(play, command)
    thing, oven = command.removeprefix("heat ").split(" with ")
    assert (await do(play, command)).startswith(f"You heat the {thing}")
    await do(play, "go to fridge 1")
    await do(play, f"cool {thing} with fridge 1")
    assert await play.expert() == f"go to {oven}"
    await do(play, await play.expert())
    assert await play.expert() == f"heat {thing} with {oven}"
    await do(play, await play.expert())
    twin = await play.fork()
    assert twin.state_key() == play.state_key()
    end = (await finish(play))[-1]
    assert (end.success, end.rewards) == (True, {"agent": 1.0})
    assert (await finish(twin))[-1].success is True
    assert twin.state_key() == play.state_key()
    await play.close()
    await twin.close()


async def test_what_is_refused_and_how_a_play_ends(cache: str) -> None:
    family = ALFWorld(cache=cache, turns=2, **SMALL)
    play = family.make(family.tasks("train")[0])
    with pytest.raises(InfrastructureError, match="before its start"):
        await play.step("agent", say("look"))
    await play.start()
    before = play.state_key()
    for said in ("", "win", "take everything", "look " * 100, "go to nowhere 1", "use agent1"):
        with pytest.raises(ActionError, match="not possible here"):
            await play.step("agent", say(said))
    await do(play, "  LOOK\n")
    assert play.state_key() == before
    end = await play.step("agent", say("inventory"))
    assert (end.done, end.success, end.rewards) == (True, False, {"agent": 0.0})
    with pytest.raises(InfrastructureError, match="after its end"):
        await play.step("agent", say("look"))
    await play.close()
    assert family._players.idle == []


async def test_a_game_is_made_once_and_official_ones_are_played_as_they_are(cache: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    family = ALFWorld(cache=str(folder), kinds=KINDS[:1], **SMALL)
    play = family.make(family.tasks("train")[0])
    first = await play.start()
    await play.close()
    (file,) = folder.glob("*/game.tw-pddl")
    made = file.stat().st_mtime_ns
    again = ALFWorld(cache=str(folder), kinds=KINDS[:1], turns=3, **SMALL)
    play = again.make(again.tasks("train")[0])
    assert await play.start() == first
    await play.close()
    assert file.stat().st_mtime_ns == made
    game = json.loads(file.read_text())
    assert set(game) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}

    for split, name in (("train", "Mug-None-Desk-1"), ("train", "MugSliced-None-Desk-1"), ("valid_unseen", "Mug-1")):
        home = tmp_path / "json_2.1.1" / split / f"{KINDS[0]}-{name}" / "trial_1"
        home.mkdir(parents=True)
        shutil.copy(file, home)
    lost = tmp_path / "json_2.1.1" / "train" / f"{KINDS[0]}-Pen-None-Bed-1" / "trial_2" / "game.tw-pddl"
    lost.parent.mkdir(parents=True)
    lost.write_text(json.dumps({**game, "solvable": False}))
    official = ALFWorld(cache=cache, data=str(tmp_path / "json_2.1.1"), **SMALL)
    assert [len(official.tasks(split)) for split in ("train", "test")] == [1, 1]
    assert official.tasks("train")[0].tags == KINDS[:1]
    with pytest.raises(ConfigError, match="valid_seen has no game"):
        ALFWorld(data=str(tmp_path / "json_2.1.1"), rooms="seen").tasks("test")
    play = official.make(official.tasks("test")[0])
    assert (await play.start()).messages == first.messages
    for command in game["walkthrough"]:
        step = await play.step("agent", say(command))
    assert step.success is True
    await play.close()


async def test_other_goals_are_the_planners(cache: str, tmp_path: Path) -> None:
    """One that is in no library of goals: the microwave must be open."""
    family = ALFWorld(cache=cache, kinds=KINDS[3:4], **SMALL)
    play = family.make(family.tasks("train")[0])
    await play.start()
    await play.close()
    game = next(game for game in games(cache) if "(receptacleType Microwave" in game["pddl_problem"])
    home = tmp_path / "train" / f"{KINDS[0]}-Mug-None-Desk-1" / "trial_1"
    home.mkdir(parents=True)
    game["pddl_problem"] = game["pddl_problem"].partition("(:goal")[0] + (
        "(:goal (exists (?r - receptacle) (and (opened ?r) (receptacleType ?r MicrowaveType)))))"
    )
    (home / "game.tw-pddl").write_text(json.dumps(game))
    official = ALFWorld(cache=cache, data=str(tmp_path), **SMALL)
    play = official.make(official.tasks("train")[0])
    await play.start()
    await do(play, await play.expert())
    assert await play.expert() == "open microwave 1"
    assert (await finish(play))[-1].success is True
    await play.close()


@pytest.mark.parametrize(
    "wrong", [{"turns": 0}, {"rooms": "all"}, {"kinds": ("dance",)}, {"data": "/nowhere"}, {"copies": 9}]
)
def test_wrong_configs_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=f"alfworld: {next(iter(wrong))} "):
        ALFWorld(**wrong)
    with pytest.raises(ConfigError, match='"dev"'):
        ALFWorld().tasks("dev")
