"""Episodes without the turns that failed and were mended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Annotated

import numpy as np

from sojourn.call_text import action_text
from sojourn.config.fields import Range
from sojourn.errors import RewardError
from sojourn.protocols import Env, Sampler
from sojourn.rewards.reward_cache import ScoredGroup, score_group
from sojourn.sources.context import SourceContext, StageContext, require_one_seat
from sojourn.sources.segments import SampleReplay, course
from sojourn.sources.wrapped import WrappedGroups, WrappedSource, with_episode
from sojourn.types import Ending, Episode, FloatArray, Group, Prompt, Sample, SamplingParams, Trajectory, Turn

FAILED = ("malformed", "error")  # in the info of a turn, above 0


@dataclass(frozen=True, kw_only=True)
class Purified(WrappedSource):
    """The groups of another source, whose episodes are without the actions that failed and were then mended (after
    CLEANER, "Self-Purified Trajectories Boost Agentic Reinforcement Learning", of which an account was read).

    An action failed if it was refused (`malformed`) or the world reported an `error` of it. It was mended by the next
    one that did not fail, if the texts of the two resemble each other by at least `similarity`, the ratio of Python's
    `difflib` (0: whatever it is). The other actions are played again in a new play, so that prompts no longer show what
    was left out; where that takes another course (other rewards or states), the episode stays as it was. What the
    policy sampled keeps its tokens, and gets the log-probability that the present weights give it after its new prompt,
    so that it can be trained as on-policy. The metrics `purified_turns` and `purify_refused` count what was left out,
    and episodes that stayed as they were for that reason.

    In the paper, where an action is a thought and a program, a mended program takes the place of the failed one behind
    the first thought if the two are much alike, and else the whole turn does, as here.
    """

    similarity: Annotated[float, Range(0, 1)] = 0.0

    unverified = "the paper's text and code could not be read, an account of it was"

    @property
    def gives_samples(self) -> bool:
        return True

    async def check(self, stage: StageContext) -> None:
        await super().check(stage)
        require_one_seat(stage, "purified", "choose another source")

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> PurifiedGroups:
        return PurifiedGroups(self.base.bind(context, stage, steps, first), context, stage, self)


@dataclass
class PurifiedGroups(WrappedGroups):
    """Plays episodes again without their mended failures."""

    config: Purified
    _left_out: int = 0
    _refused: int = 0

    async def changed(self, step: int, scored: ScoredGroup) -> Group:
        numbers = list(dict.fromkeys(scored.group.owners))
        episodes = await asyncio.gather(*(self._purified(step, scored.group.episodes[n]) for n in numbers))
        for number, episode in zip(numbers, episodes, strict=True):
            if episode is None:
                continue
            [trajectory] = episode.trajectories
            alone = replace(scored.group, episodes=(episode,))
            try:
                scores = await score_group(self.context.rewards.reward, alone)
            except RewardError:  # its server failed: the episode stays as it was
                self._refused += 1
                continue
            self._left_out += len(scored.group.episodes[number].trajectories[0].turns) - len(trajectory.turns)
            scored = with_episode(scored, number, episode, scores)
        if any(episode is not None for episode in episodes):
            self.context.rewards.remember(scored.group, scored.scores)
        return scored.group

    def metrics(self) -> Mapping[str, float]:
        """Returns how many turns were left out since the last call, and how many episodes took another course."""
        left_out, refused = self._left_out, self._refused
        self._left_out = self._refused = 0
        return {**super().metrics(), "purified_turns": float(left_out), "purify_refused": float(refused)}

    async def _purified(self, step: int, episode: Episode) -> Episode | None:
        """Returns the episode without its mended failures; None where it has none, or cannot be played without."""
        [recorded] = episode.trajectories
        turns = [recorded.turns[number] for number in kept_turns(recorded, self.config.similarity)]
        if len(turns) == len(recorded.turns):
            return None

        def sampler_for(env: Env, label: str) -> Rescored:
            return Rescored(self.context.runner.sampler, SampleReplay([turn.sample for turn in turns]))

        label = f"{self.stage}/purified/{step}/{episode.id}"
        played = await self.context.runner.play_episode(episode.task, self.context.params, label, sampler_for)
        wanted = replace(recorded, turns=tuple(turns))
        if played.error is None and _ends_alike(played.trajectories[0], wanted):
            [trajectory] = played.trajectories
            return replace(played, trajectories=(replace(trajectory, ending=recorded.ending),))
        self._refused += 1
        return None


@dataclass
class Rescored:
    """Returns recorded samples in their order, with the log-probabilities that the engine gives them after the prompts
    of this play. Those before number `first` stay as they are, and so do those that no model drew, such as an expert's,
    or that were not drawn freely at a temperature of 1."""

    engine: Sampler
    recorded: SampleReplay
    first: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        sample = await self.recorded.sample(prompt, params)
        drawn = sample.versions.oldest >= 0 and sample.temperature == 1 and sample.allowed is None
        drawn = drawn and self.recorded.returned > self.first
        if not drawn or not len(sample.tokens):
            return sample
        whole = Prompt(np.concatenate([prompt.tokens, sample.tokens]), prompt.images)
        logprobs = (await self.engine.score(whole))[-len(sample.tokens) :]
        return replace(sample, logprobs=np.asarray(logprobs, dtype=np.float32))

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.engine.score(prompt)

    async def close(self) -> None:
        """Does nothing: whoever opened the engine closes it."""


def kept_turns(trajectory: Trajectory, similarity: float = 0.0) -> list[int]:
    """Returns the numbers of the turns that did not fail, or were not mended."""
    failing: list[int] = []
    kept: list[int] = []
    for number, turn in enumerate(trajectory.turns):
        if any(turn.info.get(name, 0.0) > 0 for name in FAILED):
            failing.append(number)
            continue
        kept += [one for one in failing if _alike(trajectory.turns[one], turn) < similarity]
        kept.append(number)
        failing = []
    return [*kept, *failing]


def _alike(one: Turn, other: Turn) -> float:
    """Returns how much the texts of two actions are alike, from 0 to 1; a text that could not be read is like none."""
    if one.message is None or other.message is None:
        return 0.0
    return SequenceMatcher(None, action_text(one.message), action_text(other.message)).ratio()


def _ends_alike(one: Trajectory, other: Trajectory) -> bool:
    """Returns whether two plays took the same course, and the world ended both or neither."""
    return course(one) == course(other) and (one.ending is Ending.DONE) == (other.ending is Ending.DONE)
