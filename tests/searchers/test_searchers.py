"""What agents that search find, what it costs, and that the play itself is not disturbed."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from made import chatml as renderer
from search_worlds import (
    TASK,
    Digits,
    Draws,
    Family,
    ForkableDigits,
    Game,
    played,
    runner,
    solved,
)

from sojourn.agents.instructed import Instructed
from sojourn.agents.plain import Plain
from sojourn.config.registry import build
from sojourn.envs.tools import as_family
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.rewards.native import Native
from sojourn.search_cost import spent_tokens
from sojourn.searchers.beam import Beam
from sojourn.searchers.best_first import BestFirst
from sojourn.searchers.best_of_n import BestOfN
from sojourn.searchers.critique import Critique
from sojourn.searchers.look_ahead import LookAhead
from sojourn.searchers.mcts import MCTS, Bounds, Node
from sojourn.searchers.minimax import Minimax
from sojourn.searchers.self_consistency import SelfConsistency
from sojourn.searchers.thought_graph import ThoughtGraph
from sojourn.searchers.tree_of_code import TreeOfCode
from sojourn.sources.experts import expert_sampler
from sojourn.sources.slot_record import SlotRecord
from sojourn.types import Prompt, SamplingParams

SEARCHERS = {
    "best_of_n": BestOfN(n=60),
    "look_ahead": LookAhead(width=8, rollouts=12),
    "beam": Beam(width=8, beams=9, rollouts=0),
    "best_first": BestFirst(width=8, expansions=24, rollouts=0),
    "mcts": MCTS(width=8, simulations=60),
    "agent_q": MCTS(width=8, simulations=60, critique=Critique()),
    "uct": MCTS(width=8, simulations=60, rule="uct", final="value"),
    "minimax": Minimax(width=8, depth=3, rollouts=0, listed=False),
    "thought_graph": ThoughtGraph(width=8, rollouts=12),
}
ALL = {
    **SEARCHERS,
    "tree_of_code": TreeOfCode(),
    "self_consistency": SelfConsistency(n=6),
    "votes": SelfConsistency(n=6, vote="action"),
}


def success(family, agent, seeds=range(12), sampler=None):
    return sum(played(family, agent, sampler, seed).trajectories[0].success for seed in seeds) / len(seeds)


@pytest.mark.parametrize("name", SEARCHERS)
@pytest.mark.parametrize("kind", [ForkableDigits, Digits])
def test_a_search_wins_where_the_policy_seldom_does(name, kind):
    assert success(Family(kind=kind), Plain(), range(60)) < 0.2  # 1 of 27 by chance
    assert success(Family(kind=kind), SEARCHERS[name]) > 0.5


@pytest.mark.parametrize("name", ALL)
def test_the_samples_of_the_play_are_those_that_were_drawn_for_their_prompts(name):
    sampler = Draws()
    [trajectory] = played(Family(hint=0.1), ALL[name], sampler).trajectories
    drawn = {id(sample): prompt for prompt, sample in sampler.asked}
    assert len(trajectory.turns) == 3
    for number, turn in enumerate(trajectory.turns):
        assert drawn[id(turn.sample)] == trajectory.prompt(number).tobytes()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("texts", [("0", "1", "2"), ("0", "1", "2", "9", "1")])
def test_every_sampled_token_is_counted_once(name, texts):
    sampler = Draws(texts)
    [trajectory] = played(Family(), ALL[name], sampler).trajectories
    assert spent_tokens(trajectory.turns) == sampler.tokens
    assert sampler.tokens > sum(len(turn.sample.tokens) for turn in trajectory.turns)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", [ForkableDigits, Digits])
def test_all_copies_are_closed_and_the_play_itself_takes_its_own_steps_alone(name, kind):
    stepped = []

    class Watched(kind):
        async def step(self, agent, action):
            stepped.append(self)
            return await super().step(agent, action)

    family = Family(kind=Watched)
    episode = played(family, ALL[name])
    assert episode.error is None
    assert family.open == 0
    assert sum(env is stepped[-1] for env in stepped) == len(episode.trajectories[0].turns)


@pytest.mark.parametrize("name", ALL)
def test_what_is_found_does_not_depend_on_which_copy_is_faster(name):
    fast, slow = (played(Family(slow=slow), ALL[name], Draws(("0", "1", "2", "9"))) for slow in (0.0, 0.002))
    assert [t.message for t in fast.trajectories[0].turns] == [t.message for t in slow.trajectories[0].turns]
    assert repr([t.considered for t in fast.trajectories[0].turns]) == repr(
        [t.considered for t in slow.trajectories[0].turns]
    )


@pytest.mark.parametrize("name", ALL)
def test_where_copies_fail_the_policy_acts_and_the_play_goes_on(name):
    episode = played(Family(breaks=True), ALL[name])
    assert episode.error is None
    turns = episode.trajectories[0].turns
    assert len(turns) == 3
    assert all(turn.info["search_failures"] > 0 for turn in turns)
    assert not any("planned" in turn.info for turn in turns)


@pytest.mark.parametrize("name", ALL)
def test_a_budget_bounds_the_search(name):
    budget = 12
    bound = type(ALL[name])(**{**vars(ALL[name]), "tokens": budget})
    one_play = 3 * 2  # tokens: a digit and the end of the turn, three times
    trial = {"look_ahead": 8 * 2 + 12 * 4, "thought_graph": 8 * 2 + 12 * 4, "minimax": 8 * 6, "votes": 6 * 2}.get(
        name, 8 * 2 + one_play
    )
    spent, unbound = (
        [spent_tokens(played(Family(), agent, seed=seed).trajectories[0].turns) for seed in range(8)]
        for agent in (bound, ALL[name])
    )
    assert max(spent) <= budget + trial + one_play
    assert sum(spent) < sum(unbound)


def test_best_of_n_follows_the_play_that_was_worth_most():
    [trajectory] = played(Family(hint=0.25), BestOfN(n=10)).trajectories
    considered = trajectory.turns[0].considered
    assert len(considered) == 10
    assert trajectory.reward == max(one.value for one in considered)
    assert [len(turn.considered) for turn in trajectory.turns] == [10, 0, 0]


@pytest.mark.parametrize(
    ("at_once", "enough", "tried"), [(1, 1.0, 1), (3, 1.0, 3), (1, 2.0, 7), (3, 2.0, 7), (0, 1.0, 7)]
)
def test_best_of_n_stops_after_the_plays_among_which_one_is_worth_enough(at_once, enough, tried):
    agent = BestOfN(n=7, at_once=at_once, enough=enough)
    [trajectory] = played(Family(secret="111"), agent, Draws(("1",))).trajectories  # all plays win
    assert len(trajectory.turns[0].considered) == tried


def test_best_of_n_searches_each_turn_anew_where_it_commits_to_one():
    [trajectory] = played(Family(), BestOfN(n=4, commit="turn")).trajectories
    assert [len(turn.considered) for turn in trajectory.turns] == [4, 4, 4]


def test_self_consistency_takes_the_answer_that_most_plays_give():
    sampler = Draws(("0", "1", "1"))
    answers = [played(Family(), SelfConsistency(n=31), sampler, seed).trajectories[0].turns[-1] for seed in range(6)]
    assert {turn.message.text for turn in answers} == {"1"}
    firsts = [played(Family(), SelfConsistency(n=31, vote="action"), sampler, seed) for seed in range(6)]
    assert {turn.message.text for episode in firsts for turn in episode.trajectories[0].turns} == {"1"}


@pytest.mark.parametrize(("vote", "refused"), [("answer", 24), ("action", 4)])
def test_actions_that_are_refused_win_no_vote(vote, refused):
    """Most plays end, or begin, with a "9", which the world refuses."""
    sampler, agent = Draws((*["9"] * refused, "1")), SelfConsistency(n=24, vote=vote)
    [trajectory] = played(Family(secret="1"), agent, sampler).trajectories
    assert trajectory.turns[-1].message.text == "1"
    if vote == "action":
        assert len(trajectory.turns) == 1
    [trajectory] = played(Family(secret="1"), agent, Draws(("9",))).trajectories
    assert trajectory.turns[-1].message.text == "9"  # where there is nothing else


def test_look_ahead_takes_the_action_whose_plays_earn_most_so_far():
    [trajectory] = played(Family(hint=0.5), LookAhead(width=12, turns=1, enough=2)).trajectories
    assert [turn.message.text for turn in trajectory.turns] == ["1", "2", "0"]
    assert {(one.text, one.value) for one in trajectory.turns[0].considered} == {("0", 0), ("1", 0.5), ("2", 0)}


def test_a_plan_is_dropped_where_the_world_shows_something_else():
    class Changing(ForkableDigits):
        async def fork(self):
            copy = await super().fork()
            copy.said = "0" if self.said == "" else self.said  # the copy is in another state
            return copy

    [trajectory] = played(Family(kind=Changing), BestOfN(n=4)).trajectories
    assert [bool(turn.considered) for turn in trajectory.turns] == [True, True, False]


def test_refused_actions_are_searched_and_the_play_goes_on_after_one():
    sampler = Draws(("9", "1", "2", "0"))
    for seed in range(6):
        [trajectory] = played(Family(), SelfConsistency(n=1), sampler, seed).trajectories
        refused = [turn.info.get("malformed", 0.0) for turn in trajectory.turns]
        assert refused.count(0.0) == 3
        if 1.0 in refused:
            assert [turn.message.text == "9" for turn in trajectory.turns] == [value == 1.0 for value in refused]
            break
    else:
        raise AssertionError("no action was refused")


def test_the_reward_of_the_search_judges_what_was_tried():
    class NoHint(Native):
        async def __call__(self, group):
            assert group.task is TASK
            return [type(s)(-s.turns, s.parts) for s in await super().__call__(group)]

    [trajectory] = played(Family(hint=0.5), LookAhead(width=12, turns=1, reward=NoHint(), enough=2)).trajectories
    assert trajectory.turns[0].message.text != "1"


# The tree search by hand.


def node(prior=1.0, visits=0, total=0.0, parent=None):
    made = Node(None, parent, "agent", "", prior, None, visits)  # type: ignore[arg-type]
    made.totals["agent"] = total
    return made


def test_puct_and_uct_by_hand():
    child = node(prior=0.25, visits=3)
    assert MCTS(c=2.0)._bonus(child, 16) == pytest.approx(2.0 * 0.25 * 4 / 4)
    assert MCTS(c=2.0, rule="uct")._bonus(child, 16) == pytest.approx(2.0 * math.sqrt(math.log(16) / 3))
    assert MCTS(rule="uct")._bonus(node(), 16) == math.inf


def test_worths_are_scaled_by_the_least_and_the_greatest():
    bounds = Bounds()
    assert bounds.scaled(3.0) == 0.5
    bounds.include([-1.0, 3.0])
    assert [bounds.scaled(x) for x in (-1.0, 0.0, 3.0)] == [0.0, 0.25, 1.0]


def test_mcts_visits_the_better_action_more_and_takes_it():
    [trajectory] = played(Family("1"), MCTS(width=12, simulations=40, enough=2.0)).trajectories
    visits = {one.text: (one.value, one.visits) for one in trajectory.turns[0].considered}
    assert visits["1"][0] == 1.0
    assert visits["0"][0] == visits["2"][0] == 0.0
    assert visits["1"][1] > 20
    assert trajectory.success
    assert sum(count for _, count in visits.values()) == 40


# Games of two seats.


GAMES = [(board, True) for board in ("XX.OO....", "X.X.O...O", "XOX.O....", "XO..X.O..", "X...O..OX")]


@pytest.mark.parametrize(("board", "listed"), [*GAMES, ("XOXOX.O..", False), ("XOXXO.O..", False)])
def test_minimax_plays_as_well_as_the_solved_game(board, listed):
    searcher = Minimax(depth=5 if listed else 3, width=30, rollouts=0, listed=listed, copies=64)
    sampler = Draws(tuple("012345678"))
    episode = played(Game(board, listed), searcher, sampler)
    assert episode.error is None
    earned = {trajectory.agent: trajectory.reward for trajectory in episode.trajectories}
    assert earned["X"] == solved(board) == -earned["O"]


def test_pruning_leaves_positions_out_and_the_first_value_as_it_is():
    class Counted(Minimax):
        async def search(self, ahead):
            plan = await super().search(ahead)
            tried.append(ahead.copies)
            return plan

    tried: list[int] = []
    played(Game("XX.OO...."), Counted(depth=9, rollouts=0))
    free = 5
    whole = sum(math.perm(free, k) for k in range(1, free + 1))
    assert tried[0] < whole


def test_listed_actions_cost_no_tokens():
    sampler = Draws()
    episode = played(Game("XX.OO...."), Minimax(depth=2, rollouts=0), sampler)
    assert sampler.asked == []
    assert episode.trajectories[0].reward == 1.0
    assert next(one.text for one in episode.trajectories[0].turns[0].considered if one.parent == -1) == "2"


def test_mcts_plays_both_seats_for_what_is_best_for_each():
    sampler = Draws(tuple("012345678"))
    episode = played(Game("XX.O.O..."), MCTS(width=24, simulations=150, rollouts=1), sampler)
    assert {t.agent: t.reward for t in episode.trajectories}["X"] == 1.0  # X completes its line at once
    first = episode.trajectories[0].turns[0]
    assert {one.agent for one in first.considered} == {"X", "O"}


# What composes, and what is refused.


def test_instructions_reach_the_model_in_copies_too():
    sampler = Draws()
    agent = BestOfN(n=2, base=Instructed(text="Say a digit."))
    played(Family(), agent, sampler)
    said = np.array([*renderer().codec.control("Say a digit.")], dtype=np.int64).tobytes()
    assert len(sampler.asked) == 6
    assert all(said in prompt for prompt, _ in sampler.asked)


def test_only_the_agent_of_the_run_can_search():
    with pytest.raises(ConfigError, match="MCTS searches, which only the run's own agent can"):
        build("agent", {"name": "instructed", "text": "hi", "base": {"name": "mcts"}})
    with pytest.raises(ConfigError, match="base searches, too"):
        build("agent", {"name": "beam", "base": {"name": "mcts"}})


def test_experts_demonstrate_without_a_search():
    class Knows(ForkableDigits):
        def expert(self):
            return self.family.secret[len(self.said)]

    family, agent = Family(kind=Knows), MCTS()
    made = runner(family, agent)
    sampler_for = expert_sampler(made.renderer, agent)
    episode = asyncio.run(made.play_episode(TASK, SamplingParams(8), "x", sampler_for))
    assert episode.trajectories[0].success
    assert family.forks == 0


def test_copies_take_places_of_a_world_of_limited_capacity():
    class Small(Family):
        capacity = 9
        most = 0

        def make(self, task):
            return super().make(task)

    class Counting(ForkableDigits):
        async def step(self, agent, action):
            self.family.most = max(self.family.most, self.family.open)
            return await super().step(agent, action)

    family = Small(kind=Counting, slow=0.001)
    made = runner(family, BestOfN(n=6, copies=2))
    asyncio.run(made.play_group(TASK, 0, 8, SamplingParams(8), "x"))
    assert 3 < family.most <= 9
    assert family.open == 0
    with pytest.raises(ConfigError, match=r"holds 9 plays at once, but the agent opens 9 copies of each"):
        played(Small(), BestOfN(copies=9))


def test_recorded_samples_are_returned_in_any_order():
    record, engine = SlotRecord(), Draws()
    prompt = Prompt(np.arange(4, dtype=np.int64))
    asked = [SamplingParams(8, seed=seed) for seed in range(5)]
    first = record.sampler(engine, "a")
    drawn = [asyncio.run(first.sample(prompt, params)) for params in asked]
    again = SlotRecord.of(record.state()).sampler(engine, "a")
    before = len(engine.asked)
    repeated = [asyncio.run(again.sample(prompt, params)) for params in reversed(asked)]
    assert [s.tokens.tolist() for s in reversed(repeated)] == [s.tokens.tolist() for s in drawn]
    assert len(engine.asked) == before


def test_a_failure_of_the_play_itself_is_one():
    class Breaking(ForkableDigits):
        async def step(self, agent, action):
            if self.said and self.real:
                raise InfrastructureError("the line is cut")
            return await super().step(agent, action)

        real = True

        async def fork(self):
            copy = await super().fork()
            copy.real = False
            return copy

    episode = played(Family(kind=Breaking), BestOfN(n=2))
    assert "the line is cut" in episode.error


class Opening:
    """Holds what cannot be copied once its goal was asked for."""

    def __init__(self, seed: int):
        self.lines: Any = None

    def goal(self) -> str:
        self.lines = iter(line for line in "ab")
        return "Read."

    def read(self) -> str:
        return next(self.lines, "")

    def reward(self) -> float | None:
        return None


def test_a_search_in_what_cannot_be_copied_is_refused():
    with pytest.raises(ConfigError, match="Opening: a play cannot be copied"):
        played(as_family(Opening), BestFirst(width=2, expansions=2))
