"""Shaping by how well the actions match the words of the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.learner import LearnedStream, hashed_counts, hashed_counts_so_far, layers
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import FloatArray, Trajectory


@dataclass(frozen=True, kw_only=True)
class Relatedness(LearnedStream):
    """Shaping reward discount phi_t - phi_(t-1) for each turn but the first, at its last token, where phi is a
    classifier's probability that the actions so far match the words of the task, minus the probability that they do not
    (LEARN: Goyal, Niekum and Mooney 2019, arXiv:1903.02020, section 4).

    Actions are read as hashed counts of their tokens and of pairs of them since the beginning, and so are the words.
    The classifier learns from the step's trajectories with a return above 0, after the stream was read: a segment of
    one matches its own task's words, and does not match those of another task, nor do another's actions match them. In
    the paper it learns before RL, from videos that people described. As there, phi is not a function of the state, and
    is not 0 at the end: the optimal policy may change.
    """

    discount: Annotated[float, Range(0, 1)] = 0.99
    features: Annotated[int, Range(1)] = 512
    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    epochs: Annotated[int, Range(1)] = 4
    seed: Annotated[int, Range(0)] = 0
    _memory: dict[str, int] = field(default_factory=lambda: {"steps": 0}, init=False, repr=False, compare=False)

    provides = "relatedness"
    reference = False

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [at_last_token(group, [self._shaping(t) for t in group.trajectories]) for group in context.groups]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Learns from the step; `error` is the cross-entropy in nats before the first update (chance has 0.69)."""
        rewarded = [
            trajectory
            for group, scores in zip(context.groups, context.scores, strict=True)
            for trajectory, score in zip(group.trajectories, scores, strict=True)
            if score.total > 0 and trajectory.turns
        ]
        rng = np.random.default_rng((self.seed, self._memory["steps"]))
        self._memory["steps"] += 1
        rows, labels = self._examples(rewarded, rng)
        if not len(rows):
            return {}
        targets = torch.tensor(labels)
        errors = [
            self.learner.update(torch.nn.functional.binary_cross_entropy_with_logits(self._logits(rows), targets))
            for _ in range(self.epochs)
        ]
        return {"error": errors[0]}

    def state(self) -> Mapping[str, Any]:
        return {"classifier": self.learner.state(), **self._memory}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.learner.restore(state["classifier"])
        self._memory["steps"] = state["steps"]

    def _examples(self, trajectories: Sequence[Trajectory], rng: Any) -> tuple[FloatArray, list[float]]:
        """Returns rows and labels: a segment of each trajectory with its own words, and one with another's words or
        another's actions. Trajectories are left out where all words are the same, as there is nothing to
        distinguish."""
        words = [_words(t) for t in trajectories]
        pairs: list[tuple[list[int], list[int], float]] = []
        for number, trajectory in enumerate(trajectories):
            others = [n for n, other in enumerate(words) if other != words[number]]
            if not others:
                continue
            actions, other = _random_segment(trajectory, rng), int(rng.choice(others))
            pairs.append((actions, words[number], 1.0))
            swap_words = rng.random() < 0.5
            wrong = (
                (actions, words[other]) if swap_words else (_random_segment(trajectories[other], rng), words[number])
            )
            pairs.append((*wrong, 0.0))
        return self._rows([a for a, _, _ in pairs], [w for _, w, _ in pairs]), [label for *_, label in pairs]

    def _rows(self, actions: Sequence[list[int]], words: Sequence[list[int]]) -> FloatArray:
        return np.concatenate([hashed_counts(actions, self.features), hashed_counts(words, self.features)], 1)

    def _logits(self, rows: FloatArray) -> torch.Tensor:
        return self.learner.net(rows.shape[1])(torch.from_numpy(rows))[:, 0]

    @torch.no_grad()
    def _shaping(self, trajectory: Trajectory) -> list[float]:
        if not trajectory.turns:
            return []
        actions = hashed_counts_so_far([turn.sample.tokens.tolist() for turn in trajectory.turns], self.features)
        words = hashed_counts([_words(trajectory)], self.features).repeat(len(actions), 0)
        logits = self._logits(np.concatenate([actions, words], 1))
        phi = torch.tanh(logits / 2).tolist()  # p - (1 - p), where p is the sigmoid of the logit
        return [0.0, *(self.discount * now - before for before, now in pairwise(phi))]


def _words(trajectory: Trajectory) -> list[int]:
    """Returns the tokens that the seat saw before its first action, which include the task."""
    return trajectory.turns[0].context.tolist()


def _random_segment(trajectory: Trajectory, rng: Any) -> list[int]:
    """Returns the tokens of a random run of consecutive actions."""
    first, last = sorted(rng.integers(0, len(trajectory.turns), 2).tolist())
    return [token for turn in trajectory.turns[first : last + 1] for token in turn.sample.tokens.tolist()]
