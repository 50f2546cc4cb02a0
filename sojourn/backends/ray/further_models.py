"""Opens a further model in processes of its own, for which room is reserved."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.backends.ray.cluster import RETRY_S, imported
from sojourn.backends.ray.opening import Opening, end
from sojourn.backends.ray.processes import CompleteProcesses, ranks_of, samplers_of
from sojourn.backends.ray.sampler_actor import OpenedSampler
from sojourn.backends.ray.samplers import ReplicatedSampler
from sojourn.backends.ray.stored_weights import StoredWeights
from sojourn.errors import InfrastructureError, ModelError
from sojourn.models.spec import Critic
from sojourn.protocols import Opened, Renderer, Trainer

if TYPE_CHECKING:
    from ray import ObjectRef

    from sojourn.backends.ray.ranks import Ranks


@dataclass(frozen=True)
class OpeningFurther:
    """Opens a further model in its processes. Where that fails, none of them is left."""

    opening: Opening
    processes: CompleteProcesses
    patience_s: float

    async def player(self, weights: Path | None, stops: tuple[int, ...]) -> ReplicatedSampler:
        """Returns a sampler of the weights in a folder, or (None) of the model as its name says. Snapshots are opened
        while a run goes on, so that a process which ends meanwhile is started, and asked, again."""
        opening = self.opening
        stored = weights and StoredWeights.at(weights, opening.torch, opening.model, opening.seed)
        actors = self._samplers(stops)
        try:
            found = await asyncio.gather(*(self._loaded(actor, stored) for actor in actors))
            return opening.opened(actors, found, self.patience_s, stored)
        except BaseException:
            end(actors)
            raise

    async def _loaded(self, actor: Any, stored: StoredWeights | None) -> OpenedSampler:
        errors, loop = imported().exceptions, asyncio.get_running_loop()
        deadline = loop.time() + self.patience_s
        while True:
            try:
                if stored is not None:
                    await actor.load.remote(stored, 1)
                return await actor.open.remote()
            except errors.RayTaskError as error:
                raise error.cause from None
            except (errors.RayActorError, errors.ActorUnavailableError) as error:
                if loop.time() > deadline:
                    raise InfrastructureError(
                        f"no sampler of models.{self.opening.name} could be opened within {self.patience_s:g} s, as "
                        "its process ended each time: see whether its node has enough memory, and `ray status`"
                    ) from error
            await asyncio.sleep(RETRY_S)

    def learner(self, renderer: Renderer) -> Opened:
        """Returns the model's trainer, and the sampler to which it publishes."""
        opening, actors, ranks = self.opening, list[Any](), None
        try:
            actors = self._samplers(renderer.stops)
            asked = [actor.open.remote() for actor in actors]
            ranks = self._ranks(None)
            sampler = opening.opened(actors, found := opening.answered(asked), self.patience_s)
            return Opened(opening.trainer(ranks, sampler, found), sampler, renderer, sampler.max_context)
        except BaseException:
            end(actors)
            if ranks is not None:
                ranks.close()
            raise

    def turn_model(self, critic: Critic, weights: Path, max_context: int) -> Trainer:
        """Returns a trainer that computes values by the weights of a checkpoint's folder, and is not trained. Raises
        `ModelError` where the model cannot read contexts of `max_context` tokens."""
        from sojourn.backends.ray.trainer import RayTrainer

        trainer, model = RayTrainer(self._ranks(critic), _nowhere), self.opening.model
        try:
            if (longest := trainer.context_of("policy")) < max_context:
                raise ModelError(
                    f"models.{self.opening.name} = '{model.name}' reads at most {longest} tokens: set "
                    "backend.max_context to that at most, or use another model"
                )
            trainer.load(weights, weights_only=True)
        except BaseException:
            trainer.close()
            raise
        return trainer

    def _samplers(self, stops: tuple[int, ...]) -> list[Any]:
        needs = self.opening.cluster.places_of(samplers_of(self.opening.name))
        return self.opening.start_samplers(self.processes.samplers, needs, stops)

    def _ranks(self, critic: Critic | None) -> Ranks:
        needs = self.opening.cluster.places_of(ranks_of(self.opening.name))
        return self.opening.ranks(self.processes.trainer, needs, critic)


async def _nowhere(weights: ObjectRef, version: int) -> None:
    """Sends weights to no sampler, as those of a model that is never published."""
