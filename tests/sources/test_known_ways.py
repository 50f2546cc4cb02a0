"""Searches that share what the plays of earlier steps found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from keyed_world import Walks
from made_world import components
from search_worlds import TASK, Draws, played

from sojourn.record import checkpoint
from sojourn.search_cost import SEARCH_TOKENS
from sojourn.searchers.best_first import BestFirst
from sojourn.searchers.mcts import MCTS
from sojourn.sources.known_ways import KnownWays
from sojourn.sources.searched import Searched
from sojourn.types import Group

SEARCH = BestFirst(by="likelihood", merge_states=True, width=6, expansions=12, depth=10)
WEAK = replace(SEARCH, width=2, expansions=1)  # finds nothing alone


def source(sampler=None, agent=SEARCH, world=None, **options):
    made = components(world or Walks(), sampler or Draws())
    made.runner.config = replace(made.runner.config, max_error_rate=1.0)
    return Searched(**{"width": 1, "size": 1, "agent": agent, "known_states": 100} | options).bind(made, "rl", 4)


def observe(taken, groups):
    taken.observe(groups, [[] for _ in groups])


def said(episode):
    return [turn.message.text for turn in episode.trajectories[0].turns]


def group_of(*texts):
    """Returns a group of plays in which these digits were said."""

    class Says(Draws):
        async def sample(self, prompt, params):
            self.texts = (self.left.pop(0),)
            return await super().sample(prompt, params)

    def play(text):
        sampler = Says()
        sampler.left = list(text)
        return played(Walks(), components(Walks()).runner.agent, sampler)

    episodes = tuple(replace(play(text), id=f"play/{number}") for number, text in enumerate(texts))
    return Group(0, episodes[0].task, episodes)


def known(*groups, capacity=100):
    ways = KnownWays(capacity)
    for group in groups:
        ways.observe([group])
    return ways


def test_the_shortest_way_from_each_state_is_known_without_turns_that_led_back():
    group = group_of("1201111")
    assert known(group).of(group.task.id) == {str(at): ("1",) * (4 - at) for at in range(4)}
    assert known(group_of("19112111")).of(group.task.id)["0"] == ("1", "1", "1", "1")
    shorter = group_of("33")
    for several in ([group, shorter], [shorter, group]):
        ways = known(*several).of(group.task.id)
        assert (ways["0"], ways["2"], ways["1"]) == (("3", "3"), ("3",), ("1", "1", "1"))


def test_plays_that_failed_and_other_tasks_tell_nothing():
    failed = group_of("12121212121212")
    assert not failed.episodes[0].trajectories[0].success
    assert known(failed).of(failed.task.id) == {}
    won = group_of("1111")
    assert known(won).of("another task") == {}


def test_where_there_are_too_many_states_the_first_task_is_forgotten():
    one = group_of("1111")
    tasks = [replace(one.task, seed=seed) for seed in range(3)]
    ways = known(*(replace(one, task=task) for task in tasks), capacity=9)
    assert [len(ways.of(task.id)) for task in tasks] == [0, 4, 4]
    assert known(one, capacity=3).of(one.task.id) == {}


async def test_what_was_found_in_a_step_is_said_without_sampling_in_the_next():
    sampler = Draws()
    taken = source(sampler)
    [group] = await taken.take(0)
    assert group.episodes[0].trajectories[0].success
    observe(taken, [group])
    asked = len(sampler.asked)
    [again] = await taken.take(1)
    assert len(sampler.asked) == asked
    [trajectory] = again.episodes[0].trajectories
    assert trajectory.success
    assert said(again.episodes[0]) == ["1"] * 4
    assert all(turn.sample.versions.oldest == -1 for turn in trajectory.turns)
    await taken.close()


async def test_a_search_that_comes_to_a_known_state_ends_by_what_is_known():
    sampler = Draws(texts=("1",))
    taken = source(sampler, WEAK)
    taken._known.ways[TASK.id] = {"1": ("1", "1", "1")}
    [found] = await taken.take(0)
    assert found.episodes[0].trajectories[0].success
    turns = found.episodes[0].trajectories[0].turns
    assert [turn.sample.versions.oldest for turn in turns] == [0, -1, -1, -1]
    assert [SEARCH_TOKENS in turn.info for turn in turns] == [True, False, False, False]
    assert len(sampler.asked) == 2  # both say the same
    await taken.close()


async def test_what_does_not_lead_to_success_is_not_followed():
    taken = source(agent=SEARCH)
    taken._known.ways[TASK.id] = {"0": ("1", "2", "1"), "1": ("9",)}
    [found] = await taken.take(0)
    assert said(found.episodes[0]) == ["1"] * 4
    assert all(turn.sample.versions.oldest == 0 for turn in found.episodes[0].trajectories[0].turns)
    await taken.close()


async def test_no_play_knows_what_another_of_its_step_found():
    async def two_steps(slow):
        taken, found = source(world=Walks(slow=slow), size=3), []
        for step in range(2):
            groups = await taken.take(step)
            found += [
                (e.id, e.branch, [(t.message.text, t.sample.versions.oldest, t.considered) for t in one.turns])
                for group in groups
                for e in group.episodes
                for one in e.trajectories
            ]
            observe(taken, groups)
        await taken.close()
        return found

    quick = await two_steps(0.0)
    assert quick == await two_steps(0.001)
    first = [turns for id, _, turns in quick if id.startswith("rl/0/")]
    assert len(first) >= 3
    assert all(versions == 0 for turns in first for _, versions, _ in turns)


async def test_a_resumed_run_knows_the_same(tmp_path):
    taken = source()
    observe(taken, await taken.take(0))
    saved = checkpoint.save(tmp_path, 1, lambda path: None, {"groups": taken.state()})
    resumed = source()
    resumed.restore(saved.state()["groups"])
    assert resumed._known == taken._known
    assert resumed._known.ways
    for groups in (await taken.take(1), await resumed.take(1)):
        assert [turn.sample.versions.oldest for turn in groups[0].episodes[0].trajectories[0].turns] == [-1] * 4
    assert "known" not in source(known_states=0).state()
    await taken.close()
    await resumed.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"agent": MCTS()}, "known_states = 100 with agent = MCTS, which does not go by what is known: use best_first"),
        ({"max_lag": 1}, "known_states = 100 with max_lag = 1: what is known must be that of the step before"),
    ],
)
def test_what_cannot_share_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Searched(**{"agent": SEARCH, "known_states": 100} | wrong)
