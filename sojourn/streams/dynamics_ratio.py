"""How much likelier a real world than its simulator shows what followed each action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch

from sojourn.config.fields import NONBLANK, Range
from sojourn.protocols import PerTurn, StepContext, TurnStates
from sojourn.streams.learner import LearnedStream, layers, normalised
from sojourn.types import FloatArray, Trajectory

BOUND = 4.0  # of the log-ratio, which the authors' code bounds alike


class Classifiers(torch.nn.Module):
    """Tells real from simulated turns: by state and action, and by what followed them besides."""

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__()
        self.action = layers(size, hidden_size, hidden_size, 1)
        self.transition = layers(2 * size, hidden_size, hidden_size, 1)
        for network in (self.action, self.transition):  # so that the ratio is 1 until something was learned
            for parameter in network[-1].parameters():
                torch.nn.init.zeros_(parameter)

    def log_odds(self, after: torch.Tensor) -> torch.Tensor:
        """Returns the log-odds that states and actions (n, H) are real: (n,)."""
        return self.action(after)[:, 0]

    def log_ratio(self, after: torch.Tensor, ahead: torch.Tensor) -> torch.Tensor:
        """Returns by how much the next states (n, H) raise the log-odds: (n,)."""
        return BOUND * torch.tanh(self.transition(torch.cat([after, ahead], 1))[:, 0])


@dataclass(frozen=True, kw_only=True)
class DynamicsRatio(LearnedStream):
    """The ratio p_real(s'|s, a) / p_simulated(s'|s, a) of what followed each turn, for each of its tokens, in groups of
    the origins `simulated`; 1 in all others (the importance weights of H2O: Niu et al. 2022, arXiv:2206.13464, by its
    code).

    Two classifiers tell turns of the origins `real` from simulated ones, by (s, a) and by (s, a, s'); the difference of
    their log-odds is the logarithm of the ratio, which is bounded by `min_ratio` and `max_ratio`. They read the
    policy's last hidden states at the end of the action, and before the next turn's first token; with `features` =
    "start" those of the policy as the stage began. A turn that nothing follows, such as the last, has the ratio 1.
    With `level` = "trajectory" all turns get the product of their ratios, the weight of the whole episode, for credit
    that is a return; with "turn", that of the paper, each gets its own, for critics that learn by temporal differences.
    The loss `weighted` multiplies by the ratio.

    After each step that has turns of both kinds come `epochs` passes over it, once the stream was read, in which both
    kinds weigh alike, and inputs have noise with the standard deviation `noise`. As in the code, the second classifier
    learns only what it adds to the first's log-odds, and that is within 4 of 0; there the first is bounded, too, and
    trained by both losses, and batches are drawn from buffers. The paper's other half, values that are kept lower the
    larger the gap of the dynamics, is not here.
    """

    simulated: tuple[Annotated[str, NONBLANK], ...] = ("policy",)
    real: tuple[Annotated[str, NONBLANK], ...] = ("folder",)
    level: Literal["turn", "trajectory"] = "turn"
    min_ratio: Annotated[float, Range(0)] = 1e-5
    max_ratio: Annotated[float, Range(above=0)] = 1.0
    features: Literal["policy", "start"] = "policy"
    noise: Annotated[float, Range(0)] = 0.1
    hidden_size: Annotated[int, Range(1)] = 128
    lr: Annotated[float, Range(above=0)] = 1e-3
    epochs: Annotated[int, Range(1)] = 4
    seed: Annotated[int, Range(0)] = 0
    _memory: dict[str, int] = field(default_factory=lambda: {"steps": 0}, init=False, repr=False, compare=False)

    provides = "dynamics_ratio"

    def __post_init__(self) -> None:
        if not self.simulated or not self.real or set(self.simulated) & set(self.real):
            raise ValueError(
                f"simulated = {list(self.simulated)} with real = {list(self.real)}: expected one origin or more in "
                'each, and none in both, such as simulated = ["policy"] and real = ["folder"]'
            )
        if not self.min_ratio <= 1 <= self.max_ratio:
            raise ValueError(
                f"min_ratio = {self.min_ratio:g} with max_ratio = {self.max_ratio:g}: expected min_ratio <= 1 <= "
                "max_ratio, as a turn that nothing follows has the ratio 1"
            )

    @property
    def origins(self) -> Sequence[str]:
        return (*self.simulated, *self.real)

    @property
    def reference(self) -> bool:
        return self.features == "start"

    def build(self, size: int) -> torch.nn.Module:
        return Classifiers(size, self.hidden_size)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [
            [
                self._by_token(trajectory, states if group.origin in self.simulated else None)
                for trajectory, states in zip(group.trajectories, of_group, strict=True)
            ]
            for group, of_group in zip(context.groups, await self._states(context), strict=True)
        ]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Learns from the step. Returns, before the first update, the mean cross-entropy `error` with which the second
        classifier tells real from simulated turns, that of the first, `action_error`, and the mean ratio `simulated`
        of simulated turns."""
        states = await self._states(context)
        real, simulated = (self._transitions(context, states, origins) for origins in (self.real, self.simulated))
        if real is None or simulated is None:
            return {}
        net, measured = self.learner.net(real.shape[2]), dict[str, float]()
        with torch.no_grad():
            mean_ratio = float(self._bounded(net.log_ratio(*simulated)).mean())
        rng = np.random.default_rng((self.seed, self._memory["steps"]))
        for _ in range(self.epochs):
            action, transition = self._errors(net, *(self._noisy(rows, rng) for rows in (real, simulated)))
            if not measured:
                measured = {"error": float(transition.detach()), "action_error": float(action.detach())}
            self.learner.update(action + transition)
        self._memory["steps"] += 1
        return {**measured, "simulated": mean_ratio}

    def state(self) -> Mapping[str, Any]:
        return {"classifiers": self.learner.state(), "steps": self._memory["steps"]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.learner.restore(state["classifiers"])
        self._memory["steps"] = state["steps"]

    async def _states(self, context: StepContext) -> list[list[TurnStates]]:
        return await context.states(reference=self.reference)

    def _transitions(
        self, context: StepContext, states: Sequence[Sequence[TurnStates]], origins: Sequence[str]
    ) -> torch.Tensor | None:
        """Returns the hidden states after each turn that another follows, and before that one: (2, n, H); None where
        groups of these origins have no such turns."""
        pairs = [
            np.stack([of.after[:-1], of.before[1:]])
            for group, of_group in zip(context.groups, states, strict=True)
            for of in of_group
            if group.origin in origins and len(of.turns) > 1
        ]
        return normalised(torch.from_numpy(np.concatenate(pairs, 1))) if pairs else None

    def _noisy(self, rows: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        return rows + self.noise * torch.from_numpy(rng.standard_normal(rows.shape, dtype=np.float32))

    @staticmethod
    def _errors(net: Any, real: torch.Tensor, simulated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the mean cross-entropy of each classifier, in which both kinds of turns weigh alike."""
        action = transition = torch.zeros(())
        for (after, ahead), sign in ((real, 1), (simulated, -1)):
            log_odds, log_ratio = net.log_odds(after), net.log_ratio(after, ahead)
            action = action + torch.nn.functional.softplus(-sign * log_odds).mean() / 2
            transition = transition + torch.nn.functional.softplus(-sign * (log_odds.detach() + log_ratio)).mean() / 2
        return action, transition

    @torch.no_grad()
    def _by_token(self, trajectory: Trajectory, states: TurnStates | None) -> tuple[FloatArray, ...]:
        """Returns the ratio of each token's turn, 1 where `states` are None."""
        log_ratios = torch.zeros(len(trajectory.turns))
        if states is not None and len(states.turns) > 1:
            after, ahead = (normalised(torch.from_numpy(rows)) for rows in (states.after[:-1], states.before[1:]))
            log_ratios[states.turns[:-1]] = self.learner.net(after.shape[1]).log_ratio(after, ahead)
            if self.level == "trajectory":
                log_ratios[:] = log_ratios.sum()
        ratios = self._bounded(log_ratios) if states is not None else torch.ones(len(log_ratios))
        return tuple(
            np.full(len(turn.sample.tokens), ratio, dtype=np.float32)
            for turn, ratio in zip(trajectory.turns, ratios.tolist(), strict=True)
        )

    def _bounded(self, log_ratios: torch.Tensor) -> torch.Tensor:
        return log_ratios.exp().clamp(self.min_ratio, self.max_ratio)
