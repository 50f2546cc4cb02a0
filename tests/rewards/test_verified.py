"""Two verifiers, one after the other, by hand."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from cases import group, of_episodes, trajectory

from sojourn.config.registry import build
from sojourn.protocols import Stateful
from sojourn.rewards.native import Native
from sojourn.rewards.verified import Verified
from sojourn.types import Score


@dataclass(frozen=True)
class Checks:
    """Pays turns what their info says, and remembers how many it saw."""

    told: str
    seen: list[int] = field(default_factory=lambda: [0])

    async def __call__(self, group):
        self.seen[0] += sum(len(t.turns) for t in group.trajectories)
        paid = [[turn.info.get(self.told, 0.0) for turn in t.turns] for t in group.trajectories]
        return [Score(np.array(turns, dtype=np.float32), {self.told: 1.0}) for turns in paid]

    def state(self):
        return {"seen": self.seen[0]}

    def restore(self, state):
        self.seen[0] = state["seen"]


def line(end, *checked, **told):
    """A trajectory that is paid so much at the end, whose turns a verifier pays so much."""
    infos = [{"turn": float(paid), **told} for paid in checked]
    infos[-1] = {**infos[-1], "whole": float(end)}
    return trajectory([1] * len(checked), infos=infos)


def both(**more):
    return Verified(base=Checks("whole"), turns=Checks("turn"), **more)


async def test_the_papers_reward_by_hand():
    made = group(line(1, 1, 1, -1), line(0, 1, 1), line(1, 0, 1), line(1, -1))
    reward = both()
    judged = await reward(made)
    assert [score.turns.tolist() for score in judged] == [[0, 0, 0], [0, 0], [0, 1], [0]]
    assert [score.parts["passed"] for score in judged] == [1, 0, 1, 1]
    assert [score.parts["turns_failed"] for score in judged] == [1, 0, 0, 1]
    assert [score.parts["verified"] for score in judged] == [0, 0, 1, 0]
    assert all(score.parts["whole"] == 1 for score in judged)
    assert reward.base.seen == [8]
    assert reward.turns.seen == [6]  # not the two of the trajectory that failed


async def test_where_all_fail_no_turn_is_looked_at():
    class Never:
        async def __call__(self, group):
            raise AssertionError("it was called")

    judged = await Verified(base=Checks("whole"), turns=Never())(group(line(0, 1), line(-1, 1)))
    assert [score.total for score in judged] == [0, 0]


async def test_the_threshold_is_not_enough():
    judged = await both(threshold=0.5)(group(line(0.5, 0), line(0.75, 0), line(0.25, 0)))
    assert [score.total for score in judged] == [0, 1, 0]


async def test_a_number_that_is_0_fails_its_turn_and_none_does_not():
    made = group(line(1, 1, verified=0.0), line(1, 1, verified=1.0), line(1, 1), line(1, 1, seen=0.0))
    assert [score.total for score in await both()(made)] == [0, 1, 1, 1]
    assert [score.total for score in await both(info_key="seen")(made)] == [1, 1, 1, 0]


async def test_seats_and_failed_episodes_keep_their_places():
    opponent = replace(line(1, -1), agent="other", trainable=False)
    episodes = [(line(0, 1), opponent, line(1, 1)), (line(1, 1),), (line(1, -1), line(1, 1))]
    made = of_episodes(episodes)
    broken = replace(made.episodes[1], error="the browser died")
    made = replace(made, episodes=(made.episodes[0], broken, made.episodes[2]))
    reward = both()
    assert [score.total for score in await reward(made)] == [0, 1, 0, 1]
    assert reward.turns.seen == [3]


async def test_refused_turns_fail_by_default():
    made = trajectory([1, 1], infos=[{"malformed": 1.0}, {}])
    paid = replace(made, turns=(made.turns[0], replace(made.turns[1], reward=1.0)))
    clean = replace(paid, turns=tuple(replace(turn, info={}) for turn in paid.turns))
    assert [score.total for score in await Verified()(group(paid, clean, trajectory([])))] == [0, 1, 0]


async def test_the_memory_of_both_is_kept():
    reward, resumed = both(), both()
    await reward(group(line(1, 1, 1), line(0, 1)))
    assert reward.state() == {"base": {"seen": 3}, "turns": {"seen": 2}}
    resumed.restore(reward.state())
    assert (resumed.base.seen, resumed.turns.seen) == ([3], [2])
    half = Verified(base=Native(), turns=Checks("turn"))
    half.restore(half.state())
    assert half.state() == {"turns": {"seen": 0}}
    assert isinstance(half, Stateful)


@pytest.mark.parametrize("table", [{"name": "overlong"}, {"name": "tool_use", "coef": 0.25}])
def test_any_two_rewards_go_together(table):
    built = build("reward", {"name": "verified", "base": {"name": "shaped"}, "turns": table})
    assert built.table["turns"].items() >= table.items()


async def test_a_world_that_makes_every_step_cost_something_fails_no_turn_by_it():
    t = trajectory([1, 1])
    t = replace(t, turns=tuple(replace(turn, reward=paid) for turn, paid in zip(t.turns, (-0.1, 1.0), strict=True)))
    [score] = await Verified()(group(t))
    assert score.parts["turns_failed"] == 0
    assert score.total == 1
