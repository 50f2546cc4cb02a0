"""A reward for one seat, and the share of it that the seats beside it get."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from cases import of_episodes, trajectory

from sojourn.config.registry import build
from sojourn.rewards.judge import Judge
from sojourn.rewards.native import Native
from sojourn.rewards.of_seat import OfSeat
from sojourn.types import Score


@dataclass(frozen=True)
class Told:
    """Pays turns what their info says, and keeps which seats it was shown."""

    shown: list[str]

    async def __call__(self, group):
        self.shown.extend(one.agent for one in group.trajectories)
        paid = [[turn.info["own"] for turn in one.turns] for one in group.trajectories]
        return [Score(np.array(turns, dtype=np.float32), {"told": 1.0}, {"why": "so"}) for turns in paid]


def line(seat: str, *own: float, reward: float = 0.0):
    made = trajectory([1] * len(own), infos=[{"own": value} for value in own], agent=seat)
    return replace(made, turns=tuple(replace(turn, reward=reward) for turn in made.turns))


def played():
    """Two episodes, whose attackers have a turn of their own after the defenders'."""
    return of_episodes(
        [
            (line("attacker", 9, 9, reward=0.5), line("defender", 1, 2)),
            (line("defender", -1), line("attacker", 9, reward=0.25)),
        ]
    )


@pytest.mark.parametrize(("others", "shares"), [(-1.0, (-3, 1)), (0.0, (0, 0)), (0.5, (1.5, -0.5))])
async def test_the_seat_gets_its_reward_and_others_their_share_of_it(others, shares) -> None:
    told: list[str] = []
    scores = await OfSeat(own=Told(told), seat="defender", others=others)(played())
    first, second = shares
    assert [one.turns.tolist() for one in scores] == [[0.5, 0.5 + first], [1, 2], [-1], [0.25 + second]]
    assert [one.result for one in scores] == [1 + first, 3, -1, 0.25 + second]
    assert told == ["defender", "defender"]
    assert [one.parts.get("told", 0.0) for one in scores] == [0, 1, 1, 0]
    assert [one.words.get("why", "") for one in scores] == ["", "so", "so", ""]


async def test_a_seat_that_is_not_trained_is_scored_too() -> None:
    of = played()
    frozen = [
        tuple(replace(one, trainable=one.agent == "attacker") for one in episode.trajectories)
        for episode in of.episodes
    ]
    of = replace(
        of, episodes=tuple(replace(e, trajectories=seats) for e, seats in zip(of.episodes, frozen, strict=True))
    )
    scores = await OfSeat(own=Told([]), seat="defender", others=-1.0)(of)
    assert [one.total for one in scores] == [-2, 1.25]


async def test_a_seat_that_never_acted_and_failed_episodes() -> None:
    of = of_episodes([(replace(line("attacker"), unacted_reward=0.5), line("defender", 2)), (line("defender", 7),)])
    of = replace(of, episodes=(of.episodes[0], replace(of.episodes[1], error="lost")))
    scores = await OfSeat(own=Told([]), seat="defender", others=-1.0)(of)
    assert [one.total for one in scores] == [-1.5, 2]


async def test_a_group_without_the_seat_has_the_base_alone() -> None:
    told: list[str] = []
    scores = await OfSeat(base=Native(scale=2.0), own=Told(told), seat="defender")(
        of_episodes([(line("agent", 1, reward=1.0),)])
    )
    assert [one.total for one in scores] == [2]
    assert not told


def test_it_is_built_with_a_judge_of_its_own() -> None:
    made = build("reward", {"name": "of_seat", "seat": "defender", "others": -1.0, "own": {"name": "judge"}}).value
    assert isinstance(made.own, Judge)
    assert made.named_seats == {"defender"}
