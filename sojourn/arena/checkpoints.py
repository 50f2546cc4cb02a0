"""A checkpoint in the seat: a run's weights, with the agent and the sampling of its own recipe."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import ConfigError, RecordError
from sojourn.files import read_text
from sojourn.protocols import AgentContext, EnvFamily
from sojourn.record import checkpoint
from sojourn.record.checkpoint import MAX_STATE_BYTES, Checkpoint
from sojourn.record.run import RunFolder
from sojourn.rollout.play import Limits
from sojourn.train import resolve as recipes
from sojourn.train.recipe import Recipe
from sojourn.train.weights import found_weights

BEFORE = "before"


class Weights(NamedTuple):
    """Weights of a run by the word that names them behind its folder; no checkpoint: those it began with."""

    word: str
    checkpoint: Checkpoint | None


def weights(run: Path) -> list[Weights]:
    """All that a run can be played with, the oldest first: those before, after each stage, and in between."""
    stages = RunFolder.read(run).config.get("stages", [])
    done, ends = 0, dict[int, str]()
    for stage in stages if isinstance(stages, list) else ():
        done += int(stage.get("steps", 0))
        ends[done] = str(stage.get("name", done))
    held = checkpoint.checkpoints(run / "checkpoints")
    return [Weights(BEFORE, None), *(Weights(ends.get(c.step, str(c.step)), c) for c in held)]


def chosen(run: Path, word: str) -> Weights:
    """The weights of a word: of a stage's end, after so many steps, before any; the newest where there is none."""
    found = weights(run)
    if not word:
        newest = checkpoint.latest(run / "checkpoints")
        if newest is None:
            raise RecordError(f"'{run}' has no complete checkpoint yet: train it first, or play {run}@{BEFORE}")
        return next((one for one in found if one.checkpoint == newest), Weights(str(newest.step), newest))
    for one in found:
        if word == one.word or (one.checkpoint is not None and word == str(one.checkpoint.step)):
            if one.checkpoint is not None:
                one.checkpoint.verify()
            return one
    raise ConfigError(f"'{run}@{word}': this run has no such weights: it has {', '.join(w.word for w in found)}")


class Filled(NamedTuple):
    """What a model needs to take a seat."""

    recipe: Recipe
    renderer: Any
    sampler: Any
    max_context: int

    def context(self, context: AgentContext, greedy: bool = False, sampler: Any = None) -> AgentContext:
        """Returns an agent's context with this model, which samples as the run's evaluations do (or by `sampler`)."""
        asked = self.recipe.evaluation
        temperature = 0.0 if greedy else asked.temperature
        params = replace(self.recipe.sampling.params(), temperature=temperature, top_p=asked.top_p)
        return replace(
            context, renderer=self.renderer, sampler=sampler or self.sampler, max_context=self.max_context,
            params=replace(params, seed=context.params.seed),
        )  # fmt: skip


@asynccontextmanager
async def loaded(recipe: Recipe, found: Weights) -> AsyncIterator[Filled]:
    """The model at work, until it is left."""
    kept = found.checkpoint or found_weights(recipe)
    backend = recipe.backend.open(recipe.model, recipe.renderer, recipe.seed, None, None)
    try:
        if kept is not None:
            backend.trainer.load(kept.weights, weights_only=True)
            backend.trainer.version = _version(kept) - 1  # published below, under the number that the run gave it
        await backend.trainer.publish()
        yield Filled(recipe, backend.renderer, backend.sampler, backend.max_context)
    finally:
        await backend.sampler.close()
        backend.trainer.close()


def _version(kept: Checkpoint) -> int:
    """The number of its weights; 1 where the checkpoint does not say."""
    try:
        version = json.loads(read_text(kept.path / "state.json", MAX_STATE_BYTES))["parts"]["trainer"]["version"]
    except (OSError, ValueError, LookupError, TypeError):
        return 1
    return version if isinstance(version, int) else 1


@dataclass
class Trained:
    """Plays with the weights of a run; sampled as its evaluations are, or at temperature 0."""

    name: str
    run: Path
    word: str = ""
    greedy: bool = False
    filled: Filled | None = None
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    def of(cls, text: str, greedy: bool = False) -> Trained:
        """By the run's folder and, behind an @, which of its weights: runs/x, runs/x@warmup, runs/x@120."""
        folder, _, word = (
            (text, "", "") if Path(text).is_dir() else text.rpartition("@") if "@" in text else (text, "", "")
        )
        if not (Path(folder) / "config.toml").is_file():
            raise ConfigError(
                f"--operator {text}: expected expert, random, person, an endpoint such as "
                "http://127.0.0.1:8000/v1#model, or a run folder such as runs/x or runs/x@warmup"
            )
        return cls(Path(folder).resolve().name + (f"@{word}" if word else ""), Path(folder), word, greedy)

    async def open(self, family: EnvFamily, limits: Limits) -> None:
        recipe = recipes.load(self.run).recipe
        self.filled = await self._open.enter_async_context(loaded(recipe, chosen(self.run, self.word)))

    def sit(self, context: AgentContext, env: Any) -> Any:
        assert self.filled is not None, "open() comes first"
        return self.filled.recipe.agent.seat(self.filled.context(context, self.greedy))

    async def close(self) -> None:
        await self._open.aclose()
