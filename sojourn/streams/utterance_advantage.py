"""Utterance-level advantages by an off-policy critic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.errors import ConfigError
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import LearnedStream, layers, normalised
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import FloatArray, Group, Score, Trajectory

CANDIDATES = "candidates"  # the origin of groups of actions at one state
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


class Choice(NamedTuple):
    """Hidden states after different actions at one state, and the number of the one that was recorded."""

    actions: FloatArray  # (n, H)
    recorded: int


class Critics(torch.nn.Module):
    """Holds `count` critics of states (V) and as many of utterances (Q), with slow copies as target networks."""

    def __init__(self, size: int, hidden_size: int, count: int) -> None:
        super().__init__()
        self.v = torch.nn.ModuleList(layers(size, hidden_size, 1) for _ in range(count))
        self.q = torch.nn.ModuleList(layers(size, hidden_size, 1) for _ in range(count))
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
    the paper trains a text encoder; with `features` = "start" they are those of the policy as the stage began, so that
    critics that are frozen go on to judge the same features while the policy changes. After each step, once the stream
    was read, come `updates` updates on `batch_size` turns from the buffer, which holds the last `capacity` turns; in
    the first `warmup` steps the advantage is 0. With `discount` 0, Q learns each turn's own reward.

    More than two `critics` are an ensemble, whose members differ by their initial weights and learn each from its own
    targets. With `pessimism` "deviation", the value of an utterance and that of a state are the mean of the critics
    minus `deviations` times their standard deviation, in place of their minimum (the two objectives of RO2O: Wen et al.
    2023, arXiv:2309.16973, by its code; there all of the 10 critics of continuous actions learn from the targets'
    minimum, are smoothed, and learn to be lower by a deviation for the actions of the policy). The metric
    `disagreement` is the mean standard deviation of Q on the step; with `output` "disagreement" the stream has that
    name, and gives the deviation of each turn in place of its advantage.

    With `conservatism` above 0 Q is kept low for actions that nobody took: in groups of the source `candidates` with
    the recorded action, `conservatism` times logsumexp Q over the group's different actions minus Q of the recorded one
    is added to the loss of each Q (conservative Q-learning: Kumar et al. 2020, arXiv:2006.04779, eq. 4, by its code for
    discrete actions, where the sum is over all actions). Only the groups of the step are read for that.

    With `optimism` above 0 the critics explore by their own objective: the optimal value V of the first state minus a
    multiple of the Bellman error, summed over all that was played (MEX: Liu et al. 2023, arXiv:2305.18258, model-free).
    V is the largest Q of the actions that a group sampled at one first state, averaged over the n first states of the
    step; `optimism` times V, times the step's turns over those of the buffer, is taken off the loss of each Q. So an
    action that was played k times, in one of them, is overrated by `optimism` T / (2 n k), with T turns in a step: much
    at first, and less with each try. The metric `start_value` is V before the updates. In the authors' code V is the
    mean Q at states drawn from the buffer, of the actions played there or, less logsumexp Q over three actions, of the
    policy's, and the error is a mean, so that its weight (0.001, 0.005) is not comparable. In groups of the source
    `candidates` the first state is the recorded one.
    """

    features: Literal["policy", "start"] = "policy"
    critics: Annotated[int, Range(2)] = 2
    pessimism: Literal["min", "deviation"] = "min"
    deviations: Annotated[float, Range(0)] = 1.0
    output: Literal["advantage", "disagreement"] = "advantage"
    conservatism: Annotated[float, Range(0)] = 0.0
    optimism: Annotated[float, Range(0)] = 0.0

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

    def __post_init__(self) -> None:
        if self.output == "disagreement":
            refuse_unused(self, ["pessimism", "deviations"], 'with output = "disagreement", which is no value')
        if self.pessimism == "min":
            refuse_unused(self, ["deviations"], 'with pessimism = "min"')

    @property
    def provides(self) -> str:
        return "utterance_advantage" if self.output == "advantage" else "disagreement"

    @property
    def origins(self) -> Sequence[str]:
        return (CANDIDATES,) if self.conservatism else ()

    @property
    def reference(self) -> bool:
        return self.features == "start"

    def build(self, size: int) -> torch.nn.Module:
        return Critics(size, self.hidden_size, self.critics)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            at_last_token(
                group, [self._by_turn(len(t.turns), s) for t, s in zip(group.trajectories, states, strict=True)]
            )
            for group, states in zip(context.groups, await self._states(context), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Learns from the buffer; `error` is the mean squared error of the Qs on the step before the updates, and
        `disagreement` their mean standard deviation there."""
        new = [
            _transitions(trajectory, states, score)
            for group, of_group, judged in zip(context.groups, await self._states(context), context.scores, strict=True)
            for trajectory, states, score in zip(group.trajectories, of_group, judged, strict=True)
            if states.turns
        ]
        played = _concatenated(new) if new else None
        if played is None or not len(played.reward):
            return {}
        self._remember(played)
        with torch.no_grad():
            error = float(self._errors(played)[0]) / self.critics
            disagreement = float(self._q_values(played.after).std(0, correction=0).mean())
        choices = _choices(context.groups, await self._states(context)) if self.conservatism else []
        starts = _first_actions(context.groups, await self._states(context)) if self.optimism else []
        with torch.no_grad():
            optimistic = {"start_value": float(self._start_value(starts)) / self.critics} if starts else {}
        known = len(self._memory["moves"].reward)
        optimism = self.optimism * len(played.reward) / known  # as the paper sums errors, whose mean is taken here
        rng = np.random.default_rng((self.seed, self._memory["steps"]))
        for _ in range(self.updates):
            chosen = rng.integers(0, known, self.batch_size)
            q, v = self._errors(Transitions(*(column[chosen] for column in self._memory["moves"])))
            loss = q + v + self.conservatism * self._overestimate(choices) if choices else q + v
            self.learner.update(loss - optimism * self._start_value(starts) if starts else loss)
            self.learner.net(played.before.shape[1]).update_targets(self.target_update_rate)
        self._memory["steps"] += 1
        return {"error": error, "disagreement": disagreement, **optimistic}

    def state(self) -> Mapping[str, Any]:
        transitions = self._memory.get("moves")
        kept = {} if transitions is None else {"moves": dict(transitions._asdict())}
        return {"critics": self.learner.state(), "steps": self._memory["steps"], **kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.learner.restore(state["critics"])
        self._memory["steps"] = state["steps"]
        if "moves" in state:
            self._memory["moves"] = Transitions(**state["moves"])

    async def _states(self, context: StepContext) -> list[list[TurnStates]]:
        return await context.states(reference=self.reference)

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

    def _overestimate(self, choices: Sequence[Choice]) -> torch.Tensor:
        """Returns the mean, over states, of logsumexp Q over the actions minus Q of the recorded one, summed over the
        critics."""
        gaps = [(q := self._q_values(c.actions)).logsumexp(1) - q[:, c.recorded] for c in choices]
        return torch.stack(gaps).mean(0).sum()

    def _start_value(self, starts: Sequence[FloatArray]) -> torch.Tensor:
        """Returns the mean, over states, of the largest Q of the actions (n, H) there, summed over the critics."""
        return torch.stack([self._q_values(actions).max(1).values for actions in starts]).mean(0).sum()

    def _remember(self, new: Transitions) -> None:
        known = self._memory.get("moves")
        both = new if known is None else _concatenated([known, new])
        self._memory["moves"] = Transitions(*(column[-self.capacity :] for column in both))

    @torch.no_grad()
    def _by_turn(self, turns: int, states: TurnStates) -> list[float]:
        """Returns the advantage of each turn, or how much the critics disagree about it: (T,)."""
        out = [0.0] * turns
        if not states.turns or self._memory["steps"] < self.warmup:
            return out
        q = self._q_values(states.after)
        if self.output == "advantage":
            before = normalised(torch.from_numpy(states.before))
            v = torch.stack([head(before)[:, 0] for head in self.learner.net(before.shape[1]).v])
            found = self._pessimistic(q) - self._pessimistic(v)
        else:
            found = q.std(0, correction=0)
        for turn, number in zip(states.turns, found.tolist(), strict=True):
            out[turn] = number
        return out

    def _q_values(self, after: FloatArray) -> torch.Tensor:
        """Returns what each critic of utterances says of each row (n, H): (`critics`, n)."""
        rows = normalised(torch.as_tensor(after))
        return torch.stack([head(rows)[:, 0] for head in self.learner.net(rows.shape[1]).q])

    def _pessimistic(self, values: torch.Tensor) -> torch.Tensor:
        """Returns one value of those of all critics (`critics`, n): (n,)."""
        if self.pessimism == "min":
            return values.min(0).values
        return values.mean(0) - self.deviations * values.std(0, correction=0)


def _choices(groups: Sequence[Group], states: Sequence[Sequence[TurnStates]]) -> list[Choice]:
    """Returns, for each group of candidates that has the recorded action and others, its different actions."""
    found, candidates = list[Choice](), [group for group in groups if group.origin == CANDIDATES]
    if candidates and not any(t.turns[0].info.get("recorded") for group in candidates for t in group.trajectories):
        raise ConfigError(
            "utterance_advantage: conservatism compares the recorded action with others, but the candidates leave it "
            "out: set groups.recorded = true, or drop conservatism"
        )
    for group, of_group in zip(groups, states, strict=True):
        actions, recorded = dict[bytes, FloatArray](), b""
        for trajectory, around in zip(group.trajectories, of_group, strict=True):
            if group.origin == CANDIDATES and around.turns:
                key = trajectory.turns[0].sample.tokens.tobytes()
                actions[key] = around.after[0]
                recorded = key if trajectory.turns[0].info.get("recorded") else recorded
        if recorded and len(actions) > 1:
            found.append(Choice(np.stack(list(actions.values())), list(actions).index(recorded)))
    return found


def _first_actions(groups: Sequence[Group], states: Sequence[Sequence[TurnStates]]) -> list[FloatArray]:
    """Returns, for each first state of each group and seat, the hidden states after the actions there: (n, H)."""
    found = dict[tuple[Any, ...], list[FloatArray]]()
    for number, (group, of_group) in enumerate(zip(groups, states, strict=True)):
        for trajectory, around in zip(group.trajectories, of_group, strict=True):
            if around.turns:
                first = around.turns[0]
                prompt = trajectory.prompt(first).tobytes(), trajectory.turns[first].images
                found.setdefault((number, trajectory.agent, *prompt), []).append(around.after[0])
    return [np.stack(actions) for actions in found.values()]


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
