"""How likely success is after a turn, by hand on a tree, and what the estimator `process` makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from forked import advantages, apart, scores, tree, trees
from hypothesis import given

from sojourn.credit.masked import Masked
from sojourn.credit.process import Process
from sojourn.credit.reinforce import Reinforce
from sojourn.credit.tree_values import TreeValues
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.streams.turn_success import TurnSuccess
from sojourn.types import Group

WON = {"a": 0.0, "b": 1.0, "c": 1.0, "d": 0.0}


def played(won: dict[str, float] = WON) -> Group:
    """The tree of `forked`, with whether each play succeeded told at its end."""
    episodes = []
    for episode in tree().episodes:
        [t] = episode.trajectories
        last = replace(t.turns[-1], info={"success": won[episode.id]})
        episodes.append(replace(episode, trajectories=(replace(t, turns=(*t.turns[:-1], last)),)))
    return replace(tree(), episodes=tuple(episodes))


async def told(of: Group, **fields: Any) -> dict[str, list[float]]:
    """The number of each turn, which is at its last token; by the id of its play."""
    [found] = await TurnSuccess(**fields)(TrainerPasses([of], [], cast(Any, None)))
    assert all(not turn[:-1].any() for turns in found for turn in turns)
    return {
        of.episodes[owner].id: [round(float(turn[-1]), 4) for turn in turns]
        for owner, turns in zip(of.owners, found, strict=True)
    }


async def test_math_shepherds_example():
    """Its figure 2: two of the three ways on from the first step are right: soft 2/3, hard 1."""
    soft, hard = await told(played()), await told(played(), estimate="hard")
    assert soft == {"a": [0.6667, 0, 0, 0], "b": [0.6667, 1, 1], "c": [0.6667, 1, 1], "d": [0]}
    assert hard == {"a": [1, 0, 0, 0], "b": [1, 1, 1], "c": [1, 1, 1], "d": [0]}


async def test_changes_add_up_to_success_less_the_chance_before():
    """At the start half of the plays succeed, and by the hard estimate any does."""
    changes = await told(played(), change=True)
    assert changes["a"] == [0.1667, -0.6667, 0, 0]
    for name, turns in changes.items():
        assert sum(turns) == pytest.approx(WON[name] - 0.5, abs=1e-3)
    assert (await told(played(), change=True, estimate="hard"))["d"] == [-1]
    assert await told(apart(played()), change=True) == {
        "a": [-0.5, 0, 0, 0],
        "b": [0.5, 0, 0],
        "c": [0.5, 0, 0],
        "d": [-0.5],
    }


async def test_as_process_rewards_changes_are_what_tree_values_gives():
    """At the first turns after forks; the turns until the next fork change nothing."""
    made = played({"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0})  # as the returns of `forked`
    streams = {"turn_success": await TurnSuccess(change=True)(TrainerPasses([made], [], cast(Any, None)))}
    rewarded = Process(stream="turn_success", outcome_coef=0.0, base=Reinforce(discount=0.0, baseline="none"))
    [credits] = rewarded([made], [scores(made)], streams)
    by_hand = advantages(TreeValues(), made)
    found = {
        made.episodes[n].id: [float(turn[0]) for turn in c.tokens] for n, c in zip(made.owners, credits, strict=True)
    }
    assert found["a"] == pytest.approx([*by_hand["a"][:2], 0, 0], abs=1e-4)
    for name in "bcd":
        assert found[name] == pytest.approx(by_hand[name], abs=1e-4)


async def test_turns_after_which_no_play_succeeded_can_be_left_out():
    made = played()
    streams = {"turn_success": await TurnSuccess(estimate="hard")(TrainerPasses([made], [], cast(Any, None)))}
    [credits] = Masked(stream="turn_success", stream_by="turn")([made], [scores(made)], streams)
    kept = {
        made.episodes[n].id: [bool(turn.all()) for turn in c.tokens] for n, c in zip(made.owners, credits, strict=True)
    }
    assert kept["a"] == [True, False, False, False]
    assert kept["b"] == [True, True, True]
    assert kept["d"] == [False]


@given(made=trees())
def test_a_shared_turn_has_one_number_whatever_the_order(made):
    there, back = (TurnSuccess().chances(g) for g in (made, replace(made, episodes=made.episodes[::-1])))
    first: dict[int, float] = {}
    for t, numbers in zip(made.trajectories, there, strict=True):
        for turn, number in zip(t.turns, numbers, strict=True):
            assert number == first.setdefault(id(turn.sample), number)
    for one, other in zip(there, back[::-1], strict=True):
        np.testing.assert_allclose(one, other)
