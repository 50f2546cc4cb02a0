"""Forward passes over a step's groups, for streams to read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sojourn.abilities import HasHiddenStates
from sojourn.batch.flatten import flatten, scatter
from sojourn.errors import ConfigError
from sojourn.protocols import Forward, PerTurn, Renderer, StepContext, Trainer, TurnSpan, TurnStates
from sojourn.types import Batch, FloatArray, Group, Score


class TrainerPasses(StepContext):
    """Implements `StepContext` by the trainer's forward passes: each is made once, when a stream first reads from
    it."""

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
        self._flat: tuple[Batch, list[TurnSpan]] | None = None
        self._states: dict[bool, list[list[TurnStates]]] = {}

    async def read(self, select: Callable[[Forward], FloatArray], *, reference: bool = False) -> PerTurn:
        """Returns what `select` takes from a pass, for every sampled token, under the present weights or, with
        `reference`, under those that the stage began with."""
        batch, spans = self.flat
        if reference not in self._passes:
            critic = self._critic and not reference
            self._passes[reference] = await self.trainer.forward(batch, reference=reference, critic=critic)
        return scatter(self.groups, select(self._passes[reference]), spans)

    async def states(self, *, reference: bool = False) -> list[list[TurnStates]]:
        """Returns the hidden states around each turn, by group and trajectory, of the present weights or, with
        `reference`, of those that the stage began with."""
        if reference not in self._states:
            if not isinstance(self.trainer, HasHiddenStates):
                raise ConfigError(
                    f"a stream reads the policy's hidden states, which {type(self.trainer).__name__} does not give: "
                    "use backend = {name = 'torch'}, or another stream"
                )
            batch, spans = self.flat
            sampled = sorted(span for span in spans if span.stop > span.start)
            around = np.array([(span.start - 1, span.stop - 1) for span in sampled], dtype=np.int64).reshape(-1, 2)
            rows = await self.trainer.hidden_states(batch, around.ravel(), reference=reference)
            pairs = rows.reshape(len(sampled), 2, rows.shape[1])
            numbers = {(p.group, p.trajectory): [] for p in spans}
            for number, span in enumerate(sampled):
                numbers[span.group, span.trajectory].append(number)
            self._states[reference] = [
                [self._around(sampled, pairs, numbers.get((g, t), [])) for t in range(len(group.trajectories))]
                for g, group in enumerate(self.groups)
            ]
        return self._states[reference]

    @property
    def flat(self) -> tuple[Batch, list[TurnSpan]]:
        """Returns the step's flat batch, and the span of each turn's tokens in it."""
        if self._flat is None:
            self._flat = flatten(self.groups)
        return self._flat

    @staticmethod
    def _around(sampled: Sequence[TurnSpan], pairs: FloatArray, numbers: Sequence[int]) -> TurnStates:
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
