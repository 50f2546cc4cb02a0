"""Frozen lake, cliff, taxi and blackjack: their rules by hand, the expert, chance, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("gymnasium")

from sojourn.checks.env import check_env
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Role, Step
from sojourn_worlds import cliffwalking, taxi
from sojourn_worlds.blackjack import Blackjack
from sojourn_worlds.cliffwalking import CliffWalking, starts
from sojourn_worlds.frozenlake import FrozenLake, _map, _transition_table
from sojourn_worlds.taxi import Taxi
from sojourn_worlds.toytext import TabularEnv

FAMILIES = [
    FrozenLake(choices=True),
    FrozenLake(size=3, frozen=0.6, slippery=True, turns=60, sees="around", choices=True),
    CliffWalking(choices=True),
    CliffWalking(slippery=True, turns=200, choices=True),
    Taxi(choices=True),
    Taxi(rainy=True, choices=True),
    Blackjack(choices=True),
]
NAMES = ["lake", "slippery lake", "cliff", "slippery cliff", "taxi", "rainy taxi", "blackjack"]


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def shown(step: Step) -> str:
    assert step.observation is not None
    return step.observation.messages[0].text


@pytest.mark.parametrize(
    ("family", "fields", "least"),
    [(Taxi, {}, 9), (CliffWalking, {}, 2), (FrozenLake, {"size": 3}, 4), (FrozenLake, {"size": 8}, 14)],
)
def test_a_limit_within_which_nothing_can_be_won_is_refused(family, fields, least):
    for turns in (1, least - 1):
        with pytest.raises(ConfigError, match=f"turns = {turns}, but the shortest way to the goal takes {least}"):
            family(**fields, turns=turns)
    for split in ("train", "test"):
        tasks = family(**fields, turns=least).tasks(split)
        assert any(family(**fields).make(tasks[number]).winnable() for number in range(200))


@pytest.mark.parametrize(
    ("module", "table"), [(taxi, taxi._transition_table(False)), (cliffwalking, cliffwalking._transition_table(False))]
)
def test_the_nearest_start_for_testing_is_as_far_as_is_said(module, table):
    def nearest(turns):
        return any(TabularEnv(table, start, "any", turns).winnable() for start in module.starts("test"))

    assert nearest(module.NEAREST)
    assert not nearest(module.NEAREST - 1)


def lake(*rows: str, slippery: bool = False, turns: int = 30) -> TabularEnv:
    return TabularEnv(_transition_table(rows, slippery, "both"), 0, "a lake", turns, choices=True)


async def finish(play: Any) -> Step:
    while True:
        step = await play.step("agent", say(play.expert()))
        if step.done:
            return step


async def wander(play: Any, rng: random.Random) -> float:
    observation = await play.start()
    while True:
        step = await play.step("agent", say(rng.choice(observation.choices)))
        if step.done:
            return step.rewards["agent"]
        observation = step.observation


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
async def test_promises(family) -> None:
    report = await check_env(family, max_turns=250)
    assert report.passed, report.failed


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
async def test_the_expert_earns_everything(family) -> None:
    for split, number in (("train", 60), ("test", 20)):
        for task in family.tasks(split)[:number]:
            play = family.make(task)
            await play.start()
            step = await finish(play)
            assert step.rewards == {"agent": 1.0}
            assert step.success is True


@pytest.mark.parametrize(
    ("family", "most"), zip(FAMILIES, (0.3, 0.5, 0.25, 0.3, 0.12, 0.12, 0.3), strict=True), ids=NAMES
)
async def test_chance_earns_little(family, most: float) -> None:
    rng = random.Random(0)
    earned = [await wander(family.make(task), rng) for task in family.tasks("train")[:200]]
    assert sum(earned) / len(earned) < most


@pytest.mark.parametrize("family", FAMILIES[:1] + FAMILIES[2:6], ids=NAMES[:1] + NAMES[2:6])
async def test_the_expert_goes_on_from_wherever_chance_stopped(family) -> None:
    rng = random.Random(1)
    for task in family.tasks("train")[:40]:
        play = family.make(task)
        observation = await play.start()
        for _ in range(10):
            twin = await play.fork()
            step = await twin.step("agent", say(rng.choice(observation.choices)))
            if step.done:  # fell, or arrived
                break
            play, observation = twin, step.observation
        assert (await finish(play)).success


async def test_a_lake_by_hand() -> None:
    play = lake("SFH", "HFF", "FFG")
    first = await play.start()
    assert first.messages[0].text == (
        "@ . O\nO . .\n. . G\nAround you: up edge, down hole, left edge, right ice.\nThe goal is 2 down and 2 right."
    )
    assert first.choices == ("down", "right")
    for impossible in ("up", "left"):
        with pytest.raises(ActionError, match="not possible"):
            await play.step("agent", say(impossible))
    fallen = await (await play.fork()).step("agent", say("down"))
    assert (fallen.done, fallen.success, fallen.rewards) == (True, False, {"agent": 0.0})
    for action in (" RIGHT ", "down", "down"):
        await play.step("agent", say(action))
    end = await play.step("agent", say("right"))
    assert (end.done, end.success, end.rewards) == (True, True, {"agent": 1.0})
    assert end.info == {"frozenlake/return": 1.0}
    with pytest.raises(InfrastructureError, match="once"):
        await play.step("agent", say("right"))


async def test_a_play_ends_unpaid_when_its_turns_are_used_up() -> None:
    play = lake("SFF", "FFF", "FFG", turns=3)
    await play.start()
    for action in ("right", "left"):
        assert not (await play.step("agent", say(action))).done
    end = await play.step("agent", say("right"))
    assert (end.done, end.success, end.rewards) == (True, False, {"agent": 0.0})


async def test_ice_slips_in_two_of_three_cases_and_alike_for_the_same_actions() -> None:
    moved = {"right": 0, "down": 0, "here": 0}
    for number in range(600):
        ends = set()
        for _ in range(2):
            play = TabularEnv(_transition_table(("SFF", "FFF", "FFG"), True, "around"), 0, str(number), 5)
            await play.step("agent", say("right"))
            ends.add(play.state)
        assert len(ends) == 1
        moved[{0: "here", 1: "right", 3: "down"}[ends.pop()]] += 1
    assert all(140 < count < 260 for count in moved.values())


async def test_the_expert_uses_the_best_policy_unless_it_would_lose_in_this_play() -> None:
    """On ice that slips, holding against the upper edge is the way past the holes below."""
    table = _transition_table(("SFFF", "FHHF", "FFFF", "FFFG"), True, "map")
    play = TabularEnv(table, 2, "x", 100)
    assert table.actions[table.policy[2]] == "up"
    assert play._policy_wins()
    assert play.expert() == "up"
    narrow = _transition_table(("SFFF", "HHFH", "FFFF", "FFFG"), True, "map")  # between two holes there is no safe step
    doomed = [made for number in range(200) if not (made := TabularEnv(narrow, 0, str(number), 60))._policy_wins()]
    assert 10 < len(doomed) < 190
    saved = [(await finish(made)).success for made in doomed]
    assert sum(saved) > 0.9 * len(saved)


def test_maps_differ_and_belong_to_one_split() -> None:
    maps = {split: {_map(split, seed, 4, 0.8) for seed in range(500)} for split in ("train", "test")}
    assert len(maps["train"]) > 200
    assert not maps["train"] & maps["test"]
    assert all(rows[0][0] == "S" and rows[-1][-1] == "G" for rows in maps["train"])


def test_beginnings_belong_to_one_split() -> None:
    assert sorted(starts("train") + starts("test")) == list(range(37))
    assert len(taxi.starts("train")) == 240
    assert len(taxi.starts("test")) == 60
    assert not set(taxi.starts("train")) & set(taxi.starts("test"))


async def test_a_step_off_the_cliff_leads_back_to_the_corner() -> None:
    play = CliffWalking().make(CliffWalking().tasks("train")[0])
    play.state = 24  # row 2, column 0
    await play.start()
    await play.step("agent", say("right"))
    step = await play.step("agent", say("down"))
    assert shown(step).startswith("You stepped off the cliff, and are in the lower left corner. Around you: up ground")
    assert play.state == 36
    assert not step.done
    for action in ["up", *["right"] * 11]:
        await play.step("agent", say(action))
    end = await play.step("agent", say("down"))
    assert end.success is True
    assert end.info == {"cliffwalking/return": -114.0}


async def test_a_taxi_ride_by_hand() -> None:
    play = Taxi().make(Taxi().tasks("train")[0])
    play.state = ((1 * 5 + 1) * 5 + 0) * 4 + 2  # row 1, column 1; red to yellow
    first = await play.start()
    assert first.messages[0].text == (
        "The passenger waits at red and wants to go to yellow. Red is 1 north and 1 west. "
        "Free ways: south, north, west."
    )
    with pytest.raises(ActionError, match="not possible"):
        await play.step("agent", say("east"))  # a wall
    with pytest.raises(ActionError, match="not possible"):
        await play.step("agent", say("pick up"))
    for action in ("north", "west"):
        await play.step("agent", say(action))
    inside = await play.step("agent", say("pick up"))
    assert shown(inside).startswith("The passenger is in the taxi and wants to go to yellow. Yellow is 4 south.")
    for action in ["south"] * 4:
        await play.step("agent", say(action))
    end = await play.step("agent", say("drop off"))
    assert (end.success, end.rewards, end.info) == (True, {"agent": 1.0}, {"taxi/return": 13.0})


async def test_hands_of_blackjack() -> None:
    family = Blackjack(winnable=False)
    seen = set()
    for task in family.tasks("train")[:200]:
        play = family.make(task)
        text = (await play.start()).messages[0].text
        player, total = list(play.hand.player), sum(play.hand.player)
        soft = 1 in player and total <= 11
        assert f"{total + 10 * soft} in all{' with an ace as 11' * soft}. The dealer shows" in text
        bust = await play.fork()
        step = await bust.step("agent", say("hit"))
        while not step.done:
            step = await bust.step("agent", say("hit"))
        assert step.rewards == {"agent": -1.0}
        end = await play.step("agent", say("Stick"))
        dealer = list(play.hand.dealer)
        best = [sum(h) + 10 * (1 in h and sum(h) <= 11) for h in (player, dealer)]
        assert best[1] >= 17
        won = best[1] > 21 or best[0] > best[1]
        assert end.rewards["agent"] == (1.0 if won else 0.0 if best[0] == best[1] else -1.0)
        assert end.success is won
        seen.add(end.rewards["agent"])
    assert seen == {-1.0, 0.0, 1.0}


async def test_hands_that_cannot_be_won_are_dealt_only_where_asked_for() -> None:
    every = Blackjack(winnable=False)
    earned = []
    for task in every.tasks("train")[:100]:
        play = every.make(task)
        earned.append((await finish(play)).rewards["agent"])
    assert -1.0 in earned
    assert 1.0 in earned


@pytest.mark.parametrize("said", ["", "jump", "right right", "left" * 500, "١", "up\u202e"])
@pytest.mark.parametrize("family", [FrozenLake(), CliffWalking(), Taxi(), Blackjack()])
async def test_nonsense_is_refused_and_changes_nothing(family, said: str) -> None:
    play = family.make(family.tasks("test")[0])
    await play.start()
    before = play.state_key()
    with pytest.raises(ActionError, match="no action"):
        await play.step("agent", say(said))
    assert play.state_key() == before


@pytest.mark.parametrize(
    ("world", "wrong", "told"),
    [
        (FrozenLake, {"size": 2}, "frozenlake: size = 2: expected"),
        (FrozenLake, {"frozen": 1.0}, "frozen = 1.0"),
        (FrozenLake, {"sees": "all"}, "sees = 'all'"),
        (CliffWalking, {"turns": 0}, "turns = 0"),
        (Taxi, {"turns": True}, "turns = True"),
        (Blackjack, {"train": 0}, "train = 0"),
    ],
)
def test_wrong_configs_are_refused(world, wrong, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        world(**wrong)


@pytest.mark.parametrize("world", [FrozenLake, CliffWalking, Taxi, Blackjack])
def test_an_unknown_split_is_refused(world) -> None:
    with pytest.raises(ConfigError, match='"dev"'):
        world().tasks("dev")
