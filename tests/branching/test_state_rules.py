"""Where the rules fork that read states, returns and experts, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_world import Odd, components, stage_of
from test_rules import marked, point

from sojourn.branching.expert_decisions import ExpertDecisions
from sojourn.branching.revisited_states import RevisitedStates
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.branching.shared_states import SharedStates
from sojourn.branching.uncertain_states import UncertainStates
from sojourn.branching.uniform import Uniform
from sojourn.errors import ConfigError
from sojourn.sources.purified import Purified
from sojourn.sources.slots import Slots
from sojourn.types import Message, Role


def ended(states: str, reward: float = 0.0, *, began: int = 0, forks: int = 0, room: int = 7) -> BranchPoint:
    """A play at its end whose turns begin in these states, with a reward for the last one."""
    play = marked(states)
    turns = [replace(turn, reward=0.0) for turn in play.turns]
    play = replace(play, turns=(*turns[:-1], replace(turns[-1], reward=reward)))
    return replace(point(play, over=True, began=began, forks=forks), room=room)


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (ended("abcbdb"), [Fork(1, 2, "in one state 3 times")]),
        (ended("abacada"), [Fork(2, 2, "in one state 4 times")]),  # not before turn 0: where it came back to the start
        (ended("abccbb"), [Fork(1, 2, "in one state 3 times"), Fork(2, 2, "in one state 2 times")]),
        (ended("abcd"), []),
        (ended("abbcc", began=3, forks=1), [Fork(3, 2, "in one state 2 times")]),
        (ended("abcbb", began=2, forks=1), [Fork(3, 2, "in one state 3 times")]),  # its own turns alone
        (ended("abb", forks=2), []),
    ],
)
def test_revisited_states_are_left_where_a_play_was_first(play, expected):
    assert list(RevisitedStates(width=3, count=2, depth=2)(play)) == expected
    assert list(RevisitedStates(width=3, count=1, depth=2)(play)) == expected[:1]
    assert RevisitedStates(depth=2)(replace(play, over=False)) == ()


def test_states_of_another_seat_or_unknown_ones_are_not_the_same():
    play = ended("abab")
    turns = play.trajectories["agent"].turns
    assert RevisitedStates()(play)
    each = {"agent": replace(play.trajectories["agent"], turns=turns[::2])}
    each["other"] = replace(each["agent"], agent="other", turns=tuple(replace(t, state="a") for t in turns[1::2]))
    both = replace(play, trajectories=each, actors=("agent", "other") * 2)
    assert list(RevisitedStates(count=9)(both)) == [
        Fork(2, 1, "in one state 2 times"),
        Fork(1, 1, "in one state 2 times"),
    ]
    unknown = replace(play.trajectories["agent"], turns=tuple(replace(turn, state=None) for turn in turns))
    assert RevisitedStates()(replace(play, trajectories={"agent": unknown})) == []


def test_shared_states_are_those_that_most_plays_met_the_last_of_each_set_of_plays():
    """All four plays start in a, which does not count. Three met b and c: c is the last; two met e, and two d, which
    comes later."""
    plays = [ended("abcd"), ended("axbcde"), ended("abc"), ended("aye")]
    rule = SharedStates(width=3, count=9)
    assert list(rule.after_round(1, plays)) == [
        Fork(2, 2, "3 plays were here", play=0),
        Fork(2, 2, "2 plays were here", play=3),
        Fork(3, 2, "2 plays were here", play=0),
    ]
    assert list(SharedStates(count=1).after_round(1, plays)) == [Fork(2, 1, "3 plays were here", play=0)]
    full = [replace(play, room=0) if n in (0, 2) else play for n, play in enumerate(plays)]
    assert [(f.play, f.turn) for f in rule.after_round(1, full)] == [(1, 3), (3, 2), (1, 4)]
    assert rule.after_round(2, plays) == () == rule(plays[0])


UNSURE = [ended("abcd", 1.0), ended("axbce"), ended("abd", 0.0), ended("axce", 0.0)]


def test_uncertain_states_are_those_whose_returns_vary_most():
    """c was met by plays 0, 1 and 3, of which one was paid: 1/3 * 2/3. b by 0, 1 and 2: the same. d by 0 and 2:
    1/2 * 1/2. x by 1 and 3, and e by 1 and 3: 0."""
    forks = list(UncertainStates(count=9).after_round(1, UNSURE))
    assert forks == [
        Fork(2, 1, "variance 0.25 over 2 plays", play=2),
        Fork(1, 1, "variance 0.22 over 3 plays", play=0),
        Fork(2, 1, "variance 0.22 over 3 plays", play=0),
    ]
    rule = UncertainStates(rounds=3)
    assert [len(rule.after_round(number, UNSURE)) for number in (1, 3, 4)] == [1, 1, 0]
    assert list(UncertainStates().after_round(1, [ended("abc", 1.0), ended("abd", 1.0)])) == []
    assert rule(UNSURE[0]) == ()


def test_by_its_error_a_value_is_known_better_the_more_plays_there_are():
    """One paid of two: 1/4 / 2; of eight, four: 1/4 / 8."""
    few = [ended("ab", 1.0), ended("ab", 0.0)]
    many = [ended("ac", float(n % 2)) for n in range(8)]
    forks = list(UncertainStates(count=2, measure="error").after_round(1, [*many, *few]))
    assert [(f.play, f.reason) for f in forks] == [(8, "error 0.12 over 2 plays"), (0, "error 0.031 over 8 plays")]


def test_a_return_is_what_comes_after_the_state():
    """Both plays were paid 1 in all, but one of them before it came to b."""
    early = ended("axb")
    turns = early.trajectories["agent"].turns
    paid = replace(early.trajectories["agent"], turns=(replace(turns[0], reward=1.0), *turns[1:]))
    early = replace(early, trajectories={"agent": paid})
    assert list(UncertainStates().after_round(1, [early, ended("ab", 1.0)])) == [
        Fork(1, 1, "variance 0.25 over 2 plays", play=1)
    ]


def test_a_branch_counts_where_it_came_through_and_forks_in_its_own_turns_alone():
    """Play 1 left play 0 before turn 2, so that b and c, which both met, are of play 0; it was in d by itself."""
    plays = [ended("abc", 1.0, room=0), ended("abcd", 0.0, began=2, forks=1), ended("ad", 1.0, room=0)]
    assert [(f.play, f.turn) for f in UncertainStates(count=9).after_round(2, plays)] == [(1, 2), (1, 3)]
    shallow = [replace(plays[0], room=3), replace(plays[1], began=3), plays[2]]
    assert [(f.play, f.turn) for f in UncertainStates(count=9).after_round(2, shallow)] == [(0, 2), (1, 3)]
    full = [replace(play, room=0) if n == 0 else play for n, play in enumerate(shallow)]
    assert [(f.play, f.turn) for f in UncertainStates(count=9).after_round(2, full)] == [(1, 3)]


def told(*said: str | None, experts: tuple[str | None, ...], success: bool = False, began: int = 0) -> BranchPoint:
    """A play at its end that said this, None where it could not be read, and what the expert would have said."""

    def message(text: str | None) -> Message | None:
        return None if text is None else Message(Role.ASSISTANT, text)

    play = marked("s" * len(said), success=[len(said) - 1] if success else [])
    turns = [replace(turn, message=message(text)) for turn, text in zip(play.turns, said, strict=True)]
    made = point(replace(play, turns=tuple(turns)), over=True, began=began, forks=int(began > 0))
    return replace(made, experts=tuple(map(message, experts)))


@pytest.mark.parametrize(
    ("play", "action", "kind"),
    [
        (told("go left", "go up", "take key", experts=("go left", "go  up", "open door")), [2], [2]),
        (told("go left", "go up", "take key", experts=("go right", "go up", "open door")), [0, 2], [2]),
        (told("go left", None, "go up", experts=("go left", "go up", "go up")), [1], [1]),
        (told("go left", "go up", experts=(None, "go down")), [1], []),
        (told("go left", "go up", experts=("go right", "look"), began=1), [1], [1]),
        (told("go left", "go up", experts=("go right", "look"), success=True), [], []),
    ],
)
def test_expert_decisions_are_where_a_failed_play_did_something_else(play, action, kind):
    rule = ExpertDecisions(width=3, count=2, depth=2)
    assert list(rule(play)) == [Fork(turn, 2, "not as the expert") for turn in action]
    assert [fork.turn for fork in replace(rule, differs="kind")(play)] == kind
    assert [fork.turn for fork in replace(rule, count=1)(play)] == action[:1]
    assert rule(replace(play, over=False)) == rule(replace(play, forks=2)) == ()


def test_values_are_of_the_seat_that_acts():
    """The other seat's reward, at the end of play 0, is not of the state in which this one acts."""
    plays = [ended("ab"), ended("ab", 1.0)]
    agent = plays[0].trajectories["agent"]
    other = replace(agent, agent="other", turns=(replace(agent.turns[1], reward=9.0, state="b"),))
    plays[0] = replace(plays[0], trajectories={"agent": agent, "other": other}, actors=("agent", "agent", "other"))
    [fork] = UncertainStates(count=9).after_round(1, plays)
    assert fork.reason == f"variance {np.var([0, 1]):.2g} over 2 plays"


@pytest.mark.parametrize(
    ("rule", "ability"),
    [(ExpertDecisions(), "expert"), (SharedStates(), "state_key")],
    ids=["expert", "states"],
)
async def test_a_rule_whose_world_lacks_what_it_reads_is_refused(rule, ability):
    stage, slots = stage_of(components(Odd(mute=True)), "rl"), Slots(branching=rule)
    for groups in (slots, Purified(base=slots)):
        with pytest.raises(ConfigError, match=rf"{type(rule).__name__} forks plays of environments with {ability}\(\)"):
            await groups.check(stage)
    await Slots(branching=Uniform()).check(stage)
