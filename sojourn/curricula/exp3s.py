"""A bandit whose arms are tags or worlds, and whose reward is how much faster or better each is solved than before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from sojourn.config.fields import NONBLANK, Kind, Range
from sojourn.curricula.by_label import members, shared
from sojourn.curricula.learnability import Learnability
from sojourn.curricula.task_history import Array
from sojourn.curricula.weighted import WeighsSplit, WeightedCurriculum, require_weighs
from sojourn.types import Group, IntArray, Score, Task

MAX_REWARDS = 1024  # of the newest rounds, by whose quantiles rewards are scaled


@dataclass(frozen=True, kw_only=True)
class Exp3S:
    """Treats tags ("tag"), worlds ("world") or the values of a key of the tasks' data, which `by` says, as the arms of
    the bandit Exp3.S, whose reward is learning progress (Graves et al. 2017, arXiv:1704.03003).

    An arm that was played in a step is a round of the bandit, in the order of the arms. Its progress is the mean reward
    of its episodes less that of the last step in which it was played, divided by the tokens of an episode where
    `per_token` is set, as the authors divide by time. Progress is mapped to -1 to 1 between the 20% and the 80%
    quantile of the last 1,024 rounds. In round t the arm's logarithmic weight grows by `eta` times this over its share
    of the draws, that of every arm by `eta` times `beta` over its own, and then every weight becomes 1 - 1/t of itself
    plus 1/t of the mean of the others, so that no arm is forgotten. An arm's share is its part of all weights, mixed
    with `epsilon` of a uniform distribution. The tasks of an arm share it as `base` weighs them; the split, the pool
    and the uniform fraction are those of `base`.

    It differs in that progress is that of the reward, where the authors measure a loss before and after an update on
    the same sample; in that a step plays several arms; in that rounds begin at t = 2, as the first would give all that
    an arm earned to the others; and in that `eta` is larger, as runs have fewer rounds. A base with memory of its own,
    it cannot be the base of another curriculum.
    """

    unverified: ClassVar[str] = "the paper's abstract, its introduction, and two codes of Exp3.S by others"

    base: Annotated[WeighsSplit, Kind("curriculum")] = field(default_factory=Learnability)
    by: Annotated[str, NONBLANK] = "tag"
    eta: Annotated[float, Range(above=0)] = 0.05
    beta: Annotated[float, Range(0)] = 0.0
    epsilon: Annotated[float, Range(0, 1)] = 0.05
    per_token: bool = False

    def __post_init__(self) -> None:
        require_weighs(self.base)

    @property
    def split(self) -> str:
        return self.base.split

    def bind(self, tasks: Sequence[Task], seed: int) -> Exp3SCurriculum:
        return Exp3SCurriculum(self.base, tasks, seed, bandit=self)


@dataclass
class Arms:
    """The state of the bandit: the logarithmic weight of each arm, and the mean reward in the last step that played it,
    NaN where none did, (k,) each; the number of the next round, and the progress of those before."""

    weights: Array
    last: Array
    round: int = 2
    progress: list[float] = field(default_factory=list)

    def shares(self, epsilon: float) -> Array:
        """Returns each arm's share of the draws: (k,)."""
        part = np.exp(self.weights - self.weights.max())
        return (1 - epsilon) * part / part.sum() + epsilon / len(part)

    def play(self, arm: int, progress: float, shares: Array, config: Exp3S) -> None:
        """Adds a round in which an arm made progress, when these were the shares of the draws."""
        self.progress = [*self.progress, progress][-MAX_REWARDS:]
        earned = np.full(len(self.weights), config.beta)
        earned[arm] += self._scaled(progress)
        grown = self.weights + config.eta * earned / shares
        if len(grown) > 1:
            top, alpha = grown.max(), 1 / self.round
            part = np.exp(grown - top)
            others = (part.sum() - part) / (len(part) - 1)
            grown = top + np.log((1 - alpha) * part + alpha * others)
        self.weights, self.round = grown - grown.max(), self.round + 1

    def _scaled(self, progress: float) -> float:
        low, high = np.quantile(self.progress, [0.2, 0.8])
        scaled = 2 * (progress - low) / (high - low) - 1 if high > low else np.sign(progress - low)
        return float(np.clip(scaled, -1, 1))


@dataclass
class Exp3SCurriculum(WeightedCurriculum):
    """Draws tasks by the shares of the bandit's arms, and inside each by the base."""

    bandit: Exp3S = field(kw_only=True)
    arms: Arms = field(init=False)

    def __post_init__(self) -> None:
        self.arms = Arms(np.zeros(0), np.zeros(0))
        super().__post_init__()

    @cached_property
    def groups(self) -> dict[str, IntArray]:
        """Returns the numbers of the tasks of each arm."""
        return members(self.history, self.bandit.by)

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        shares = self.arms.shares(self.bandit.epsilon)
        for arm, (reward, tokens) in self._rewards(groups, scores).items():
            if np.isfinite(self.arms.last[arm]):
                progress = (reward - float(self.arms.last[arm])) / (tokens if self.bandit.per_token else 1.0)
                self.arms.play(arm, progress, shares, self.bandit)
            self.arms.last[arm] = reward
        super().observe(groups, scores)

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "arms": vars(self.arms)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        arms = state["arms"]
        self.arms = Arms(np.array(arms["weights"]), np.array(arms["last"]), arms["round"], list(arms["progress"]))

    def _rewards(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> dict[int, tuple[float, float]]:
        """Returns, for each arm that was played, the mean reward and the mean number of tokens of its episodes."""
        found: dict[int, list[tuple[float, float, float]]] = {}
        for index, result in self.history.outcomes(groups, scores):
            for arm in self._arms_of(index):
                values = (result.episodes, result.episodes * result.reward, result.tokens)
                found.setdefault(arm, []).append(values)
        totals = {arm: np.sum(found[arm], axis=0) for arm in sorted(found)}
        return {arm: (float(r / n), max(float(t / n), 1.0)) for arm, (n, r, t) in totals.items()}

    def _arms_of(self, index: int) -> list[int]:
        return [arm for arm, tasks in enumerate(self.groups.values()) if index in tasks]

    def _weights(self) -> Array:
        if not len(self.arms.weights):
            self.arms = Arms(np.zeros(len(self.groups)), np.full(len(self.groups), np.nan))
        return shared(self.history, self.config, self.groups, self.arms.shares(self.bandit.epsilon).tolist())
