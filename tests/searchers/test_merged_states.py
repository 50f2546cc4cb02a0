"""Best-first search that tells positions apart by the world's state key."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from keyed_world import Walks
from search_worlds import TASK, Draws, Family, played, runner

from sojourn.agents.plain import Plain
from sojourn.errors import ConfigError
from sojourn.searchers.best_first import BestFirst
from sojourn.types import SamplingParams

SEARCH = BestFirst(by="likelihood", width=6, expansions=12, depth=10)
MERGED = replace(SEARCH, merge_states=True)


def at(path):
    """Returns where one is after some actions."""
    place = 0
    for action in path:
        place = max(place + {"1": 1, "2": -1}.get(action, 0), 0)
    return place


def expanded(considered):
    """Returns where the positions are that a search went on from, but the first."""
    paths = {-1: ""}
    for number, one in enumerate(considered):
        paths[number] = paths[one.parent] + one.text
    return [at(paths[parent]) for parent in sorted({one.parent for one in considered} - {-1})]


@pytest.mark.parametrize("seed", range(6))
def test_no_state_is_gone_on_from_twice(seed):
    first = played(Walks(), MERGED, seed=seed).trajectories[0].turns[0]
    places = expanded(first.considered)
    assert places
    assert len(set(places)) == len(places)
    assert 0 not in places  # where the search began
    others = expanded(played(Walks(), SEARCH, seed=seed).trajectories[0].turns[0].considered)
    assert len(set(others)) < len(others)


def test_it_comes_to_the_goal_for_fewer_tokens():
    def tokens(agent, seed):
        sampler = Draws()
        assert played(Walks(), agent, sampler, seed).trajectories[0].success
        return sampler.tokens

    seeds = range(6)
    assert sum(tokens(MERGED, seed) for seed in seeds) < 0.5 * sum(tokens(SEARCH, seed) for seed in seeds)


def test_a_plan_has_no_action_that_changed_nothing():
    for seed in range(6):
        said = [turn.message.text for turn in played(Walks(), MERGED, seed=seed).trajectories[0].turns]
        assert said == ["1"] * 4


def test_a_world_without_state_keys_is_refused():
    with pytest.raises(ConfigError, match=r"merge_states needs a world with state_key\(\), which digits does not have"):
        played(Family(), MERGED)


def test_the_search_is_the_same_again():
    async def considered(slow):
        play = runner(Walks(slow=slow), replace(MERGED, base=Plain()))
        episode = await play.play_episode(TASK, SamplingParams(8, seed=3), "play/3")
        return [turn.considered for turn in episode.trajectories[0].turns]

    assert asyncio.run(considered(0.0)) == asyncio.run(considered(0.001))
