"""Forward passes over a step's groups, for streams to read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from sojourn.batch.flatten import Place, flatten, scatter
from sojourn.protocols import Trainer
from sojourn.types import Batch, FloatArray, Forward, Group

PerTurn = list[list[tuple[FloatArray, ...]]]  # by group and trajectory, an array for each turn's sampled tokens


class Passes:
    """The passes of one step, each made when it is first asked for, and once, however many streams read from it."""

    def __init__(self, groups: Sequence[Group], trainer: Trainer, *, critic: bool = False) -> None:
        """`critic` says whether any stream will read the critic's values."""
        self._groups, self._trainer, self._critic = groups, trainer, critic
        self._made: dict[bool, Forward] = {}

    async def read(self, column: Callable[[Forward], FloatArray], *, reference: bool = False) -> PerTurn:
        """What `column` takes from the pass, for every sampled token: of the present weights, or of those that the
        stage began with."""
        batch, places = self._flat
        if reference not in self._made:
            critic = self._critic and not reference
            self._made[reference] = await self._trainer.forward(batch, reference=reference, critic=critic)
        return scatter(self._groups, column(self._made[reference]), places)

    @cached_property
    def _flat(self) -> tuple[Batch, list[Place]]:
        return flatten(self._groups)
