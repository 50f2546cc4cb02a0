"""ScienceWorld: a few experiments in one Java machine, which is slow to start."""

from __future__ import annotations

import random
import re
import shutil

import pytest

pytest.importorskip("scienceworld")
if shutil.which("java") is None:
    pytest.skip("needs java", allow_module_level=True)

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Step
from sojourn_worlds.java import Pool
from sojourn_worlds.scienceworld import SIMPLIFICATIONS, VARIATIONS, ScienceWorld, ScienceWorldPlay, variations
from sojourn_worlds.scienceworld.expert import WAYS, shortened, way


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


@pytest.fixture(scope="module")
def kept():
    """The machines of the whole module."""
    pool = ScienceWorld().machine
    pool.holders += 1
    yield pool
    pool.release()


def family(kept: Pool, **fields) -> ScienceWorld:
    made = ScienceWorld(**fields)
    made._machine.append(kept)
    return made


async def finish(play: ScienceWorldPlay) -> list[Step]:
    steps: list[Step] = []
    while not (steps and steps[-1].done):
        steps.append(await play.step("agent", say(await play.expert())))
    return steps


async def test_promises(kept) -> None:
    report = await check_env(
        family(kept, experiments=("lifespan-longest-lived",), turns=8), episodes=1, timeout_s=600.0
    )
    assert report.passed, report.failed


@pytest.mark.parametrize("experiment", ["find-plant", "power-component", "lifespan-longest-lived"])
async def test_the_expert_earns_everything(kept, experiment: str) -> None:
    for split in ("train", "test"):
        world = family(kept, experiments=(experiment,), partial=split == "test")
        play = world.make(world.tasks(split)[0])
        await play.start()
        steps = await finish(play)
        assert steps[-1].success is True
        assert sum(step.rewards["agent"] for step in steps) == pytest.approx(1.0)
        assert split == "test" or {step.rewards["agent"] for step in steps[:-1]} <= {0.0}
        await play.close()


async def test_the_expert_goes_on_after_other_actions(kept) -> None:
    world = family(kept, experiments=("find-living-thing",))
    play = world.make(world.tasks("train")[2])
    await play.start()
    for action in (await play.expert(), "look around", "inventory", "teleport to foundry", "wait1"):
        await play.step("agent", say(action))
    assert (await finish(play))[-1].success
    await play.close()


async def begin(kept: Pool, experiment: str, split: str, seed: int, **fields) -> ScienceWorldPlay:
    world = family(kept, experiments=(experiment,), **fields)
    play = world.make(next(task for task in world.tasks(split) if task.seed == seed))
    await play.start()
    return play


@pytest.mark.parametrize(
    ("experiment", "split", "seed", "does"),
    [("find-animal", "train", 149, r"focus on [a-z ]+ egg"), ("grow-fruit", "train", 31, r"drop bee \d")],
)
async def test_the_expert_mends_gold_paths_that_fail(kept, experiment: str, split: str, seed: int, does: str) -> None:
    play = await begin(kept, experiment, split, seed)
    assert (await finish(play))[-1].success
    assert any(re.fullmatch(does, said) for said in play.actions_taken)
    await play.close()


async def test_the_expert_is_done_within_the_turns_that_are_left(kept) -> None:
    """Of the gold path, it leaves out what only looks."""
    play = await begin(kept, "inclined-plane-friction-named-surfaces", "train", 0, turns=15)
    assert (await finish(play))[-1].success
    await play.close()


@pytest.mark.parametrize("teleports", [True, False])
async def test_the_expert_finds_back_from_another_room(kept, teleports: bool) -> None:
    simplifications = SIMPLIFICATIONS[0 if teleports else 1 : 4]
    play = await begin(kept, "lifespan-longest-lived", "train", 0, simplifications=simplifications)
    for name in way("hallway", "bathroom")[play.shown.count("called the kitchen") :]:
        await play.step("agent", say(f"go to {name}"))
    assert (await finish(play))[-1].success
    assert any(said.startswith("teleport") for said in play.actions_taken) == teleports
    await play.close()


