"""Agents that go on from what failed, and that make actions of actions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from made import chatml as renderer
from search_worlds import Draws, Family, ForkableDigits, played

from sojourn.agents.plain import Plain
from sojourn.config.registry import build
from sojourn.credit.papers.dyna_grpo import DynaGRPO
from sojourn.errors import ConfigError
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import score_group
from sojourn.search_cost import spent_tokens
from sojourn.searchers.sim_rollout import SimRollout
from sojourn.searchers.thought_graph import ThoughtGraph
from sojourn.searchers.tree_of_code import TreeOfCode
from sojourn.sources.searched import Searched
from sojourn.types import Group, Message, Observation, Role, Sample, Stop, Versions


@dataclass
class Told(Draws):
    """Answers prompts that hold a text as it is told, each time with the next of the answers, and else draws."""

    answers: dict[str, list[str]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    async def sample(self, prompt, params):
        text = renderer().decode(prompt.tokens)
        last = text.rpartition("user\n")[2]
        told = next((answers for key, answers in self.answers.items() if key in last and answers), None)
        if told is None:
            return await super().sample(prompt, params)
        self.said.append(last)
        answer = told.pop(0)
        tokens = np.array([*renderer().codec.control(answer), renderer().stops[0]])
        sample = Sample(tokens, np.zeros(len(tokens), np.float32), Versions(0, 0), Stop.END)
        self.asked.append((prompt.tokens.tobytes(), sample))
        return sample


# Programs that grow until they run.


def test_the_action_that_most_samples_are_is_taken_of_those_that_went_well():
    sampler = Draws(("9", "9", "9", "1", "1", "2"))  # "9" is refused
    [trajectory] = played(Family(), TreeOfCode(width=24, depth=1), sampler).trajectories
    assert [turn.message.text for turn in trajectory.turns] == ["1", "1", "1"]
    tried = {one.text: (one.value, one.visits) for one in trajectory.turns[0].considered}
    assert tried["9"][0] == 0.0
    assert tried["9"][1] > tried["1"][1] > tried["2"][1] > 0


def test_actions_that_come_to_the_same_vote_together():
    class Parity(ForkableDigits):
        def _shown(self):
            return Observation((Message(Role.USER, f"{len(self.said)} {int(self.said or '0') % 2}"),))

    sampler = Draws(("0", "2", "4", "1", "1"))  # 3 of 5 are even, but no even one is said as often as "1"
    [trajectory] = played(Family(kind=Parity), TreeOfCode(width=60, depth=1), sampler).trajectories
    votes = {one.text: one.visits for one in trajectory.turns[0].considered}
    assert max(votes, key=lambda text: votes[text]) == "1"
    assert trajectory.turns[0].message.text in {"0", "2", "4"}


def test_what_failed_grows_and_the_way_that_went_well_is_followed_with_its_failure():
    answers = {"there is no nine": ["1"] * 9}
    family = Family("100")
    [trajectory] = played(family, TreeOfCode(width=2, depth=2), Told(("9",), answers=answers)).trajectories
    assert [turn.message.text for turn in trajectory.turns[:2]] == ["9", "1"]
    first = trajectory.turns[0].considered
    assert [(one.parent, one.text, one.value) for one in first] == [(-1, "9", 0.0), (0, "1", 1.0)]
    assert [bool(turn.considered) for turn in trajectory.turns[:3]] == [True, False, True]


def test_where_all_goes_wrong_the_policy_acts_alone():
    [trajectory] = played(Family(), TreeOfCode(width=2, depth=3), Draws(("9",))).trajectories
    assert {turn.message.text for turn in trajectory.turns} == {"9"}
    assert not any("planned" in turn.info for turn in trajectory.turns)


# Actions made of actions.


def thought(*operations, secret="2", texts=("0",), **made):
    answers = {"Say what comes next": list(operations), **{key: list(value) for key, value in made.items()}}
    named = {"better": "Say a better action", "one": "the best of them"}
    sampler = Told(texts, answers={named.get(key, key): value for key, value in answers.items()})
    agent = ThoughtGraph(width=1, rollouts=1, operations=3, enough=9.0)
    [trajectory] = played(Family(secret), agent, sampler).trajectories
    return trajectory, sampler


def test_a_better_form_of_an_action_is_tried_and_taken():
    trajectory, sampler = thought("refine 1", "stop", better=["2"])
    assert [(one.text, one.value) for one in trajectory.turns[0].considered] == [("0", 0.0), ("2", 1.0)]
    assert trajectory.success
    assert "was worth 0.00:\n0\n" in sampler.said[1]
    assert "1. 0 (0.00)\n2. 2 (1.00)" in sampler.said[2]
    assert trajectory.turns[0].sample.versions.oldest == -1  # nothing that could be trained


def test_two_actions_are_combined():
    trajectory, sampler = thought("refine 1", "combine 2 1", "stop", better=["1"], one=["2"])
    assert [one.text for one in trajectory.turns[0].considered] == ["0", "1", "2"]
    assert "copy of the world:\n1\n0\n" in sampler.said[3]
    assert trajectory.success


@pytest.mark.parametrize("answer", ["I do not know", "refine", "refine 7", "combine 1", "new"])
def test_what_names_no_operation_asks_for_a_new_action(answer):
    trajectory, _ = thought(answer, "stop", texts=("0", "1", "2"))
    assert len(trajectory.turns[0].considered) in (1, 2)  # the new one may be the same again
    assert trajectory.turns[0].sample.versions.oldest >= 0


def test_no_more_operations_are_asked_for_than_there_may_be():
    trajectory, sampler = thought(*["refine 1"] * 9, better=["1", "1", "1"])
    assert sum("Say what comes next" in said for said in sampler.said) == 3
    assert [one.text for one in trajectory.turns[0].considered] == ["0", "1"]  # what there is counts once


def test_questions_count_as_tokens_of_the_search():
    trajectory, sampler = thought("refine 1", "combine 1 2", "stop", better=["1"], one=["2"])
    assert spent_tokens(trajectory.turns) == sampler.tokens


def test_what_was_made_of_other_actions_is_not_trained():
    with pytest.raises((ConfigError, ValueError), match="tries actions that no model sampled, which cannot be trained"):
        Searched(agent=ThoughtGraph())


# What would really happen is shown before the policy acts.

HAPPENS = "what would really happen"


def test_the_policy_sees_what_its_next_turns_lead_to_and_may_do_something_else():
    sampler = Told(("1",), answers={HAPPENS: ["2", "1"]})
    [trajectory] = played(Family("211"), SimRollout(turns=2), sampler).trajectories
    assert [turn.message.text for turn in trajectory.turns] == ["2", "1", "1"]
    assert [turn.info.get("refined") for turn in trajectory.turns] == [1.0, None, None]
    assert trajectory.success
    assert "1. 1\n   shows: said 1\n2. 1\n   shows: said 11\nSay what" in sampler.said[0]
    assert "1. 1\n   shows: said 21\n2. 1\n   ends the episode\nSay what" in sampler.said[1]
    assert HAPPENS not in renderer().decode(trajectory.prompt(2)), "it is no part of the play"
    assert spent_tokens(trajectory.turns) == sampler.tokens
    assert [one.text for one in trajectory.turns[0].considered] == ["1"]


def test_simulations_go_on_for_as_many_rounds_as_something_else_is_said():
    sampler = Told(("1",), answers={HAPPENS: ["2", "3", "3", "1"]})
    [trajectory] = played(Family("300"), SimRollout(turns=1, rounds=5), sampler).trajectories
    assert trajectory.turns[0].message.text == "3"
    assert [one.text for one in trajectory.turns[0].considered] == ["1", "2", "3"]
    assert len(sampler.said) >= 3
    assert "1. 2\n   shows: said 2" in sampler.said[1]


def test_where_a_simulation_fails_the_policy_acts():
    [trajectory] = played(Family(breaks=True), SimRollout(), Told(("1",))).trajectories
    assert [turn.message.text for turn in trajectory.turns] == ["1", "1", "1"]
    assert not any("refined" in turn.info for turn in trajectory.turns)


def test_refined_plays_are_credited_as_such():
    """Of four plays, two are refined, of which one succeeds: it is above the means of both kinds."""
    refined = [
        played(Family("211"), SimRollout(), Told(("1",), answers={HAPPENS: [first, "1", "1"]})) for first in ("2", "0")
    ]
    plain = [played(Family("211"), Plain(), Told((digit,))) for digit in "01"]
    group = Group(0, refined[0].task, (*refined, *plain))
    scores = asyncio.run(score_group(Native(), group))
    [credits] = DynaGRPO()([group], [scores], {})
    assert [float(np.concatenate(credit.tokens).max()) for credit in credits] == [1.0, 0.0, 0.0, 0.0]


def test_a_question_without_the_turns_is_refused():
    with pytest.raises(ConfigError, match=r"does not show the turns: put \{simulated\} where"):
        build("agent", {"name": "sim_rollout", "question": "What now?"}, "agent")
