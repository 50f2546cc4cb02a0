"""Shaping by how much what was done looks like what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import add
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.learner import Learning, hashed, layers
from sojourn.streams.trainer_passes import at_last
from sojourn.types import FloatArray, Trajectory


@dataclass(frozen=True, kw_only=True)
class Relatedness(Learning):
    """discount phi_t - phi_(t-1) for each turn but the first, at its last token, where phi is how much more likely than
    not the actions so far go with the words of the task, by a classifier (LEARN: Goyal, Niekum and Mooney 2019,
    arXiv:1903.02020, section 4).

    Actions are read as how often each of their tokens, and pairs of them, was said since the beginning, words likewise,
    by hashes. The classifier learns from the step's trajectories that were rewarded, after the step was read: a stretch
    of one goes with its task's words; with those of another task, or with the actions of another, it does not. In the
    paper it learns before RL, from videos that people described. As there, phi is not a function of the state, and is
    not 0 at the end: what is best may change.
    """

    discount: Annotated[float, Range(0, 1)] = 0.99
    features: Annotated[int, Range(1)] = 512
    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    epochs: Annotated[int, Range(1)] = 4
    seed: Annotated[int, Range(0)] = 0
    _held: dict[str, int] = field(default_factory=lambda: {"steps": 0}, init=False, repr=False, compare=False)

    provides: ClassVar[str] = "relatedness"
    reference: ClassVar[bool] = False

    def build(self, size: int) -> torch.nn.Module:
        return layers(size, self.hidden_size, self.hidden_size, 1)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [at_last(group, [self._shaped(t) for t in group.trajectories]) for group in context.groups]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """`error` is the cross-entropy on the step in nats, before it was learnt from; a guess has 0.69."""
        good = [
            trajectory
            for group, judged in zip(context.groups, context.scores, strict=True)
            for trajectory, score in zip(group.trajectories, judged, strict=True)
            if score.total > 0 and trajectory.turns
        ]
        rng = np.random.default_rng((self.seed, self._held["steps"]))
        self._held["steps"] += 1
        rows, labels = self._examples(good, rng)
        if not len(rows):
            return {}
        wanted = torch.tensor(labels)
        errors = [
            self.learner.descend(torch.nn.functional.binary_cross_entropy_with_logits(self._logits(rows), wanted))
            for _ in range(self.epochs)
        ]
        return {"error": errors[0]}

    def state(self) -> Mapping[str, Any]:
        return {"classifier": self.learner.state(), **self._held}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.learner.restore(state["classifier"])
        self._held["steps"] = state["steps"]

    def _examples(self, good: Sequence[Trajectory], rng: Any) -> tuple[FloatArray, list[float]]:
        """A stretch of each with its own words, and with another's words or another's actions; where all words are the
        same there is nothing to tell apart."""
        words = [_words(t) for t in good]
        pairs: list[tuple[list[int], list[int], float]] = []
        for number, trajectory in enumerate(good):
            others = [n for n, other in enumerate(words) if other != words[number]]
            if not others:
                continue
            one, other = _stretch(trajectory, rng), int(rng.choice(others))
            pairs.append((one, words[number], 1.0))
            wrong = (one, words[other]) if rng.random() < 0.5 else (_stretch(good[other], rng), words[number])
            pairs.append((*wrong, 0.0))
        return self._rows([a for a, _, _ in pairs], [w for _, w, _ in pairs]), [label for *_, label in pairs]

    def _rows(self, actions: Sequence[list[int]], words: Sequence[list[int]]) -> FloatArray:
        return np.concatenate([hashed(actions, self.features), hashed(words, self.features)], 1)

    def _logits(self, rows: FloatArray) -> torch.Tensor:
        return self.learner.net(rows.shape[1])(torch.from_numpy(rows))[:, 0]

    @torch.no_grad()
    def _shaped(self, trajectory: Trajectory) -> list[float]:
        if not trajectory.turns:
            return []
        said = [turn.sample.tokens.tolist() for turn in trajectory.turns]
        actions = list(accumulate(said, add))
        logits = self._logits(self._rows(actions, [_words(trajectory)] * len(said)))
        phi = torch.tanh(logits / 2).tolist()  # how much more likely than not
        return [0.0, *(self.discount * now - before for before, now in pairwise(phi))]


def _words(trajectory: Trajectory) -> list[int]:
    """What the seat was told before its first action, the task among it."""
    return trajectory.turns[0].context.tolist()


def _stretch(trajectory: Trajectory, rng: Any) -> list[int]:
    """The actions of some turns in a row, at random."""
    first, last = sorted(rng.integers(0, len(trajectory.turns), 2).tolist())
    return [token for turn in trajectory.turns[first : last + 1] for token in turn.sample.tokens.tolist()]
