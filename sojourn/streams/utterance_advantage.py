"""What saying something is worth beside what the policy says there, by an off-policy critic of whole utterances."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import Learning, layers, scaled
from sojourn.streams.trainer_passes import at_last
from sojourn.types import FloatArray, Score, Trajectory

Share = Annotated[float, Range(0, 1)]


class Moves(NamedTuple):
    """What turns led from and to: hidden states before each, after it, and before the next; rewards; whether the world
    ended."""

    before: FloatArray  # (n, H)
    after: FloatArray  # (n, H)
    ahead: FloatArray  # (n, H), 0 where nothing follows
    reward: FloatArray  # (n,)
    done: FloatArray  # (n,)


class Heads(torch.nn.Module):
    """Two critics of states and of utterances, and copies of them that follow slowly."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.v = torch.nn.ModuleList(layers(size, width, 1) for _ in range(2))
        self.q = torch.nn.ModuleList(layers(size, width, 1) for _ in range(2))
        self.slow_v, self.slow_q = deepcopy(self.v).requires_grad_(False), deepcopy(self.q).requires_grad_(False)

    @torch.no_grad()
    def follow(self, share: float) -> None:
        for slow, fast in ((self.slow_v, self.v), (self.slow_q, self.q)):
            for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                one.lerp_(other, share)


@dataclass(frozen=True, kw_only=True)
class UtteranceAdvantage(Learning):
    """min(Q1, Q2) of each turn less min(V1, V2) of the state before it, at its last token, by critics that learn from
    all turns that are remembered, without drawing utterances anew (ArCHer: Zhou et al. 2024, arXiv:2402.19446).

    Q_k learns r + `discount` V_k(s') by slow copies of the critics, which move by `follow` at each update, and V_k the
    slow Q_k of the utterance that was played, by expectile regression (0.5: its mean). The paper draws a new utterance
    for each update of V; its offline code has the expectile form, with 0.9. Critics read the policy's last hidden
    states as they were when the turn was played, where the paper trains an encoder of text. `updates` on `batch`
    remembered turns follow each step, once the step was read; for the first `warmup` steps the advantage is 0.
    """

    discount: Share = 0.95
    follow: Annotated[float, Range(above=0, max=1)] = 0.1
    expectile: Annotated[float, Range(above=0, below=1)] = 0.5
    capacity: Annotated[int, Range(1)] = 10_000
    updates: Annotated[int, Range(1)] = 50
    batch: Annotated[int, Range(1)] = 256
    warmup: Annotated[int, Range(0)] = 5
    width: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    seed: Annotated[int, Range(0)] = 0
    _held: dict[str, Any] = field(default_factory=lambda: {"steps": 0}, init=False, repr=False, compare=False)

    provides: ClassVar[str] = "utterance_advantage"
    reference: ClassVar[bool] = False

    def build(self, size: int) -> torch.nn.Module:
        return Heads(size, self.width)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            at_last(group, [self._said(len(t.turns), s) for t, s in zip(group.trajectories, some, strict=True)])
            for group, some in zip(context.groups, await context.states(), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """`error` is the mean squared error of both Q on the step's turns, before they were learnt from."""
        new = [
            _moves(trajectory, states, score)
            for group, some, judged in zip(context.groups, await context.states(), context.scores, strict=True)
            for trajectory, states, score in zip(group.trajectories, some, judged, strict=True)
            if states.turns
        ]
        played = _joined(new) if new else None
        if played is None or not len(played.reward):
            return {}
        self._remember(played)
        with torch.no_grad():
            error = float(self._errors(played)[0]) / 2
        rng = np.random.default_rng((self.seed, self._held["steps"]))
        for _ in range(self.updates):
            drawn = rng.integers(0, len(self._held["moves"].reward), self.batch)
            q, v = self._errors(Moves(*(column[drawn] for column in self._held["moves"])))
            self.learner.descend(q + v)
            self.learner.net(played.before.shape[1]).follow(self.follow)
        self._held["steps"] += 1
        return {"error": error}

    def state(self) -> Mapping[str, Any]:
        moves = self._held.get("moves")
        kept = {} if moves is None else {"moves": dict(moves._asdict())}
        return {"critics": self.learner.state(), "steps": self._held["steps"], **kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.learner.restore(state["critics"])
        self._held["steps"] = state["steps"]
        if "moves" in state:
            self._held["moves"] = Moves(**state["moves"])

    def _errors(self, moves: Moves) -> tuple[torch.Tensor, torch.Tensor]:
        """Of Q and of V, each the sum over both critics of its mean."""
        before, after, ahead, reward, done = (torch.as_tensor(column) for column in moves)
        before, after, ahead = (scaled(rows) for rows in (before, after, ahead))
        net = self.learner.net(before.shape[1])
        q = v = torch.zeros(())
        for fast_q, fast_v, slow_q, slow_v in zip(net.q, net.v, net.slow_q, net.slow_v, strict=True):
            target = reward + self.discount * (1 - done) * slow_v(ahead)[:, 0]
            gap = slow_q(after)[:, 0] - fast_v(before)[:, 0]
            q = q + (fast_q(after)[:, 0] - target).square().mean()
            v = v + (2 * torch.where(gap > 0, self.expectile, 1 - self.expectile) * gap.square()).mean()
        return q, v

    def _remember(self, new: Moves) -> None:
        known = self._held.get("moves")
        both = new if known is None else _joined([known, new])
        self._held["moves"] = Moves(*(column[-self.capacity :] for column in both))

    @torch.no_grad()
    def _said(self, turns: int, states: TurnStates) -> list[float]:
        out = [0.0] * turns
        if not states.turns or self._held["steps"] < self.warmup:
            return out
        net = self.learner.net(states.after.shape[1])
        before, after = (scaled(torch.from_numpy(rows)) for rows in (states.before, states.after))
        q = torch.minimum(*(head(after)[:, 0] for head in net.q))
        v = torch.minimum(*(head(before)[:, 0] for head in net.v))
        for turn, gain in zip(states.turns, (q - v).tolist(), strict=True):
            out[turn] = gain
        return out


def _moves(trajectory: Trajectory, states: TurnStates, score: Score) -> Moves:
    """The turns of a trajectory; one that was cut off at its last turn leads nowhere that is known, so that is left
    out, and what a turn without tokens was paid goes to the one before it."""
    reward, at = (
        np.zeros(len(states.turns), dtype=np.float32),
        np.searchsorted(states.turns, range(len(score.turns)), "right"),
    )
    for place, paid in zip(at, score.turns, strict=True):
        reward[max(int(place) - 1, 0)] += paid
    done = np.zeros(len(reward), dtype=np.float32)
    done[-1] = 1
    ahead = np.concatenate([states.before[1:], np.zeros_like(states.before[:1])])
    kept = slice(0, len(reward) - trajectory.ending.truncated)
    return Moves(*(column[kept] for column in (states.before, states.after, ahead, reward, done)))


def _joined(moves: list[Moves]) -> Moves:
    return Moves(*(np.concatenate(columns) for columns in zip(*moves, strict=True)))
