"""Utterance-level advantages by an off-policy critic."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import LearnedStream, layers, normalised
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import FloatArray, Score, Trajectory

Fraction = Annotated[float, Range(0, 1)]


class Transitions(NamedTuple):
    """Turns as transitions: hidden states before and after each turn and before the next one, rewards, and ends.

    Checkpoints hold the names of these fields.
    """

    before: FloatArray  # (n, H)
    after: FloatArray  # (n, H)
    ahead: FloatArray  # (n, H) before the next turn, 0 where nothing follows
    reward: FloatArray  # (n,)
    done: FloatArray  # (n,)


class Critics(torch.nn.Module):
    """Two critics of states (V) and two of utterances (Q), with slow copies of them as target networks."""

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__()
        self.v = torch.nn.ModuleList(layers(size, hidden_size, 1) for _ in range(2))
        self.q = torch.nn.ModuleList(layers(size, hidden_size, 1) for _ in range(2))
        self.slow_v, self.slow_q = deepcopy(self.v).requires_grad_(False), deepcopy(self.q).requires_grad_(False)

    @torch.no_grad()
    def update_targets(self, rate: float) -> None:
        for slow, fast in ((self.slow_v, self.v), (self.slow_q, self.q)):
            for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                one.lerp_(other, rate)


@dataclass(frozen=True, kw_only=True)
class UtteranceAdvantage(LearnedStream):
    """Advantage of each turn, min(Q1, Q2) of the utterance minus min(V1, V2) of the state before it, at the turn's last
    token, by critics that learn from a replay buffer, without sampling new utterances (ArCHer: Zhou et al. 2024,
    arXiv:2402.19446).

    The target of Q_k is r + `discount` V_k(s') by target networks, which move towards the critics by
    `target_update_rate` at each update; that of V_k is the target network's Q_k of the utterance that was played, by
    expectile regression (0.5: the mean). The paper samples a new utterance for each update of V; its offline code has
    the expectile form, with 0.9. The critics read the policy's last hidden states from when the turn was played, where
    the paper trains a text encoder. After each step, once the stream was read, come `updates` updates on `batch_size`
    turns from the buffer, which holds the last `capacity` turns; in the first `warmup` steps the advantage is 0.
    """

    discount: Fraction = 0.95
    target_update_rate: Annotated[float, Range(above=0, max=1)] = 0.1
    expectile: Annotated[float, Range(above=0, below=1)] = 0.5
    capacity: Annotated[int, Range(1)] = 10_000
    updates: Annotated[int, Range(1)] = 50
    batch_size: Annotated[int, Range(1)] = 256
    warmup: Annotated[int, Range(0)] = 5
    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    seed: Annotated[int, Range(0)] = 0
    _memory: dict[str, Any] = field(default_factory=lambda: {"steps": 0}, init=False, repr=False, compare=False)

    provides = "utterance_advantage"
    reference = False

    def build(self, size: int) -> torch.nn.Module:
        return Critics(size, self.hidden_size)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            at_last_token(
                group, [self._advantages(len(t.turns), s) for t, s in zip(group.trajectories, states, strict=True)]
            )
            for group, states in zip(context.groups, await context.states(), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Learns from the buffer; `error` is the mean squared error of Q1 and Q2 on the step before the updates."""
        new = [
            _transitions(trajectory, states, score)
            for group, of_group, judged in zip(context.groups, await context.states(), context.scores, strict=True)
            for trajectory, states, score in zip(group.trajectories, of_group, judged, strict=True)
            if states.turns
        ]
        played = _concatenated(new) if new else None
        if played is None or not len(played.reward):
            return {}
        self._remember(played)
        with torch.no_grad():
            error = float(self._errors(played)[0]) / 2
        rng = np.random.default_rng((self.seed, self._memory["steps"]))
        for _ in range(self.updates):
            chosen = rng.integers(0, len(self._memory["moves"].reward), self.batch_size)
            q, v = self._errors(Transitions(*(column[chosen] for column in self._memory["moves"])))
            self.learner.update(q + v)
            self.learner.net(played.before.shape[1]).update_targets(self.target_update_rate)
        self._memory["steps"] += 1
        return {"error": error}

    def state(self) -> Mapping[str, Any]:
        transitions = self._memory.get("moves")
        kept = {} if transitions is None else {"moves": dict(transitions._asdict())}
        return {"critics": self.learner.state(), "steps": self._memory["steps"], **kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.learner.restore(state["critics"])
        self._memory["steps"] = state["steps"]
        if "moves" in state:
            self._memory["moves"] = Transitions(**state["moves"])

    def _errors(self, transitions: Transitions) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the mean losses of Q and of V, each summed over both critics."""
        before, after, ahead, reward, done = (torch.as_tensor(column) for column in transitions)
        before, after, ahead = (normalised(rows) for rows in (before, after, ahead))
        net = self.learner.net(before.shape[1])
        q = v = torch.zeros(())
        for fast_q, fast_v, slow_q, slow_v in zip(net.q, net.v, net.slow_q, net.slow_v, strict=True):
            target = reward + self.discount * (1 - done) * slow_v(ahead)[:, 0]
            gap = slow_q(after)[:, 0] - fast_v(before)[:, 0]
            q = q + (fast_q(after)[:, 0] - target).square().mean()
            v = v + (2 * torch.where(gap > 0, self.expectile, 1 - self.expectile) * gap.square()).mean()
        return q, v

    def _remember(self, new: Transitions) -> None:
        known = self._memory.get("moves")
        both = new if known is None else _concatenated([known, new])
        self._memory["moves"] = Transitions(*(column[-self.capacity :] for column in both))

    @torch.no_grad()
    def _advantages(self, turns: int, states: TurnStates) -> list[float]:
        out = [0.0] * turns
        if not states.turns or self._memory["steps"] < self.warmup:
            return out
        net = self.learner.net(states.after.shape[1])
        before, after = (normalised(torch.from_numpy(rows)) for rows in (states.before, states.after))
        q = torch.minimum(*(head(after)[:, 0] for head in net.q))
        v = torch.minimum(*(head(before)[:, 0] for head in net.v))
        for turn, gain in zip(states.turns, (q - v).tolist(), strict=True):
            out[turn] = gain
        return out


def _transitions(trajectory: Trajectory, states: TurnStates, score: Score) -> Transitions:
    """Returns the turns of a trajectory that have tokens as transitions.

    The last turn of a truncated trajectory is left out, as the state after it is unknown; the reward of a turn without
    tokens goes to the turn before it.
    """
    reward, at = (
        np.zeros(len(states.turns), dtype=np.float32),
        np.searchsorted(states.turns, range(len(score.turns)), "right"),
    )
    for index, turn_reward in zip(at, score.turns, strict=True):
        reward[max(int(index) - 1, 0)] += turn_reward
    done = np.zeros(len(reward), dtype=np.float32)
    done[-1] = 1
    ahead = np.concatenate([states.before[1:], np.zeros_like(states.before[:1])])
    kept = slice(0, len(reward) - trajectory.ending.truncated)
    return Transitions(*(column[kept] for column in (states.before, states.after, ahead, reward, done)))


def _concatenated(transitions: list[Transitions]) -> Transitions:
    return Transitions(*(np.concatenate(columns) for columns in zip(*transitions, strict=True)))
