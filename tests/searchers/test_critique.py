"""A search has the policy rank the actions that it found at a position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from made import chatml as renderer
from search_worlds import Draws, Family, played

from sojourn.config.registry import build
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.search_cost import spent_tokens
from sojourn.searchers.critique import Critique, ranked
from sojourn.searchers.mcts import MCTS, Bounds, Node
from sojourn.types import Sample, Stop, Versions


def encoded(text):
    return np.array([*renderer().codec.control(text)], dtype=np.int64)


@dataclass
class Ranks(Draws):
    """Draws digits, and answers a question for the best of some actions with the number of `favourite`."""

    favourite: str = "1"
    fails: bool = False

    async def sample(self, prompt, params):
        text = renderer().decode(prompt.tokens)
        if "compare what you could do" not in text:
            return await super().sample(prompt, params)
        if self.fails:
            raise InfrastructureError("the line is cut")
        actions = text.rpartition("next:\n")[2].partition("\nAnswer")[0].split("\n")
        answer = next((line.partition(".")[0] for line in actions if line.endswith(f". {self.favourite}")), "none")
        tokens = np.array([*encoded(answer), renderer().stops[0]])
        sample = Sample(tokens, np.zeros(len(tokens), np.float32), Versions(0, 0), Stop.END)
        self.asked.append((prompt.tokens.tobytes(), sample))
        return sample


@pytest.mark.parametrize(
    ("answer", "worths"),
    [
        ("3, 1, 2", [0.5, 0.0, 1.0]),
        ("2", [0.25, 1.0, 0.25]),  # the places 2 and 3 are shared
        ("2 2 7 0 1", [0.5, 1.0, 0.0]),
        ("I would rather not say.", [0.5, 0.5, 0.5]),
    ],
)
def test_places_become_worths(answer, worths):
    assert ranked(answer, 3) == worths


def test_q_is_mixed_with_the_rank_by_hand():
    search, bounds = MCTS(critique=Critique(alpha=0.75)), Bounds()
    bounds.include([-1.0, 3.0])
    child = Node(None, None, "agent", "", ranked=1.0, visits=2)  # type: ignore[arg-type]
    child.totals["agent"] = 0.0
    assert search._q(child, child, "agent", bounds) == pytest.approx(0.75 * 0.25 + 0.25 * 1.0)
    assert MCTS()._q(child, child, "agent", bounds) == pytest.approx(0.25)


@pytest.mark.parametrize("favourite", ["0", "1", "2"])
def test_what_the_policy_ranks_first_is_tried_more(favourite):
    agent = MCTS(width=12, simulations=12, c=0.5, critique=Critique(alpha=0.0))
    [trajectory] = played(Family("999"), agent, Ranks(favourite=favourite)).trajectories  # a secret that no play finds
    visits = {one.text: one.visits for one in trajectory.turns[0].considered if one.parent < 0}
    assert len(visits) == 3
    assert max(visits, key=lambda text: visits[text]) == favourite
    assert trajectory.turns[0].message.text == favourite


def test_questions_are_counted_and_stay_out_of_the_play():
    sampler = Ranks()
    [trajectory] = played(Family("999"), MCTS(simulations=6, critique=Critique()), sampler).trajectories
    assert spent_tokens(trajectory.turns) == sampler.tokens
    question = encoded("compare what you could do").tobytes()
    assert any(question in prompt for prompt, _ in sampler.asked)
    assert all(question not in trajectory.prompt(number).tobytes() for number in range(len(trajectory.turns)))


def test_a_question_that_fails_is_a_failure_of_the_search_alone():
    episode = played(Family("999"), MCTS(simulations=6, critique=Critique()), Ranks(fails=True))
    assert episode.error is None
    assert episode.trajectories[0].turns[0].info["search_failures"] > 0
    considered = episode.trajectories[0].turns[0].considered
    assert any(one.visits and not math.isnan(one.value) for one in considered)


def test_a_question_must_show_the_actions():
    with pytest.raises(ConfigError, match=r"does not show the actions: put \{actions\}"):
        build("agent", {"name": "mcts", "critique": {"question": "Which is best?"}})
    assert build("agent", {"name": "mcts", "critique": {"alpha": 0.3}}).value.critique == Critique(alpha=0.3)
