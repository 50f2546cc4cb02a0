"""Turns that lead to the next subgoal, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.registry import SOME, Range
from sojourn.credit import temporal
from sojourn.credit.relative import Values
from sojourn.types import Credit, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class VSC(temporal.ByCritic):
    """1 for all tokens of a turn that brings its subgoal nearer than the critic foresaw, 0 for other turns
    (subgoal-conditioned returns of VSC-RL: Wu et al. 2025, arXiv:2502.07949, by its code).

    A segment ends with a turn that reaches a subgoal, whose number `by` in `Turn.info` is above 0, or with `counted`
    above those before, where it counts the subgoals so far; and with a last turn that is paid. Turn j of L has then the
    return G = `discount`^(L-1-j), and the turns after the last subgoal 0. A turn is trained where V(s') - V(s) + r + G
    > `margin`, r being 1 where it reached a subgoal; the critic, asked once a turn before its first token, learns 1
    where G > 0. Without `ahead` it is where G - V(s) > `margin`, and the critic learns G.

    The subgoals are the world's to set, to show and to judge; in the paper a VLM does. Theirs are two critics trained
    by cross-entropy, of which the lesser counts; they learn a turn's own answer at V(s') too, and V(s') goes on beyond
    the end of the world, where ours is 0. Not here: their choice of the tenth of segments that did best beside a critic
    of segments, and the imitation of them, which in their code stands for the divergence from the reference policy:
    that is the loss `kl`.
    """

    discount: Annotated[float, Range(above=0, max=1)] = 0.5
    margin: float = 0.05
    by: Annotated[str, SOME] = "subgoal"
    counted: bool = False
    ahead: bool = True

    def _one(
        self, trajectory: Trajectory, score: Score, values: temporal.PerTurn, following: temporal.PerTurn
    ) -> Credit:
        path = temporal.by_turn(score, values, temporal.after(trajectory, following), 1.0)
        reached = self._reached(trajectory, score)
        returns = self._returns(reached)
        gain = returns - path.values - self.margin
        if self.ahead:
            gain += np.append(path.values, path.after)[1:] + reached
        learnt = (returns > 0).astype(np.float64) if self.ahead else returns
        return Credit(Credit.per_turn(trajectory, gain > 0).tokens, temporal.at_first(trajectory, learnt))

    def _reached(self, trajectory: Trajectory, score: Score) -> Values:
        """1 for turns that end a segment well: (T,)."""
        reached, known = np.zeros(len(trajectory.turns)), 0.0
        for number, turn in enumerate(trajectory.turns):
            told = turn.info.get(self.by, 0.0)
            reached[number] = told > known
            known = max(known, told) if self.counted else 0.0
        if len(reached) and score.turns[-1] > 0:
            reached[-1] = 1
        return reached

    def _returns(self, reached: Values) -> Values:
        going, out = 0.0, np.zeros(len(reached))
        for turn in reversed(range(len(out))):
            going = out[turn] = 1.0 if reached[turn] else self.discount * going
        return out
