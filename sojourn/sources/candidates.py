"""Actions that the policy samples anew at recorded states, to be compared without playing them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Renderer
from sojourn.record.stage_rounds import rounds_of
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext
from sojourn.sources.earlier import Earlier
from sojourn.sources.folder import Folder
from sojourn.sources.segments import alone
from sojourn.types import Ending, Episode, Group, Message, Prompt, Sample, Score, Task, Trajectory, Turn


class State(NamedTuple):
    """A turn of a recorded trajectory, before its action."""

    task: Task
    trajectory: Trajectory
    turn: int


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """`width` groups per step, each with `size` actions at one recorded state, drawn at random from all turns of a
    `stage` of the run `path` or, without a `path`, of the newest round of an earlier stage of this run; nothing is
    played.

    The present weights sample the actions; with `recorded`, the first one is the recorded action. Each is an episode of
    one turn, whose context is the whole prompt, whose reward is 0, and which ends as truncated: what would follow is
    not known. So something else has to say what an action is worth: a stream, such as `utterance_advantage`, which
    learns from recorded groups of another part of `mixed`, and an estimator that reads it, such as `best_of_n` or
    `archer`.
    """

    stage: Annotated[str, NONBLANK]
    path: str = ""
    width: Annotated[int, Range(1)] = 16
    size: Annotated[int, Range(2)] = 8
    recorded: bool = True

    live = False
    origin = "candidates"

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        if self.path:
            await self._folder.check(stage)
            _require_free(stage.name, self._folder.read())
        else:
            Earlier(stage=self.stage).require_before(stage)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> CandidateGroups:
        groups = self._folder.read() if self.path else self._earlier(context, stage)
        _require_free(stage, groups)
        states = [
            State(group.task, trajectory, turn)
            for group in groups
            for trajectory in group.trajectories
            for turn in range(len(trajectory.turns))
        ]
        return CandidateGroups(self, context, stage, states)

    @property
    def _folder(self) -> Folder:
        return Folder(path=self.path, stage=self.stage)

    def _earlier(self, context: SourceContext, stage: str) -> list[Group]:
        """Returns the groups of the newest round of an earlier stage of this run."""
        known = {count.stage for count in context.episodes.steps() if count.stage != stage}
        newest = rounds_of(self.stage, known)[-1:]
        groups = [group for name in newest for group in context.episodes.groups(name) if group.trajectories]
        if not groups:
            raise ConfigError(
                f"stage '{stage}': the stage '{self.stage}' recorded no groups without failures: give it more steps"
            )
        return groups


@dataclass(frozen=True)
class CandidateGroups:
    """The states of a recorded run, and the sampler that is asked for actions there."""

    config: Candidates
    context: SourceContext
    stage: str
    states: Sequence[State]

    async def take(self, step: int) -> list[Group]:
        rng = np.random.default_rng(seed_of(self.context.runner.seed, self.stage, self.config.origin, step))
        chosen = rng.choice(len(self.states), min(self.config.width, len(self.states)), replace=False)
        groups = await asyncio.gather(*(self._group(step, slot, self.states[n]) for slot, n in enumerate(chosen)))
        for group in groups:
            self.context.rewards.remember(group, [Score(np.zeros(1, dtype=np.float32)) for _ in group.trajectories])
        return list(groups)

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    async def _group(self, step: int, slot: int, state: State) -> Group:
        label = f"{self.stage}/{self.config.origin}/{step}/{slot}"
        known = [state.trajectory.turns[state.turn].sample] if self.config.recorded else []
        prompt = Prompt(state.trajectory.prompt(state.turn), alone(state.trajectory, state.turn).images)
        seeds = [seed_of(self.context.runner.seed, label, number) for number in range(self.config.size - len(known))]
        sampled = await asyncio.gather(*(self._sample(prompt, seed) for seed in seeds))
        episodes = [
            Episode(
                f"{label}/{number}-{state.task.id}",
                state.task,
                (self._action(state, prompt, sample, recorded=number < len(known)),),
            )
            for number, sample in enumerate([*known, *sampled])
        ]
        return Group(slot, state.task, tuple(episodes), origin=self.config.origin)

    async def _sample(self, prompt: Prompt, seed: int) -> Sample:
        room = self.context.runner.max_context - len(prompt.tokens)
        params = replace(self.context.params, seed=seed, max_tokens=max(min(self.context.params.max_tokens, room), 1))
        return await self.context.runner.sampler.sample(prompt, params)

    def _action(self, state: State, prompt: Prompt, sample: Sample, *, recorded: bool) -> Trajectory:
        message = _message(self.context.renderer, sample)
        played = state.trajectory.turns[state.turn]
        turn = Turn(
            parent=-1,
            context=prompt.tokens,
            sample=sample,
            message=message,
            info={"malformed": float(message is None), "recorded": float(recorded)},
            images=prompt.images,
            state=played.state,
            observed=played.observed,
        )
        return Trajectory(state.trajectory.agent, (turn,), Ending.TURNS)


def _require_free(stage: str, groups: Sequence[Group]) -> None:
    """Refuses recorded actions that were chosen from a list."""
    if any(turn.sample.allowed is not None for turn in groups[0].trajectories[0].turns):
        raise ConfigError(
            f"stage '{stage}': groups: the actions of task '{groups[0].task.id}' were chosen from a list, which is not "
            "recorded, so that others cannot be sampled: record a run with agent.choices = false"
        )


def _message(renderer: Renderer, sample: Sample) -> Message | None:
    try:
        return renderer.parse(sample.tokens.tolist())
    except ActionError:
        return None
