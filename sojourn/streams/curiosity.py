"""What the world answered that was not foreseen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple
from zlib import crc32

import numpy as np
import torch

from sojourn.config.registry import Range
from sojourn.protocols import PerTurn, StepContext
from sojourn.streams.learner import Learning, hashed, layers
from sojourn.streams.trainer_passes import at_last
from sojourn.types import Trajectory, Turn


class Moves(NamedTuple):
    """What was seen before and after some actions, and the actions, as numbers."""

    before: torch.Tensor  # (n, features)
    action: torch.Tensor  # (n, features)
    after: torch.Tensor  # (n, features)
    label: torch.Tensor  # (n,) which of `actions` classes the action is of


class Foresight(torch.nn.Module):
    def __init__(self, features: int, width: int, actions: int) -> None:
        super().__init__()
        self.encode = layers(features, width)
        self.forward_model = layers(width + features, width, width)
        self.inverse_model = layers(2 * width, width, actions)


@dataclass(frozen=True, kw_only=True)
class Curiosity(Learning):
    """eta / 2 times the squared error of a forward model in the features of what each turn's action led to, at the
    turn's last token; the features are learnt by an inverse model that tells the action from what came before and after
    (intrinsic curiosity: Pathak et al. 2017, arXiv:1705.05363, eq. 2-7), on text.

    What is seen and done is read as hashed counts of words, or tokens, and pairs of them, an action's class is a hash
    of its tokens. A turn without an answer, as the last, gets 0. The features do not follow the forward error, which
    the paper lets pull at them: with few different observations it made them shrink. It learns once from each step,
    after the step was read.
    """

    eta: Annotated[float, Range(0)] = 0.01
    beta: Annotated[float, Range(0, 1)] = 0.2  # how much of the learning is the forward model's
    hidden_size: Annotated[int, Range(1)] = 64
    features: Annotated[int, Range(1)] = 512
    action_classes: Annotated[int, Range(2)] = 64
    lr: Annotated[float, Range(above=0)] = 1e-3
    seed: Annotated[int, Range(0)] = 0

    provides: ClassVar[str] = "curiosity"
    reference: ClassVar[bool] = False

    def build(self, size: int) -> torch.nn.Module:
        return Foresight(size, self.hidden_size, self.action_classes)

    async def __call__(self, context: StepContext) -> PerTurn:
        return [at_last(group, [self._said(t) for t in group.trajectories]) for group in context.groups]

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """`error` is the forward model's on the step, before it has learnt from it; `inverse` the other's, in nats."""
        trajectories = [t for group in context.groups for t in group.trajectories if len(t.turns) > 1]
        if not trajectories:
            return {}
        moves = Moves(*(torch.cat(parts) for parts in zip(*map(self._moves, trajectories), strict=True)))
        net, (error, before, after) = self.learner.net(self.features), self._errors(moves)
        told = torch.nn.functional.cross_entropy(net.inverse_model(torch.cat([before, after], 1)), moves.label)
        self.learner.descend((1 - self.beta) * told + self.beta * error.mean())
        return {"error": float(error.detach().mean()), "inverse": float(told.detach())}

    @torch.no_grad()
    def _said(self, trajectory: Trajectory) -> list[float]:
        if len(trajectory.turns) < 2:
            return [0.0] * len(trajectory.turns)
        error, *_ = self._errors(self._moves(trajectory))
        return [*(self.eta * error).tolist(), 0.0]

    def _errors(self, moves: Moves) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Half the squared error of each foreseen answer, and the features of what came before and after."""
        net = self.learner.net(self.features)
        before, after = net.encode(moves.before), net.encode(moves.after)
        foreseen = net.forward_model(torch.cat([before.detach(), moves.action], 1))
        return (foreseen - after.detach()).square().sum(1) / 2, before, after

    def _moves(self, trajectory: Trajectory) -> Moves:
        seen = torch.from_numpy(hashed([seen_at(turn) for turn in trajectory.turns], self.features))
        said = [turn.sample.tokens for turn in trajectory.turns[:-1]]
        action = torch.from_numpy(hashed([tokens.tolist() for tokens in said], self.features))
        label = torch.tensor([crc32(np.asarray(t, dtype=np.int64).tobytes()) % self.action_classes for t in said])
        return Moves(seen[:-1], action, seen[1:], label)


def seen_at(turn: Turn) -> str | list[int]:
    """What the world had to say before a turn; where nobody kept the messages, the tokens that were new."""
    return "\n".join(message.text for message in turn.observed) if turn.observed else turn.context.tolist()
