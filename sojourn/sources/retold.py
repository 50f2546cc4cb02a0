"""What sources share that play recorded episodes again, with their model told something else."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from sojourn.config.fields import Kind
from sojourn.errors import ConfigError
from sojourn.protocols import Agent, Env, SourceConfig
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_one_seat
from sojourn.sources.imported import Imported
from sojourn.sources.replay import Replay
from sojourn.sources.segments import SampleReplay, course
from sojourn.sources.wrapped import WrappedGroups, WrappedSource
from sojourn.types import Episode, Group, Score


@dataclass(frozen=True, kw_only=True)
class Retold(WrappedSource):
    """Base of such sources: `told` returns the agent that an episode is played again with, of the kind `agent_name`,
    and `what` names what that one tells the model, in metrics."""

    base: Annotated[SourceConfig[SourceContext], Kind("groups")] = field(default_factory=Replay)

    name: ClassVar[str]
    what: ClassVar[str]
    agent_name: ClassVar[str]
    agent_type: ClassVar[type]
    new_each_step: ClassVar[bool] = False  # whether an episode is told something else whenever it is taken

    @property
    def gives_samples(self) -> bool:
        return True

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

    @abstractmethod
    def told(self, agent: Agent, score: Score, seed: int) -> Agent: ...

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        if not isinstance(stage.agent, self.agent_type):
            raise ConfigError(
                f"stage '{stage.name}': {self.name} tells the agent something, but the agent is "
                f"{type(stage.agent).__name__}: set agent = {{name = '{self.agent_name}'}}"
            )
        require_one_seat(stage, self.name, "choose another source")

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> RetoldGroups:
        return RetoldGroups(self.base.bind(context, stage, steps, first), context, stage, self)


@dataclass
class RetoldGroups(WrappedGroups):
    """Plays recorded episodes again, each with the agent that it is told by."""

    config: Retold
    _shown: int = 0
    _refused: int = 0

    async def take(self, step: int) -> list[Group]:
        return [group for group in await super().take(step) if group.episodes]

    async def changed(self, step: int, scored: ScoredGroup) -> Group:
        """Returns a group of the episodes that got the same again; it is empty where none did."""
        group = scored.group
        pairs = zip((group.episodes[owner] for owner in group.owners), scored.scores, strict=True)
        told = await asyncio.gather(*(self._told(step, episode, score) for episode, score in pairs))
        kept = [pair for pair in told if pair is not None]
        self._shown, self._refused = self._shown + len(kept), self._refused + len(told) - len(kept)
        changed = replace(group, episodes=tuple(episode for episode, _ in kept))
        self.context.rewards.remember(changed, [score for _, score in kept])
        return changed

    def metrics(self) -> Mapping[str, float]:
        """Returns how many episodes were told something since the last call, and how many took another course."""
        shown, refused = self._shown, self._refused
        self._shown = self._refused = 0
        counts = {f"{self.config.what}_shown": float(shown), f"{self.config.what}_refused": float(refused)}
        return {**super().metrics(), **counts}

    async def _told(self, step: int, episode: Episode, score: Score) -> tuple[Episode, Score] | None:
        own, [recorded] = self.context.runner, episode.trajectories
        samples = [turn.sample for turn in recorded.turns]

        def sampler_for(env: Env, label: str) -> SampleReplay:
            return SampleReplay(samples)

        time = f"/{step}" if self.config.new_each_step else ""
        label = f"{self.stage}/{self.config.name}{time}/{episode.id}"
        agent = self.config.told(own.agent, score, seed_of(own.seed, label))
        runner, before = replace(own, agent=agent), own.errors
        played = await runner.play_episode(episode.task, self.context.params, label, sampler_for)
        own.errors += runner.errors - before
        same = played.error is None and course(played.trajectories[0]) == course(recorded)
        return (played, score) if same else None
