"""Forward passes over a step's groups, for streams to read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sojourn.abilities import HasHiddenStates
from sojourn.batch.flatten import flatten, scatter
from sojourn.errors import ConfigError
from sojourn.protocols import PerTurn, Place, Renderer, Trainer, TurnStates
from sojourn.types import Batch, FloatArray, Forward, Group, Score


class TrainerPasses:
    """The forward passes of one step. Each is made once, when the first stream reads from it."""

    def __init__(
        self,
        groups: Sequence[Group],
        scores: Sequence[Sequence[Score]],
        trainer: Trainer,
        renderer: Renderer | None = None,
        *,
        critic: bool = False,
    ) -> None:
        """Takes the step's groups and scores; `critic` says whether any stream will read the critic's values."""
        self.groups, self.scores, self.trainer = groups, scores, trainer
        self.renderer, self._critic = renderer, critic
        self._passes: dict[bool, Forward] = {}
        self._flat: tuple[Batch, list[Place]] | None = None
        self._states: list[list[TurnStates]] | None = None

    async def read(self, column: Callable[[Forward], FloatArray], *, reference: bool = False) -> PerTurn:
        """Returns a column of a pass for every sampled token, under the present weights or, with `reference`, under
        those that the stage began with."""
        batch, places = self.flat
        if reference not in self._passes:
            critic = self._critic and not reference
            self._passes[reference] = await self.trainer.forward(batch, reference=reference, critic=critic)
        return scatter(self.groups, column(self._passes[reference]), places)

    async def states(self) -> list[list[TurnStates]]:
        """Returns the policy's hidden states around each turn, by group and trajectory."""
        if self._states is None:
            if not isinstance(self.trainer, HasHiddenStates):
                raise ConfigError(
                    f"a stream reads the policy's hidden states, which {type(self.trainer).__name__} does not give: "
                    "use backend = {name = 'torch'}, or another stream"
                )
            batch, places = self.flat
            sampled = sorted(place for place in places if place.stop > place.start)
            around = np.array([(place.start - 1, place.stop - 1) for place in sampled], dtype=np.int64).reshape(-1, 2)
            rows = await self.trainer.hidden_states(batch, around.ravel())
            pairs = rows.reshape(len(sampled), 2, rows.shape[1])
            numbers = {(p.group, p.trajectory): [] for p in places}
            for number, place in enumerate(sampled):
                numbers[place.group, place.trajectory].append(number)
            self._states = [
                [self._around(sampled, pairs, numbers.get((g, t), [])) for t in range(len(group.trajectories))]
                for g, group in enumerate(self.groups)
            ]
        return self._states

    @property
    def flat(self) -> tuple[Batch, list[Place]]:
        """Returns the step's flat batch, and the place of each turn's tokens in it."""
        if self._flat is None:
            self._flat = flatten(self.groups)
        return self._flat

    @staticmethod
    def _around(sampled: Sequence[Place], pairs: FloatArray, numbers: Sequence[int]) -> TurnStates:
        return TurnStates([sampled[n].turn for n in numbers], *(pairs[list(numbers), side] for side in (0, 1)))


def at_last_token(group: Group, values: Sequence[Sequence[float]]) -> list[tuple[FloatArray, ...]]:
    """Returns arrays per token that hold each turn's number at the turn's last token, and 0 at its others."""
    out = []
    for trajectory, numbers in zip(group.trajectories, values, strict=True):
        arrays = [np.zeros(len(turn.sample.tokens), dtype=np.float32) for turn in trajectory.turns]
        for array, number in zip(arrays, numbers, strict=True):
            array[-1:] = number
        out.append(tuple(arrays))
    return out
