"""Plays that are told again with thoughts: before each action, what other plays of the task came to from there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np

from sojourn.agents.plain import Plain
from sojourn.call_text import action_text
from sojourn.config.fields import NONBLANK, Range
from sojourn.errors import ConfigError, RenderError
from sojourn.protocols import Env, Renderer
from sojourn.rewards.reward_cache import ScoredGroup
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, require_imitation, require_one_seat
from sojourn.sources.segments import SampleReplay, course
from sojourn.sources.wrapped import WrappedGroups, WrappedSource
from sojourn.sources.wrong_turns import divergence
from sojourn.types import Episode, Group, Message, Role, Sample, Score, Stop, Trajectory, Turn, Versions

ORIGIN = "reasoned"


@dataclass(frozen=True, kw_only=True)
class Reasoned(WrappedSource):
    """The successful plays of another source's groups, told with thoughts: before each action, what it and the actions
    that other plays of the group took there led to, and which one to take (ReSim of Dyna-Mind: Yu et al. 2025,
    arXiv:2510.09577).

    A model that imitates this simulates before it acts, with what the world really showed. A thought tells the action
    of the play and up to `others` different ones, in random order, each with the next `depth` actions and the first
    `shown` characters of what the world answered, and, where the play ended within these, that it `succeeds` or
    `fails`. Other plays are those that were shown and did the same until then: branches, what a search tried
    (`searched`), and plays from the start. A thought that has no room in `sampling.max_tokens` tells fewer of them;
    where not even the play itself has room, or something shown would end a thought, it is empty. With `everywhere` =
    false it is empty, too, where no other action was tried.

    The plays are played again, with their earlier thoughts in the context; those that take another course (other
    rewards or states) are left out and counted in the metric `reasoned_refused`; `reasoned_options` is how many actions
    a thought tells in the mean. Thoughts were not sampled, so that they can be imitated only; `renderer.thinking` must
    be true. In the paper a model gives values to the plays, tells them in its own words, and chooses; here the plays
    are told as they were, by their real ends.
    """

    depth: Annotated[int, Range(1)] = 3
    others: Annotated[int, Range(0)] = 3
    shown: Annotated[int, Range(1)] = 200
    everywhere: bool = True
    succeeds: Annotated[str, NONBLANK] = "This succeeds."
    fails: Annotated[str, NONBLANK] = "This fails."

    unverified = "the paper's text could not be read, its abstract and accounts of it were"

    @property
    def gives_samples(self) -> bool:
        return True

    @property
    def origin(self) -> str:
        return ORIGIN

    @property
    def size(self) -> None:
        return None

    @property
    def forks(self) -> bool:
        return False  # each play is told as a whole

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        require_one_seat(stage, ORIGIN, "choose another source")
        require_imitation(stage, "a thought that is told", ORIGIN)
        if isinstance(stage.agent, Plain) and stage.agent.choices:
            raise ConfigError(
                f"stage '{stage.name}': reasoned tells thoughts, which are not among the choices that the agent is "
                "restricted to: set agent.choices = false"
            )
        if stage.renderer is not None and not _thinks(stage.renderer):
            raise ConfigError(
                f"stage '{stage.name}': reasoned tells thoughts, which the renderer {type(stage.renderer).__name__} "
                "does not write: set renderer.thinking = true"
            )

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> ReasonedGroups:
        return ReasonedGroups(self.base.bind(context, stage, steps, first), context, stage, self)


def _thinks(renderer: Renderer) -> bool:
    try:
        renderer.encode_reply(Message(Role.ASSISTANT, "a", "b"))
    except RenderError:
        return False
    return True


class Option(NamedTuple):
    """Holds the turns of a play from one of them on, and whether the play succeeded."""

    turns: Sequence[Turn]
    success: bool


@dataclass
class ReasonedGroups(WrappedGroups):
    """Tells the plays of each group of its base again."""

    config: Reasoned
    _told: int = 0
    _refused: int = 0
    _thoughts: int = 0
    _options: int = 0

    async def take(self, step: int) -> list[Group]:
        return [group for group in await super().take(step) if group.episodes]

    async def changed(self, step: int, scored: ScoredGroup) -> Group:
        """Returns a group of the plays that were told; it is empty where none was."""
        group, played = scored.group, scored.group.trajectories
        told = await asyncio.gather(
            *(
                self._again(group.episodes[owner], trajectory, played, score)
                for owner, trajectory, score in zip(group.owners, played, scored.scores, strict=True)
                if trajectory.success
            )
        )
        kept = [pair for pair in told if pair is not None]
        self._told, self._refused = self._told + len(kept), self._refused + len(told) - len(kept)
        changed = Group(group.slot, group.task, tuple(episode for episode, _ in kept), ORIGIN)
        self.context.rewards.remember(changed, [score for _, score in kept])
        return changed

    def metrics(self) -> Mapping[str, float]:
        """Returns how many plays were told since the last call, how many took another course, and how many actions a
        thought told in the mean."""
        counts = {"reasoned": float(self._told), "reasoned_refused": float(self._refused)}
        told = {"reasoned_options": self._options / self._thoughts} if self._thoughts else {}
        self._told = self._refused = self._thoughts = self._options = 0
        return {**super().metrics(), **counts, **told}

    async def _again(
        self, episode: Episode, play: Trajectory, group: Sequence[Trajectory], score: Score
    ) -> tuple[Episode, Score] | None:
        label = f"{self.stage}/{ORIGIN}/{episode.id}"
        rng = np.random.default_rng(seed_of(self.context.runner.seed, label))
        parted = [(divergence(other, play), other) for other in group if other is not play]
        samples = [
            self._sample(turn, [other for at, other in parted if at == number], play, number, rng)
            for number, turn in enumerate(play.turns)
        ]

        def sampler_for(env: Env, label: str) -> SampleReplay:
            return SampleReplay(samples)

        played = await self.context.runner.play_episode(episode.task, self.context.params, label, sampler_for)
        same = played.error is None and course(played.trajectories[0]) == course(play)
        return (played, score) if same else None

    def _sample(
        self, turn: Turn, others: Sequence[Trajectory], play: Trajectory, number: int, rng: np.random.Generator
    ) -> Sample:
        """Returns the turn's action behind a thought; an action that could not be read stays as it was said."""
        if turn.message is None:
            return turn.sample
        options: list[Option] = []
        if others or self.config.everywhere:
            tried = [Option(other.turns[number:], other.success) for other in others]
            options = [Option(play.turns[number:], play.success), *distinct(tried, rng)]
        for count in range(min(len(options), 1 + self.config.others), -1, -1):
            shuffled = [options[n] for n in rng.permutation(count)]
            if (tokens := self._encoded(turn.message, shuffled)) is not None:
                self._thoughts, self._options = self._thoughts + 1, self._options + count
                return Sample(tokens, np.zeros(len(tokens), np.float32), Versions(-1, -1), Stop.END)
        return turn.sample

    def _encoded(self, message: Message, options: Sequence[Option]) -> np.ndarray | None:
        """Returns the tokens of an action whose thought tells these options; None where it has no room or cannot be
        written."""
        config = self.config
        lines = [told(option, config) for option in options]
        thought = "\n".join([*lines, f"So: {action_text(message)}"] if lines else [])
        try:
            tokens = self.context.renderer.encode_reply(replace(message, thought=thought))
        except RenderError:
            return None
        return np.asarray(tokens, dtype=np.int64) if len(tokens) <= self.context.params.max_tokens else None


def distinct(options: Sequence[Option], rng: np.random.Generator) -> list[Option]:
    """Returns the options in random order, of those with the same first action the first alone, and none whose first
    action could not be read."""
    drawn = [options[n] for n in rng.permutation(len(options))]
    readable = [option for option in drawn if option.turns[0].message is not None]
    return list({action_text(option.turns[0].message): option for option in reversed(readable)}.values())[::-1]


def told(option: Option, config: Reasoned) -> str:
    """Returns one line: each of the next actions with what the world showed after it, and the end where it came."""
    turns = option.turns[: config.depth]
    parts: list[str] = []
    for turn, after in zip(turns, [*option.turns[1:], None], strict=False):
        action = action_text(turn.message) if turn.message is not None else "something unreadable"
        seen = " ".join(" ".join(message.text for message in after.observed).split()) if after is not None else ""
        parts.append(f"{action} -> {seen[: config.shown].rstrip('.')}" if seen else f"{action} ->")
    if len(option.turns) <= config.depth:
        parts[-1] += f" {config.succeeds if option.success else config.fails}"
    return "If " + "; then ".join(parts)
