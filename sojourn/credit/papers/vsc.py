"""Training on the turns that lead to the next subgoal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.credit import temporal
from sojourn.credit.relative import Values
from sojourn.types import Credit, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class VSC(temporal.CriticEstimator):
    """Advantage 1 for all tokens of a turn that brings its subgoal nearer than the critic expected, and 0 for other
    turns (subgoal-conditioned returns of VSC-RL: Wu et al. 2025, arXiv:2502.07949, by its code).

    A segment ends with a turn that reaches a subgoal: the number `info_key` of its `Turn.info` is above 0, or, with
    `cumulative`, where it counts the subgoals reached so far, above its earlier values. A last turn with a reward above
    0 ends a segment too. Turn j of L turns then has the return G = `discount`^(L-1-j), and turns after the last subgoal
    have 0. A turn is trained where V(s') - V(s) + r + G > `margin`, with r = 1 where the turn reached a subgoal; the
    critic, evaluated once per turn before its first token, has the target 1 where G > 0. Without `use_next_value` a
    turn is trained where G - V(s) > `margin`, and the critic's target is G.

    The world has to set the subgoals, show them and judge them; in the paper a VLM does. The paper has two critics
    trained by cross-entropy, of which the smaller value counts; they also learn a turn's own target at V(s'), and V(s')
    goes on beyond the end of the episode, where ours is 0. Not implemented: the choice of the best tenth of segments by
    a critic of segments, and the imitation of them, which in their code takes the place of the divergence from the
    reference policy: for that use the loss `kl`.
    """

    discount: Annotated[float, Range(above=0, max=1)] = 0.5
    margin: float = 0.05
    info_key: Annotated[str, NONBLANK] = "subgoal"
    cumulative: bool = False
    use_next_value: bool = True

    def _credit(
        self, trajectory: Trajectory, score: Score, values: temporal.PerTurn, next_values: temporal.PerTurn
    ) -> Credit:
        steps = temporal.turn_steps(score, values, temporal.bootstrap_value(trajectory, next_values), 1.0)
        reached = self._reached(trajectory, score)
        returns = self._returns(reached)
        gain = returns - steps.values - self.margin
        if self.use_next_value:
            gain += np.append(steps.values, steps.bootstrap)[1:] + reached
        targets = (returns > 0).astype(np.float64) if self.use_next_value else returns
        return Credit(Credit.per_turn(trajectory, gain > 0).tokens, temporal.at_first_token(trajectory, targets))

    def _reached(self, trajectory: Trajectory, score: Score) -> Values:
        """Returns 1 for the turns that end a segment with success, else 0: (T,)."""
        reached, highest = np.zeros(len(trajectory.turns)), 0.0
        for number, turn in enumerate(trajectory.turns):
            subgoals = turn.info.get(self.info_key, 0.0)
            reached[number] = subgoals > highest
            highest = max(highest, subgoals) if self.cumulative else 0.0
        if len(reached) and score.turns[-1] > 0:
            reached[-1] = 1
        return reached

    def _returns(self, reached: Values) -> Values:
        """Returns each turn's discounted distance to the end of its segment; 0 after the last: (T,)."""
        running, returns = 0.0, np.zeros(len(reached))
        for turn in reversed(range(len(returns))):
            running = returns[turn] = 1.0 if reached[turn] else self.discount * running
        return returns