async def test_an_expert_without_hope_looks_around(kept) -> None:
    play = await begin(kept, "lifespan-longest-lived", "train", 0, turns=1)
    assert await play.expert() == "look around"
    assert play.hopeless
    twin = await play.fork()
    assert twin.hopeless
    await twin.close()
    await play.close()


def test_long_looks_become_waits_that_take_as_long() -> None:
    path = [*["look at plane"] * 23, "wait1", *["activate sink"] * 12, *["wait1"] * 10]
    assert shortened(path) == [*["wait"] * 2, *["look at plane"] * 3, "wait1", *["activate sink"] * 12, "wait"]


def test_ways_lead_from_room_to_room() -> None:
    assert way("bathroom", "foundry") == ["kitchen", "outside", "foundry"]
    assert way("hallway", "hallway") == []
    assert way("nowhere", "hallway") == []
    assert all(way(start, end)[-1] == end for start in WAYS for end in WAYS if start != end)


async def test_what_is_refused_and_how_a_play_ends(kept) -> None:
    world = family(kept, experiments=("find-plant",), turns=3)
    play = world.make(world.tasks("train")[0])
    with pytest.raises(InfrastructureError, match="before its start"):
        await play.step("agent", say("wait1"))
    first = await play.start()
    assert "Your task is to find a(n) plant" in first.system[0].text
    assert "teleport" in first.system[0].text
    before = play.state_key()
    for said in ("", "x" * 300, "frobnicate", "pick up the moon\u202e"):
        with pytest.raises(ActionError):
            await play.step("agent", say(said))
    assert (play.state_key(), play.server.getNumMoves()) == (before, 0)
    for said in (" LOOK  around", "inventory"):
        step = await play.step("agent", say(said))
        assert not step.done
    end = await play.step("agent", say("wait1"))
    assert (end.done, end.success, end.rewards) == (True, False, {"agent": 0.0})
    with pytest.raises(InfrastructureError, match="after its end"):
        await play.step("agent", say("wait1"))
    await play.close()


async def test_a_wrong_focus_spoils_a_task_unpaid(kept) -> None:
    world = family(kept, experiments=("find-plant",), partial=True)
    play = world.make(world.tasks("train")[0])
    await play.start()
    await play.step("agent", say("teleport to kitchen"))
    end = await play.step("agent", say("focus on stove"))
    assert (end.done, end.success) == (True, False)
    assert end.rewards["agent"] >= 0
    await play.close()


async def test_chance_earns_nothing(kept) -> None:
    world, rng = family(kept, experiments=("find-plant",), turns=8), random.Random(0)
    for task in world.tasks("train")[:3]:
        play = world.make(task)
        await play.start()
        while True:
            action = rng.choice(["look around", "inventory", "wait1", "teleport to kitchen", "teleport to greenhouse"])
            step = await play.step("agent", say(action))
            if step.done:
                break
        assert step.rewards == {"agent": 0.0}
        await play.close()


def test_the_splits_are_those_of_the_package(kept) -> None:
    machine = kept.hold()
    server = machine.new()
    assert set(server.getTaskNames()) == set(VARIATIONS)
    for name in list(VARIATIONS)[5:8]:
        server.load(name, 0, "", False)
        assert list(server.getVariationsTrain()) == list(variations(name, "train"))
        assert list(server.getVariationsTest()) == list(variations(name, "test"))
    kept.release(machine)
    assert len(ScienceWorld().tasks("train")) == sum(counts[0] for counts in VARIATIONS.values())


def test_experiments_are_taken_in_turn() -> None:
    tasks = ScienceWorld(experiments=("melt", "boil")).tasks("test")
    assert [(task.data["experiment"], task.seed) for task in tasks[:3]] == [("melt", 21), ("boil", 21), ("melt", 22)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"experiments": ()}, "at least one"),
        ({"experiments": ("fly",)}, "lists 'fly'"),
        ({"simplifications": ("magic",)}, "lists 'magic'"),
        ({"experiments": ("test-conductivity",), "simplifications": ("noElectricalAction",)}, "needs electrical"),
        ({"turns": 0}, "turns = 0"),
    ],
)
def test_wrong_configs_are_refused(wrong, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ScienceWorld(**wrong)
    with pytest.raises(ConfigError, match='"dev"'):
        ScienceWorld().tasks("dev")
