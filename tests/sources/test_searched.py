"""Plays that search, with what they tried as branches of their group."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from keyed_world import Walks
from made_world import components
from search_worlds import Draws, Family, ForkableDigits

from sojourn.agents.plain import Plain
from sojourn.search_cost import SEARCH_TOKENS, spent_tokens
from sojourn.searchers.best_first import BestFirst
from sojourn.searchers.best_of_n import BestOfN
from sojourn.searchers.look_ahead import LookAhead
from sojourn.searchers.mcts import MCTS
from sojourn.searchers.minimax import Minimax
from sojourn.sources.searched import Searched
from sojourn.sources.slots import Slots
from sojourn.streams.turn_pairs import TurnPairs
from sojourn.types import Ending, Episode

SEARCHES = [
    MCTS(width=3, simulations=8, enough=9.0),
    LookAhead(width=3, rollouts=2, enough=9.0),
    BestOfN(n=6),
    BestOfN(n=4, commit="turn"),
]


async def searched(agent, tried=1000, family=None, sampler=None, **config):
    family, sampler = family or Family(), sampler or Draws()
    made = components(family, sampler)
    made.runner.config = replace(made.runner.config, max_error_rate=1.0)
    source = Searched(width=1, agent=agent, tried=tried, **config).bind(made, "rl", 1)
    [group] = await source.take(0)
    await source.close()
    assert family.open == 0
    return group, sampler, source, made


@pytest.mark.parametrize("agent", SEARCHES, ids=lambda agent: type(agent).__name__)
async def test_groups_have_what_was_tried_and_every_token_once(agent):
    group, sampler, source, _ = await searched(agent, size=2)
    real = [episode for episode in group.episodes if episode.branch is None]
    assert len(real) == 2
    assert len({e.id for e in group.episodes}) == len(group.episodes) > 6
    assert source.metrics()["branches"] == len(group.episodes) - 2
    drawn = {id(sample) for _, sample in sampler.asked}
    kept = {id(t.sample): t.sample for e in group.episodes for one in e.trajectories for t in one.turns}
    assert kept.keys() <= drawn
    assert group.episodes[0].branch is None
    turns = [
        turn
        for number, (owner, holders) in enumerate(zip(group.owners, group.holders, strict=True))
        for turn, holder in zip(group.episodes[owner].trajectories[0].turns, holders, strict=True)
        if holder == number
    ]
    assert len(turns) == len(kept)  # each is trained once
    assert spent_tokens(turns) == sampler.tokens


@pytest.mark.parametrize("agent", SEARCHES, ids=lambda agent: type(agent).__name__)
async def test_a_branch_shares_what_it_says_with_a_play_before_it(agent):
    group, _, _, made = await searched(agent, size=2)
    before: dict[str, Episode] = {}
    for episode in group.episodes:
        [trajectory] = episode.trajectories
        if episode.branch is not None:
            [count] = episode.branch.turns
            [other] = before[episode.branch.of].trajectories
            same = [a.sample is b.sample for a, b in zip(trajectory.turns, other.turns, strict=False)]
            assert all(same[:count])
            assert not any(same[count:])
            assert len(trajectory.turns) > count or len(other.turns) > count
            assert episode.branch.reason.startswith("tried before turn ")
        assert trajectory.turns[-1].info["success"] == float(said(episode) == "120")
        before[episode.id] = episode
    scores = await made.rewards.reward(group)
    assert [score.total for score in scores] == [float(said(episode) == "120") for episode in group.episodes]


def said(episode):
    return "".join(turn.message.text for turn in episode.trajectories[0].turns)


async def test_no_more_are_kept_than_asked_for_and_the_same_ones_again():
    all_of_them, *_ = await searched(SEARCHES[0], size=2)
    few, *_ = await searched(SEARCHES[0], tried=3, size=2)
    again, *_ = await searched(SEARCHES[0], tried=3, size=2, family=Family(slow=0.001))
    assert len(few.episodes) == 2 * (1 + 3)
    assert {e.id for e in few.episodes} < {e.id for e in all_of_them.episodes}
    assert [(e.id, said(e), e.branch) for e in few.episodes] == [(e.id, said(e), e.branch) for e in again.episodes]


async def test_the_play_itself_is_the_one_of_an_agent_that_searches():
    group, *_ = await searched(SEARCHES[0], size=1)
    made = components(Family(), Draws())
    made.runner.agent = replace(SEARCHES[0], base=made.runner.agent)
    source = Slots(width=1, size=1).bind(made, "rl", 1)
    [alone] = await source.take(0)
    assert said(group.episodes[0]) == said(alone.episodes[0])
    assert group.episodes[0].trajectories[0].turns[0].info[SEARCH_TOKENS] > 0


class Drawn(ForkableDigits):
    """Shows what was said so far as an image, too."""

    @property
    def blobs(self):
        return {self.said: b"image"}


async def test_images_of_what_was_tried_are_recorded():
    made, shown = components(Family(kind=Drawn), Draws()), dict[str, bytes]()
    made.runner.on_blobs = shown.update
    source = Searched(width=1, size=1, agent=SEARCHES[0], tried=1000).bind(made, "rl", 1)
    [group] = await source.take(0)
    assert {said(episode) for episode in group.episodes} <= shown.keys()


@dataclass
class Fails(Family):
    """Refuses to make plays, once a number of them were made."""

    made: int = 0

    def make(self, task):
        self.made += 1
        if self.made > 1:
            raise RuntimeError("no more plays")
        return super().make(task)


async def test_what_was_tried_of_a_play_that_failed_is_dropped():
    group, *_ = await searched(SEARCHES[0], size=2, family=Fails())
    errors = [episode.error for episode in group.episodes if episode.branch is None]
    assert len([error for error in errors if error is None]) == 1
    parents = {episode.id.rpartition(".")[0] for episode in group.episodes if episode.branch is not None}
    assert parents == {episode.id for episode in group.episodes if episode.branch is None and episode.error is None}


async def test_pairs_are_of_what_was_tried_at_the_same_state():
    group, _, _, made = await searched(MCTS(width=4, simulations=24, enough=9.0), family=Family("12"), size=1)
    pairs = TurnPairs().pairs(group, await made.rewards.reward(group))
    assert pairs
    for pair in pairs:
        better, worse = (group.trajectories[answer.trajectory] for answer in pair)
        assert np.array_equal(better.prompt(pair.better.turn), worse.prompt(pair.worse.turn))
        assert pair.gap > 0
        assert all(group.holders[answer.trajectory][answer.turn] == answer.trajectory for answer in pair)
        mean = [
            np.mean([said(e) == "12" for e in group.episodes if said(e).startswith(path)])
            for path in (spoken(better, pair.better.turn), spoken(worse, pair.worse.turn))
        ]
        assert [pair.better.value, pair.worse.value] == pytest.approx(mean)


WALKS = BestFirst(by="likelihood", merge_states=True, width=6, expansions=12, depth=10)


async def test_plays_that_were_left_after_a_mistake_are_kept_where_that_is_asked_for():
    without, *_ = await searched(WALKS, family=Walks(), size=2)
    group, *_ = await searched(WALKS, family=Walks(), size=2, mistakes=("error", "malformed"))
    cut = [one for one in group.trajectories if one.ending is Ending.TURNS]
    assert cut
    assert all(one.turns[-1].info["error"] == 1.0 and not one.success for one in cut)
    ended = [said(episode) for episode in group.episodes if episode.trajectories[0].ending is not Ending.TURNS]
    assert sorted(ended) == sorted(map(said, without.episodes))
    few, *_ = await searched(WALKS, family=Walks(), size=2, mistakes=("error",), tried=1)
    assert len(few.episodes) == 4


async def test_pairs_prefer_the_action_of_a_play_that_succeeded_to_one_that_was_an_error():
    group, _, _, made = await searched(WALKS, family=Walks(), size=1, mistakes=("error",))
    pairs = TurnPairs().pairs(group, await made.rewards.reward(group))
    assert pairs
    for pair in pairs:
        better, worse = (group.trajectories[one.trajectory].turns[one.turn] for one in pair)
        assert (better.message.text, worse.message.text) in {("1", "0"), ("1", "2")}
        assert worse.info["error"] == 1.0
        assert better.info.get("error", 0.0) == 0.0
    none, _, _, made = await searched(WALKS, family=Walks(), size=1)
    assert not TurnPairs().pairs(none, await made.rewards.reward(none))


def spoken(trajectory, number):
    return "".join(turn.message.text for turn in trajectory.turns[: number + 1])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"agent": Plain()}, "agent = Plain does not search: name one that does"),
        ({"agent": Minimax()}, "agent = Minimax tries actions that no model sampled"),
        ({"agent": MCTS(base=Plain(choices=True))}, "leave the base out"),
    ],
)
def test_what_cannot_be_kept_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        Searched(**config)
