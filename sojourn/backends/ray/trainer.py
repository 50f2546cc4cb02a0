"""The driver's trainer, whose work is done by ranks: processes that train the model together."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn.abilities import PartLoad
from sojourn.backends.ray.ranks import Ranks
from sojourn.backends.ray.trainer_rank import POLICY, writable
from sojourn.backends.torch.trainer.teachers import Teachers
from sojourn.errors import ConfigError
from sojourn.protocols import Forward, Loss, Stateful
from sojourn.timeline import Timeline
from sojourn.types import Batch, FloatArray, IntArray

if TYPE_CHECKING:
    from pathlib import Path

    from ray import ObjectRef

    from sojourn.models.spec import Lora, Model
    from sojourn.optim import Optim

Send = Callable[["ObjectRef", int], Awaitable[None]]


class RankedTrainer:
    """A trainer in the ranks, which know it by its number (`protocols.Trainer`).

    What losses keep from one pass to the next is brought back to the driver's own objects, of which checkpoints are
    made.
    """

    def __init__(self, ranks: Ranks, number: int, timeline: Timeline) -> None:
        self.version = 0
        self._ranks, self._number, self._timeline = ranks, number, timeline

    # -- passes, updates

    async def forward(
        self,
        batch: Batch,
        *,
        reference: bool = False,
        critic: bool = False,
        columns: Sequence[str] = (),
        tokens: IntArray | None = None,
    ) -> Forward:
        """Returns what `TorchTrainer.forward` does."""
        return await self._call("forward", batch, reference=reference, critic=critic, columns=columns, tokens=tokens)

    async def hidden_states(
        self, batch: Batch, indices: IntArray, *, reference: bool = False, layer: int | None = None
    ) -> FloatArray:
        """Returns what `TorchTrainer.hidden_states` does (`HasHiddenStates`)."""
        return await self._call("hidden_states", batch, indices, reference=reference, layer=layer)

    async def forward_backward(self, batch: Batch, losses: Sequence[Loss]) -> Mapping[str, float]:
        """Adds the gradient of a batch in the ranks. Raises `ConfigError` where a pass changes what a loss keeps, and
        not alike in all of them."""
        with self._timeline.during("train"):
            passes = await self._ranks.forward_backward(self._number, batch, losses)
        if len({one.states for one in passes}) > 1:
            names = ", ".join(type(loss).__name__ for loss in losses if isinstance(loss, Stateful))
            raise ConfigError(
                f"a pass changes what the losses keep ({names}), each rank by its part of the step alone: change it in "
                "`columns`, which is told the whole step, or train with one rank"
            )
        for loss, state in zip(losses, pickle.loads(passes[0].states), strict=True):
            if isinstance(loss, Stateful):
                loss.restore(state)
        return passes[0].metrics

    async def optim_step(self) -> Mapping[str, float]:
        return await self._call("optim_step")

    async def publish(self) -> int:
        """Counts a version; the weights of a copy reach no sampler."""
        self.version += 1
        return self.version

    # -- stages and persistence

    def begin(self, optim: Optim, updates: int, *, reference: bool) -> None:
        self._call_now("begin", optim, updates, reference=reference)

    def save(self, folder: Path, *, weights_only: bool = False) -> None:
        """Lets the first rank write its files into a folder, which it must see as the driver does."""
        self._call_now("save", folder.absolute(), weights_only=weights_only)

    def load(self, folder: Path, *, weights_only: bool = False) -> None:
        """Lets every rank read a folder, which it must see as the driver does."""
        self._call_now("load", folder.absolute(), weights_only=weights_only)

    def state(self) -> Mapping[str, Any]:
        return self._call_now("state")

    def restore(self, state: Mapping[str, Any]) -> None:
        self._call_now("restore", state)

    def close(self) -> None:
        self._ranks.all_now("close", self._number)

    # -- inside

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        with self._timeline.during("train"):
            [answer, *_] = await self._ranks.all("call", self._number, method, *args, **kwargs)
        return writable(answer)

    def _call_now(self, method: str, *args: Any, **kwargs: Any) -> Any:
        [answer, *_] = self._ranks.all_now("call", self._number, method, *args, **kwargs)
        return writable(answer)


class RayTrainer(RankedTrainer):
    """The policy's trainer (`protocols.Trainer`, `Copies`, `HasHiddenStates`, `ScoresTokens`).

    `send` takes where Ray keeps the packed weights of a version. Models behind servers are asked from here, so that
    each is asked once; the others are in the ranks.
    """

    def __init__(self, ranks: Ranks, send: Send, timeline: Timeline | None = None) -> None:
        super().__init__(ranks, POLICY, timeline or Timeline())
        self.teachers = Teachers()
        self.published_adapter: Lora | None = None  # which is published alone, over the samplers' base
        self._send = send

    async def publish(self) -> int:
        """Gives the samplers the present weights, under the next version number."""
        self.version += 1
        with self._timeline.during("publish"):
            packed = await self._ranks.pack(self.published_adapter)
        await self._send(packed, self.version)
        return self.version

    @property
    def vocabulary(self) -> int:
        """Returns how many tokens the policy's head knows."""
        return self._ranks.all_now("vocabulary")[0]

    def context_of(self, model: str) -> int:
        """Returns how many tokens a model can read (`ScoresTokens`)."""
        if model in self.teachers.served:
            return self.teachers.served[model].max_context
        return self._call_now("context_of", model)

    async def ask_models(self, batches: Mapping[str, Batch]) -> FloatArray:
        """Returns the log-probabilities (N,) that models give to the tokens that carry weight (`ScoresTokens`)."""
        here, said = await self.teachers.ask_servers(batches)
        with self._timeline.during("train"):
            [answer, *_] = await self._ranks.all("ask_models", here, self.teachers.scored)
        return reduce(np.add, [*said, *([answer] if here else [])])

    def open_model(self, name: str, model: Model, weights: Path | None, seed: int, policy: Model) -> None:
        """Opens a frozen model in every rank."""
        self._ranks.all_now("open_model", name, model, weights and weights.absolute(), seed, policy)

    async def part_loads(self) -> list[PartLoad]:
        """Returns what each rank does (`ReportsParts`)."""
        return self._ranks.part_loads()

    def copy(self, optim: Optim, *, reference: bool) -> RankedTrainer:
        """Returns a trainer of a copy of the present weights, in the ranks (`Copies`)."""
        [number, *_] = self._ranks.all_now("copy", optim, reference)
        return RankedTrainer(self._ranks, number, self._timeline)

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "version": self.version}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.version = state["version"]

    def close(self) -> None:
        self._ranks.close()
        self.teachers.close()
