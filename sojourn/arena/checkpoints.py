"""Plays with the weights of a run, using the agent and the sampling parameters of its own recipe."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.abilities import ActsByProgram, AsksPeople, asked_for_text, sub_agent_models, with_base_agents
from sojourn.errors import ConfigError
from sojourn.files import read_text
from sojourn.protocols import AgentContext, EnvFamily
from sojourn.record.checkpoint import MAX_STATE_BYTES, Checkpoint
from sojourn.record.run_weights import NamedRun, Weights, find_weights
from sojourn.rollout.limits import Limits
from sojourn.train import resolve as recipes
from sojourn.train.policy_measures import SeatedPolicy, measurable
from sojourn.train.recipe import Recipe
from sojourn.train.weights import found_weights
from sojourn.types import SamplingParams


class LoadedModel(NamedTuple):
    """A loaded model with its recipe."""

    recipe: Recipe
    renderer: Any
    sampler: Any
    max_context: int

    def context(self, context: AgentContext, greedy: bool = False, sampler: Any = None) -> AgentContext:
        """Returns an agent's context with this model, which samples as the run's evaluations do (or by `sampler`)."""
        return replace(
            context, renderer=self.renderer, sampler=sampler or self.sampler, max_context=self.max_context,
            params=replace(self.params(greedy), seed=context.params.seed),
        )  # fmt: skip

    def params(self, greedy: bool) -> SamplingParams:
        """Returns the sampling parameters of the run's evaluations, at temperature 0 if `greedy`."""
        evaluation = self.recipe.evaluation
        evaluation = replace(evaluation, temperature=0.0) if greedy else evaluation
        return evaluation.params(self.recipe.sampling)


@asynccontextmanager
async def load_model(recipe: Recipe, weights: Weights) -> AsyncIterator[LoadedModel]:
    """Loads a model for the time of the context."""
    checkpoint = weights.checkpoint or found_weights(recipe)
    backend = recipe.backend.open(recipe.model, recipe.renderer, recipe.seed, None, None)
    try:
        if checkpoint is not None:
            backend.trainer.load(checkpoint.weights, weights_only=True)
            backend.trainer.version = _version(checkpoint) - 1  # `publish` below adds 1, which gives the run's version
        await backend.trainer.publish()
        yield LoadedModel(recipe, backend.renderer, backend.sampler, backend.max_context)
    finally:
        await backend.sampler.close()
        backend.trainer.close()


def _version(checkpoint: Checkpoint) -> int:
    """Returns the version of a checkpoint's weights, 1 if the checkpoint does not say."""
    try:
        version = json.loads(read_text(checkpoint.path / "state.json", MAX_STATE_BYTES))["parts"]["trainer"]["version"]
    except (OSError, ValueError, LookupError, TypeError):
        return 1
    return version if isinstance(version, int) else 1


@dataclass
class CheckpointOperator:
    """Plays with the weights of a run, sampling as its evaluations do, or at temperature 0 if `greedy`."""

    name: str
    run: Path
    weights_name: str = ""
    greedy: bool = False
    model: LoadedModel | None = None
    step: int = 0  # of the weights, once they are loaded
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    def parse(cls, text: str, greedy: bool = False) -> CheckpointOperator:
        """Parses a run folder with optional weights after an @, such as runs/x, runs/x@warmup or runs/x@120."""
        folder, weights = NamedRun.parse(text)
        if not (folder / "config.toml").is_file():
            raise ConfigError(
                f"--operator {text}: expected expert, random, person, an endpoint such as "
                "http://127.0.0.1:8000/v1#model, or a run folder such as runs/x or runs/x@warmup"
            )
        return cls(folder.resolve().name + (f"@{weights}" if weights else ""), folder, weights, greedy)

    async def open(self, family: EnvFamily, limits: Limits) -> None:
        recipe = recipes.load(self.run).recipe
        if isinstance(recipe.agent, ActsByProgram):
            raise ConfigError(
                f"--operator {self.run}: {recipe.agent.program} acts in it, which takes no part in matches: evaluate "
                "the run instead (sojourn eval), or name another operator"
            )
        if sub_agent_models(recipe.agent):
            raise ConfigError(
                f"--operator {self.run}: its agent {type(recipe.agent).__name__} calls other agents, of which a match "
                "would record nothing: evaluate the run instead (sojourn eval), or name another operator"
            )
        if asking := [
            one for one in with_base_agents(recipe.agent) if asked_for_text(one) or isinstance(one, AsksPeople)
        ]:
            raise ConfigError(
                f"--operator {self.run}: its agent {type(asking[0]).__name__} asks others, whom a match does not have: "
                "evaluate the run instead (sojourn eval), or name another operator"
            )
        weights = find_weights(self.run, self.weights_name)
        self.step = weights.checkpoint.step if weights.checkpoint is not None else 0
        self.model = await self._open.enter_async_context(load_model(recipe, weights))

    def seat(self, context: AgentContext, env: Any) -> Any:
        assert self.model is not None, "open() comes first"
        return self.model.recipe.agent.seat(self.model.context(context, self.greedy))

    def policy(self) -> SeatedPolicy | None:
        """Returns its policy, for what worlds measure of it; None where its samples are not all that it does."""
        assert self.model is not None, "open() comes first"
        recipe = self.model.recipe
        if not measurable(recipe, recipe.agent):
            return None
        return SeatedPolicy(
            agent=recipe.agent,
            renderer=self.model.renderer,
            sampler=self.model.sampler,
            params=self.model.params(self.greedy),
            max_context=self.model.max_context,
        )

    async def close(self) -> None:
        await self._open.aclose()
