"""Recorded episodes, each of which is told the return that it got."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from sojourn.agents.return_conditioned import ReturnConditioned
from sojourn.config.fields import Kind
from sojourn.errors import ConfigError
from sojourn.protocols import Env, SourceConfig
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.rollout.world import seats_of_world, worlds_of
from sojourn.sources.context import SourceContext, StageContext
from sojourn.sources.imported import Imported
from sojourn.sources.replay import Replay
from sojourn.sources.segments import SampleReplay
from sojourn.sources.wrapped import WrappedGroups, WrappedSource
from sojourn.types import Episode, Group, Score, Trajectory


@dataclass(frozen=True, kw_only=True)
class WithReturns(WrappedSource):
    """The groups of `base`, which were recorded, with the agent `return_conditioned` told in each episode the return
    that it got, to be imitated (after Decision Transformer: Chen et al. 2021, arXiv:2106.01345, and upside-down
    reinforcement learning: Srivastava et al. 2019, arXiv:1912.02877).

    So all episodes are learned from, bad ones too, as examples of what they got; then the agent's `target` asks for
    better ones. An episode's return is its whole reward in the recipe. The episodes are played again with their
    recorded actions, in the same tasks, so that the world must be one that the actions and the task determine. An
    episode that then takes another course, gets other rewards, or no longer fits into the context is left out and
    counted in `returns_refused`; `returns_shown` counts the others.
    """

    base: Annotated[SourceConfig[SourceContext], Kind("groups")] = field(default_factory=Replay)

    unverified = "the abstracts of both papers and accounts of them were read, not their texts"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.live:
            raise ValueError(
                "base gives groups that the policy plays: name a source of recorded ones, such as {name = 'earlier', "
                "stage = 'collect'}, or {name = 'replay'} beside live ones"
            )
        if isinstance(self.base, Imported):
            raise ValueError(
                "base is imported: its conversations may be of any world, so that they cannot be played again: use "
                "{name = 'folder'} for a recorded run of this world"
            )

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        if not isinstance(stage.agent, ReturnConditioned):
            raise ConfigError(
                f"stage '{stage.name}': with_returns tells the agent a return, but the agent is "
                f"{type(stage.agent).__name__}: set agent = {{name = 'return_conditioned'}}"
            )
        if seats := next((s for world in worlds_of(stage.env) if len(s := seats_of_world(world)) > 1), None):
            raise ConfigError(
                f"stage '{stage.name}': with_returns plays the episodes of one seat again, but the world has the seats "
                f"{', '.join(seats)}: choose another source"
            )

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> GroupsWithReturns:
        return GroupsWithReturns(self.base.bind(context, stage, steps, first), context, stage)


@dataclass
class GroupsWithReturns(WrappedGroups):
    """Plays recorded episodes again, with their returns shown."""

    _shown: int = 0
    _refused: int = 0

    async def take(self, step: int) -> list[Group]:
        return [group for group in await super().take(step) if group.episodes]

    async def changed(self, step: int, scored: ScoredGroup) -> Group:
        """Returns a group of the episodes that got the same again; it is empty where none did."""
        group = scored.group
        pairs = zip((group.episodes[owner] for owner in group.owners), scored.scores, strict=True)
        told = await asyncio.gather(*(self._told(episode, score) for episode, score in pairs))
        kept = [pair for pair in told if pair is not None]
        self._shown, self._refused = self._shown + len(kept), self._refused + len(told) - len(kept)
        changed = replace(group, episodes=tuple(episode for episode, _ in kept))
        self.context.rewards.remember(changed, [score for _, score in kept])
        return changed

    def metrics(self) -> Mapping[str, float]:
        """Returns how many episodes were told their returns since the last call, and how many took another course."""
        shown, refused = self._shown, self._refused
        self._shown = self._refused = 0
        return {**super().metrics(), "returns_shown": float(shown), "returns_refused": float(refused)}

    async def _told(self, episode: Episode, score: Score) -> tuple[Episode, Score] | None:
        own, [recorded] = self.context.runner, episode.trajectories
        assert isinstance(own.agent, ReturnConditioned)
        samples = [turn.sample for turn in recorded.turns]

        def sampler_for(env: Env, label: str) -> SampleReplay:
            return SampleReplay(samples)

        runner, before = replace(own, agent=replace(own.agent, target=score.total)), own.errors
        label = f"{self.stage}/with_returns/{episode.id}"
        played = await runner.play_episode(episode.task, self.context.params, label, sampler_for)
        own.errors += runner.errors - before
        same = played.error is None and _course(played.trajectories[0]) == _course(recorded)
        return (played, score) if same else None


def _course(trajectory: Trajectory) -> list[tuple[float, str | None]]:
    """Returns the reward and the world's state of each turn, as far as the world tells it."""
    return [(turn.reward, turn.state) for turn in trajectory.turns]
