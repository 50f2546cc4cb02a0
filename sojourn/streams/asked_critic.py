"""The critic as it is asked while plays go on, by agents that search and by branching rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sojourn.protocols import Trainer
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Ending, Episode, Group, Prompt, Sample, Stop, Task, Trajectory, Turn, Versions

ASKED = Task("asked", {}, 0, "train")


@dataclass(frozen=True)
class AskedCritic:
    """Asks the critic of a trainer (`ValueModel`).

    Each question is a forward pass of its own, so that an answer depends on nothing that is asked beside it, not even
    in its last bits. Between two updates of the trainer all answers are of the same weights.
    """

    trainer: Trainer

    async def value(self, prompt: Prompt) -> float:
        """Returns the return that the critic expects after a prompt, where a seat is to act."""
        any_token = np.zeros(1, dtype=np.int64)  # the value before a token does not depend on it
        sample = Sample(any_token, np.zeros(1, dtype=np.float32), Versions(0, 0), Stop.END)
        turn = Turn(-1, prompt.tokens, sample, None, images=prompt.images)
        return (await self.values(Trajectory("agent", (turn,), Ending.DONE)))[0]

    async def values(self, trajectory: Trajectory) -> list[float]:
        """Returns the returns that the critic expects before each turn of a trajectory; NaN before one that has no
        sampled tokens."""
        group = Group(0, ASKED, (Episode("asked", ASKED, (replace(trajectory, trainable=True),)),))
        passes = TrainerPasses([group], [[]], self.trainer, critic=True)
        [[found]] = await passes.read(lambda forward: forward.values)
        return [float(values[0]) if len(values) else math.nan for values in found]


@dataclass(frozen=True)
class TurnValues:
    """Reads the critic of a trainer where turns end (`TurnModel`): one pass for all trajectories of a group."""

    trainer: Trainer

    async def ends(self, group: Group) -> list[list[float]]:
        if not group.trajectories:
            return []
        passes = TrainerPasses([group], [[]], self.trainer, critic=True)
        [found] = await passes.read(lambda forward: forward.values)
        return [[float(values[-1]) if len(values) else math.nan for values in turns] for turns in found]
