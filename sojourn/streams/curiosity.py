"""Intrinsic curiosity: the prediction error of a forward model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from zlib import crc32

import numpy as np
import torch

from sojourn.config.fields import Range
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.learner import LearnedStream, hashed_counts, layers
from sojourn.streams.trainer_passes import at_last_token
from sojourn.types import Trajectory, Turn


class Transitions(NamedTuple):
    """Actions with what was observed before and after them, as hashed features."""

    before: torch.Tensor  # (n, features)
    action: torch.Tensor  # (n, features)
    after: torch.Tensor  # (n, features)
    label: torch.Tensor  # (n,) the action's class


class CuriosityModel(torch.nn.Module):
    def __init__(self, features: int, hidden_size: int, action_classes: int) -> None:
        super().__init__()
        self.encode = layers(features, hidden_size)
        self.forward_model = layers(hidden_size + features, hidden_size, hidden_size)
        self.inverse_model = layers(2 * hidden_size, hidden_size, action_classes)


@dataclass(frozen=True, kw_only=True)
class Curiosity(LearnedStream):
    """`eta` / 2 times the squared error of a forward model that predicts the features of the observation after each
    turn's action, at the turn's last token (intrinsic curiosity: Pathak et al. 2017, arXiv:1705.05363, eq. 2-7), on
    text.

    The features are learned by an inverse model, which predicts the action from the observations before and after it;
    `beta` is the forward model's part of the loss. Observations and actions are read as hashed counts of words, or of
    tokens, and of pairs of them (`features` columns); the class of an action is a hash of its tokens, one of
    `action_classes`. A turn without a later observation, such as the last, gets 0. The forward error has no gradient
    into the features, where the paper lets it have one: with few different observations it made them shrink. The
    networks learn once from each step, after the stream was read.
    """

    eta: Annotated[float, Range(0)] = 0.01
    beta: Annotated[float, Range(0, 1)] = 0.2
    hidden_size: Annotated[int, Range(1)] = 64
    features: Annotated[int, Range(1)] = 512
    action_classes: Annotated[int, Range(2)] = 64
    lr: Annotated[float, Range(above=0)] = 1e-3
    seed: Annotated[int, Range(0)] = 0

    provides = "curiosity"
    reference = False

    def build(self, size: int) -> torch.nn.Module:
        return CuriosityModel(size, self.hidden_size, self.action_classes)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [at_last_token(group, [self._rewards(t) for t in group.trajectories]) for group in context.groups]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Learns from the step; returns the losses before the update: `error` of the forward model, and `inverse`,
        the cross-entropy of the inverse model in nats."""
        trajectories = [t for group in context.groups for t in group.trajectories if len(t.turns) > 1]
        if not trajectories:
            return {}
        parts = zip(*map(self._transitions, trajectories), strict=True)
        transitions = Transitions(*(torch.cat(part) for part in parts))
        net, (error, before, after) = self.learner.net(self.features), self._errors(transitions)
        logits = net.inverse_model(torch.cat([before, after], 1))
        inverse = torch.nn.functional.cross_entropy(logits, transitions.label)
        self.learner.update((1 - self.beta) * inverse + self.beta * error.mean())
        return {"error": float(error.detach().mean()), "inverse": float(inverse.detach())}

    @torch.no_grad()
    def _rewards(self, trajectory: Trajectory) -> list[float]:
        """Returns the intrinsic reward of each turn: (T,)."""
        if len(trajectory.turns) < 2:
            return [0.0] * len(trajectory.turns)
        error, *_ = self._errors(self._transitions(trajectory))
        return [*(self.eta * error).tolist(), 0.0]

    def _errors(self, transitions: Transitions) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns half the squared error of each prediction, and the features before and after the actions."""
        net = self.learner.net(self.features)
        before, after = net.encode(transitions.before), net.encode(transitions.after)
        predicted = net.forward_model(torch.cat([before.detach(), transitions.action], 1))
        return (predicted - after.detach()).square().sum(1) / 2, before, after

    def _transitions(self, trajectory: Trajectory) -> Transitions:
        observed = torch.from_numpy(hashed_counts([observed_text(turn) for turn in trajectory.turns], self.features))
        actions = [turn.sample.tokens for turn in trajectory.turns[:-1]]
        action = torch.from_numpy(hashed_counts([tokens.tolist() for tokens in actions], self.features))
        hashes = [crc32(np.asarray(tokens, dtype=np.int64).tobytes()) for tokens in actions]
        label = torch.tensor([number % self.action_classes for number in hashes])
        return Transitions(observed[:-1], action, observed[1:], label)


def observed_text(turn: Turn) -> str | list[int]:
    """Returns the text of a turn's observation; where its messages were not kept, the new tokens of the context."""
    return "\n".join(message.text for message in turn.observed) if turn.observed else turn.context.tolist()
