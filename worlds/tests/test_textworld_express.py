"""TextWorldExpress: all games, and the Java machine that they share."""

from __future__ import annotations

import random
import shutil

import pytest

pytest.importorskip("textworld_express")
if shutil.which("java") is None:
    pytest.skip("needs java", allow_module_level=True)

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Step
from sojourn_worlds.textworld_express import GAMES, TextWorldExpress
from sojourn_worlds.textworld_express.play import ExpressPlay

SMALL = {"games": ("coin",), "params": "numLocations=3,numDistractorItems=0,includeDoors=0", "turns": 12}


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


@pytest.fixture(scope="module")
def kept():
    """One machine for the whole module."""
    family = TextWorldExpress(choices=True)
    machine = family.machine
    machine.hold()
    yield machine
    machine.release()


def enter(kept, index: int = 0, split: str = "train", **fields) -> ExpressPlay:
    family = TextWorldExpress(choices=True, **fields)
    family._machine.append(kept)
    return family.make(family.tasks(split)[index])


async def finish(play: ExpressPlay) -> list[Step]:
    steps: list[Step] = []
    while not (steps and steps[-1].done):
        steps.append(await play.step("agent", say(await play.expert())))
    return steps


async def test_promises() -> None:
    report = await check_env(TextWorldExpress(games=("coin", "sorting"), choices=True), max_turns=150, timeout_s=600.0)
    assert report.passed, report.failed


@pytest.mark.parametrize("game", GAMES)
async def test_the_expert_earns_everything(kept, game: str) -> None:
    for split, index in (("train", 0), ("train", 7), ("test", 3)):
        play = enter(kept, index, split, games=(game,), partial=index == 7)
        await play.start()
        steps = await finish(play)
        assert sum(step.rewards["agent"] for step in steps) == pytest.approx(1.0)
        assert steps[-1].success is True
        assert (steps[0].rewards["agent"] == 0.0) or index == 7
        await play.close()


@pytest.mark.parametrize(("game", "least"), [("cookingworld", 3), ("coin", 4), ("mapreader", 4), ("twc", 2)])
async def test_the_expert_finds_back_to_the_gold_path(kept, game: str, least: int) -> None:
    rng, found = random.Random(0), 0
    for index in range(5):
        play = enter(kept, index, games=(game,), turns=300)
        observation = await play.start()
        for _ in range(8):
            # nothing is eaten, cooked or cut, which cannot be undone
            safe = [c for c in observation.choices if c.startswith(("move", "open", "close", "look", "take", "read"))]
            step = await play.step("agent", say(rng.choice(safe)))
            if step.observation is None:
                break
            observation = step.observation
        else:
            step = (await finish(play))[-1]
        found += bool(step.success)
        await play.close()
    assert found >= least


async def test_chance_earns_little(kept) -> None:
    rng, won = random.Random(0), 0
    for index in range(80):
        play = enter(kept, index, turns=20)
        observation = await play.start()
        while True:
            step = await play.step("agent", say(rng.choice(observation.choices)))
            if step.observation is None:
                break
            observation = step.observation
        won += bool(step.success)
        await play.close()
    assert won < 16


async def test_plays_of_one_task_do_not_touch_each_other(kept) -> None:
    """In sorting, games of one seed share objects inside the package."""
    plays = [enter(kept, 5, games=("sorting",)) for _ in range(2)]
    for play in plays:
        await play.start()
    plays.append(await plays[0].fork())
    ends = []
    while len(ends) < 3:
        for play in plays:
            if not play.done:
                step = await play.step("agent", say(await play.expert()))
                ends += [step.success] if step.done else []
    assert ends == [True] * 3
    for play in plays:
        await play.close()


async def test_what_is_refused_and_how_a_play_ends(kept) -> None:
    play = enter(kept, **{**SMALL, "turns": 2})
    with pytest.raises(InfrastructureError, match="before its start"):
        await play.step("agent", say("look around"))
    first = await play.start()
    assert "find the coin" in first.system[0].text
    before = play.state_key()
    for said in ("", "help", "dance", "look around " * 50, "reset"):
        with pytest.raises(ActionError, match="not possible here"):
            await play.step("agent", say(said))
    await play.step("agent", say(" LOOK  around\n"))
    assert play.state_key() == before
    end = await play.step("agent", say("inventory"))
    assert (end.done, end.success, end.rewards) == (True, False, {"agent": 0.0})
    with pytest.raises(InfrastructureError, match="after its end"):
        await play.step("agent", say("inventory"))
    await play.close()


async def test_a_failure_ends_a_game_unpaid(kept) -> None:
    play = enter(kept, 0, games=("simonsays",))
    observation = await play.start()
    gold = await play.expert()
    step = await play.step("agent", say(next(choice for choice in observation.choices if choice != gold)))
    assert (step.done, step.success, step.rewards) == (True, False, {"agent": 0.0})
    await play.close()


async def test_the_machine_ends_with_the_last_play() -> None:
    family = TextWorldExpress(**SMALL)
    plays = [family.make(family.tasks("train")[index]) for index in range(2)]
    for play in plays:
        await play.start()
    machine = family.machine.machine
    assert machine is not None
    assert machine.process.poll() is None
    await plays[0].close()
    await plays[0].close()
    assert machine.process.poll() is None
    await plays[1].close()
    assert machine.process.poll() is not None
    assert family.machine.machine is None


async def test_a_machine_that_died_is_replaced() -> None:
    family = TextWorldExpress(**SMALL)
    await family.open()
    assert family.machine.machine is not None
    family.machine.machine.process.kill()
    family.machine.machine.process.wait()
    play = family.make(family.tasks("train")[0])
    await play.start()
    await play.close()
    await family.close()
    assert family.machine.machine is None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"games": ()}, "at least one"), ({"games": ("chess",)}, "lists 'chess'"), ({"turns": 0}, "turns = 0")],
)
def test_wrong_configs_are_refused(wrong, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TextWorldExpress(**wrong)
    with pytest.raises(ConfigError, match='"dev"'):
        TextWorldExpress().tasks("dev")


async def test_parameters_are_judged_by_the_package(kept) -> None:
    for params in ("numberOfCoins=2", "numLocations=many", "numLocations=4,includeDoors"):
        play = enter(kept, games=("coin",), params=params)
        with pytest.raises(ConfigError, match=f"params = '{params}' cannot be used in coin"):
            await play.start()
        await play.close()
