"""BabyAI: what is told, what is refused, the expert from fresh and from spoilt states, and how little chance earns."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("minigrid")

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step
from sojourn_worlds.babyai import EASY, BabyAI
from sojourn_worlds.babyai.levels import LEVELS, enter
from sojourn_worlds.babyai.play import BabyAIPlay

HARD = ("GoTo", "Open", "UnblockPickup", "PutNextS5N2Carrying", "Unlock", "GoToSeqS5R2", "MiniBossLevel", "BossLevel")


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def finish(play: BabyAIPlay) -> tuple[Step, int]:
    actions = 0
    while True:
        step = await play.step("agent", say(play.expert()))
        actions += 1
        if step.done:
            return step, actions


async def wander(play: BabyAIPlay, rng: random.Random, steps: int, but: str = "") -> Step | None:
    """Random choices; the last step where they ended the play."""
    observation: Observation = await play.start()
    for _ in range(steps):
        step = await play.step("agent", say(rng.choice([choice for choice in observation.choices if choice != but])))
        if step.observation is None:
            return step
        observation = step.observation
    return None


async def test_promises() -> None:
    report = await check_env(BabyAI(choices=True))
    assert report.passed, report.failed
    report = await check_env(BabyAI(levels=("MiniBossLevel",), discount=True, choices=True), max_turns=400)
    assert report.passed, report.failed


@pytest.mark.parametrize("level", EASY + HARD)
async def test_the_expert_earns_everything(level: str) -> None:
    family = BabyAI(levels=(level,))
    for split, count in (("train", 4 if level in HARD else 15), ("test", 2)):
        for task in family.tasks(split)[:count]:
            play = family.make(task)
            await play.start()
            step, _ = await finish(play)
            assert step.rewards == {"agent": 1.0}
            assert step.success is True


@pytest.mark.parametrize("level", ["GoTo", "Open", "PickupLoc", "PutNextLocal", "GoToSeqS5R2", "UnlockLocalDist"])
async def test_the_expert_goes_on_from_wherever_chance_stopped(level: str) -> None:
    """Chance may open boxes, and what is asked for is gone then: here it does not."""
    family, rng, tried = BabyAI(levels=(level,), choices=True, turns=300), random.Random(0), 0
    for task in family.tasks("train")[:6]:
        play = family.make(task)
        if await wander(play, rng, 30, but="toggle") is None:
            tried += 1
            assert (await finish(play))[0].success
    assert tried >= 2


@pytest.mark.parametrize("level", ["GoToRedBallNoDists", "GoToObjS4", "OpenRedDoor"])
def test_no_mission_is_in_both_splits(level: str) -> None:
    """These levels have a few thousand missions, or a hundred: whoever trains for long has seen nearly all."""
    family = BabyAI(levels=(level,))

    def drawn(split: str, count: int) -> set[str]:
        worlds = [family.make(task).world for task in family.tasks(split)[:count]]
        return {f"{world.mission} {world.pprint_grid()} {world.agent_pos}" for world in worlds}

    train, test = drawn("train", 1500), drawn("test", 200)
    assert len(test) > 20
    assert not train & test


async def test_chance_earns_little() -> None:
    family, rng = BabyAI(choices=True, turns=20), random.Random(0)
    ends = [await wander(family.make(task), rng, 100) for task in family.tasks("train")[:100]]
    assert sum(end.rewards["agent"] for end in ends if end) / len(ends) < 0.45
    family = BabyAI(levels=("PutNextLocal", "UnblockPickup"), choices=True, turns=64)
    ends = [await wander(family.make(task), rng, 100) for task in family.tasks("train")[:50]]
    assert sum(end.rewards["agent"] for end in ends if end) / len(ends) < 0.15


async def test_a_mission_by_hand() -> None:
    """A room of our own making: an agent that looks to the right, a ball, a locked door and its key."""
    minigrid = pytest.importorskip("minigrid.core.world_object")
    world = enter("UnlockLocal", 0, 50)
    for x in range(world.grid.width):
        for y in range(world.grid.height):
            if (thing := world.grid.get(x, y)) is not None and thing.type != "wall":
                world.grid.set(x, y, None if thing.type == "key" else minigrid.Wall())
    room = world.get_room(1, 1)
    left, top = room.top
    world.agent_pos, world.agent_dir = (left + 1, top + 2), 0
    door, key, ball = minigrid.Door("red", is_locked=True), minigrid.Key("red"), minigrid.Ball("blue")
    world.put_obj(key, left + 3, top + 2)
    world.put_obj(ball, left + 2, top + 1)
    world.grid.set(left + 1, top, door)
    world.instrs.desc.color = "red"
    world.instrs.reset_verifier(world)
    play = BabyAIPlay(world, "x", discount=True, choices=True)
    first = await play.start()
    assert first.messages[0].text == (
        "You see: locked red door 2 left, blue ball 1 forward 1 left, red key 2 forward. Walls: 6 forward."
    )
    assert first.choices == ("turn left", "turn right", "go forward")
    for said, told in [
        ("pick up", "in front of you: nothing"),
        ("drop", "carry nothing"),
        ("toggle", "there is nothing"),
    ]:
        with pytest.raises(ActionError, match=told):
            await play.step("agent", say(said))
    await play.step("agent", say("go forward"))
    with pytest.raises(ActionError, match="the red key is in the way"):
        await play.step("agent", say("go forward"))
    keyed = await play.step("agent", say(" Pick  UP\n"))
    assert keyed.observation is not None
    assert keyed.observation.messages[0].text.endswith("You carry a red key.")
    with pytest.raises(ActionError, match="You carry the red key already"):
        await play.step("agent", say("pick up"))
    await play.step("agent", say("drop"))
    for action in ("turn left", "turn left", "go forward", "turn right"):
        await play.step("agent", say(action))
    await play.step("agent", say("go forward"))
    with pytest.raises(ActionError, match="The red door is locked, carry the red key"):
        await play.step("agent", say("toggle"))
    spent = world.step_count
    twin = await play.fork()
    step, actions = await finish(twin)
    assert (step.success, world.step_count, twin.world.step_count) == (True, spent, spent + actions)
    assert step.rewards["agent"] == pytest.approx(1 - 0.9 * (spent + actions) / 50)
    with pytest.raises(InfrastructureError, match="once"):
        await twin.step("agent", say("turn left"))


async def test_a_play_ends_unpaid_when_its_turns_are_used_up() -> None:
    family = BabyAI(levels=("PutNextLocal",), turns=3)
    play = family.make(family.tasks("test")[0])
    await play.start()
    steps = [await play.step("agent", say("turn left")) for _ in range(3)]
    assert [step.done for step in steps] == [False, False, True]
    assert (steps[-1].success, steps[-1].rewards) == (False, {"agent": 0.0})


async def test_nothing_is_printed(capsys) -> None:
    family = BabyAI(levels=("PutNextS5N1", "GoToImpUnlock", "BossLevel"))
    for task in family.tasks("train")[:12]:
        await family.make(task).start()
    said = capsys.readouterr()
    assert said.out == said.err == ""


async def test_state_keys_know_what_is_carried_and_done() -> None:
    family = BabyAI(levels=("PickupLoc",))
    play = family.make(family.tasks("train")[0])
    await play.start()
    keys = [play.state_key()]
    for action in ["turn left", "turn right"]:
        await play.step("agent", say(action))
        keys.append(play.state_key())
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize("said", ["", "turn", "turn left " * 60, "turn left turn left", "7", "\u202eturn left"])
async def test_nonsense_is_refused_and_changes_nothing(said: str) -> None:
    play = BabyAI().make(BabyAI().tasks("train")[0])
    await play.start()
    before = play.state_key()
    with pytest.raises(ActionError, match="no action"):
        await play.step("agent", say(said))
    assert (play.state_key(), play.world.step_count) == (before, 0)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"levels": ()}, "at least one"),
        ({"levels": ("GoTo", "GoTo")}, "each once"),
        ({"levels": ("GoToTheMoon",)}, "lists 'GoToTheMoon'"),
        ({"turns": -1}, "turns = -1"),
    ],
)
def test_wrong_configs_are_refused(wrong, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        BabyAI(**wrong)


def test_every_level_is_known_to_the_package() -> None:
    registry = pytest.importorskip("gymnasium").registry
    known = {name.removeprefix("BabyAI-")[:-3] for name in registry if name.startswith("BabyAI-")}
    assert set(LEVELS) <= known
    assert len(LEVELS) == len(set(LEVELS)) > 85
