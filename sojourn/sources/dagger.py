"""The policy's own states, labelled with what the world's scripted expert would do there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.abilities import Demonstrates
from sojourn.config.fields import Range
from sojourn.errors import ConfigError
from sojourn.protocols import Env, Sampler
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_played
from sojourn.sources.experts import ExpertSampler, require_expert
from sojourn.sources.segments import alone
from sojourn.types import Episode, FloatArray, Group, Prompt, Sample, SamplingParams, Trajectory, Turn


@dataclass(frozen=True, kw_only=True)
class Dagger:
    """`width` episodes per step that the policy plays, each turn of which is labelled with the action of the world's
    expert in that state, to be imitated (DAgger: Ross et al. 2011, arXiv:1011.0686).

    So the policy learns what to do in the states that it comes to itself, which those of an expert's demonstrations are
    not. In step i the expert takes a turn in place of the policy with probability `beta` ** i, so that the first step
    is the expert's alone; 0 leaves all later ones to the policy. A turn's label is in the turn's own context, with what
    the policy did before; the actions that were taken are not trained. The algorithm trains on the states of all steps
    so far: mix it with `replay` whose `origins` are ["dagger"], as its groups are recorded like any other. The metric
    `expert_agreement` is the fraction of turns in which the policy did exactly what the expert would have done.
    """

    width: Annotated[int, Range(1)] = 16
    beta: Annotated[float, Range(0, 1)] = 0.5

    live = False
    size = 1
    origin = "dagger"
    gives_samples = True
    env_needs = frozenset({"expert"})

    def tasks(self, steps: int) -> int:
        return self.width * steps

    async def check(self, stage: StageContext) -> None:
        if isinstance(stage.agent, Demonstrates):
            raise ConfigError(
                f"stage '{stage.name}': {type(stage.agent).__name__} samples several times in a turn, of which dagger "
                "would not know which to label: use an agent that samples once, such as plain, or groups = {name = "
                "'experts'}"
            )
        await require_expert(stage, "a turn that an expert labelled", self.origin)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveDagger:
        return LiveDagger(self, context, stage, first)


@dataclass
class LiveDagger:
    """Plays and labels the episodes of one stage."""

    config: Dagger
    context: SourceContext
    stage: str
    first: int = 0
    _agreed: list[bool] = field(default_factory=list[bool])

    async def take(self, step: int) -> list[Group]:
        width = self.config.width
        groups = await asyncio.gather(*(self._play(step, slot) for slot in range(step * width, (step + 1) * width)))
        require_played(groups, step)
        return groups

    async def close(self) -> None:
        """Does nothing: nothing is left running."""

    def metrics(self) -> Mapping[str, float]:
        agreed, self._agreed = self._agreed, []
        return {"expert_agreement": float(np.mean(agreed))} if agreed else {}

    async def _play(self, step: int, slot: int) -> Group:
        runner, samplers = self.context.runner, dict[str, LabellingSampler]()
        task = self.context.curriculum.draw(self.first + slot)

        def sampler_for(env: Env, label: str) -> LabellingSampler:
            rng = np.random.default_rng(seed_of(runner.seed, label, task.id))
            expert = ExpertSampler(env, runner.renderer, runner.agent)
            samplers[label] = LabellingSampler(runner.sampler, expert, self.config.beta**step, rng)
            return samplers[label]

        label = f"{self.stage}/dagger/{slot}"
        group = await runner.play_group(task, slot, 1, self.context.params, label, sampler_for=sampler_for)
        [episode] = group.episodes
        episode = self._labelled(episode, samplers[f"{label}/0"])
        return replace(group, episodes=(episode,), origin=self.config.origin)

    def _labelled(self, episode: Episode, sampler: LabellingSampler) -> Episode:
        if episode.error is not None:
            return episode
        trajectories = [sampler.labelled(trajectory) for trajectory in episode.trajectories]
        for before, after in zip(episode.trajectories, trajectories, strict=True):
            pairs = zip(before.turns, after.turns, strict=True)
            self._agreed += [np.array_equal(one.sample.tokens, other.sample.tokens) for one, other in pairs]
        return replace(episode, trajectories=tuple(trajectories))


@dataclass
class LabellingSampler:
    """Samples an episode's actions, from the engine or now and then from the expert, and keeps the expert's for all."""

    engine: Sampler
    expert: ExpertSampler
    beta: float
    rng: np.random.Generator
    labels: dict[bytes, Sample] = field(default_factory=dict[bytes, Sample])  # by the tokens of the prompt

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        label = self.labels[prompt.tokens.tobytes()] = await self.expert.sample(prompt, params)
        return label if self.rng.random() < self.beta else await self.engine.sample(prompt, params)

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt)

    async def close(self) -> None:
        """Does nothing: whoever opened the engine closes it."""

    def labelled(self, trajectory: Trajectory) -> Trajectory:
        """Returns the trajectory with a label in place of each action, every one in a context of its own."""
        return replace(trajectory, turns=tuple(self._turn(trajectory, n) for n in range(len(trajectory.turns))))

    def _turn(self, trajectory: Trajectory, number: int) -> Turn:
        turn = alone(trajectory, number)
        label = self.labels[turn.context.tobytes()]
        return replace(turn, sample=label, message=self.expert.renderer.parse(label.tokens.tolist()))
