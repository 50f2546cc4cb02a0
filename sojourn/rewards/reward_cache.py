"""Scores every group once, and keeps the scores until the step is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sojourn.errors import ConfigError, InfrastructureError, RewardError, cause, leaf, recorded
from sojourn.protocols import Reward
from sojourn.types import Group, Score

MAX_ATTEMPTS = 3
FIRST_WAIT_S = 0.5  # before the second attempt; it doubles from one attempt to the next
HTTP_CLIENTS = frozenset({"httpx", "httpcore", "requests", "urllib3", "aiohttp", "openai", "anthropic"})


class ScoredGroup(NamedTuple):
    group: Group
    scores: list[Score]

    def select(self, numbers: Collection[int]) -> ScoredGroup:
        """Returns the group with the episodes of these numbers alone, and their scores."""
        kept = [score for score, owner in zip(self.scores, self.group.owners, strict=True) if owner in numbers]
        episodes = tuple(episode for number, episode in enumerate(self.group.episodes) if number in numbers)
        return ScoredGroup(replace(self.group, episodes=episodes), kept)


@dataclass
class RewardCache:
    """Caches scores: a group that was scored to decide about a redraw is not scored again."""

    reward: Reward
    _known: dict[tuple[str, ...], tuple[int, ScoredGroup]] = field(default_factory=dict)  # with the number of its call
    _calls: int = 0

    async def __call__(self, groups: Sequence[Group]) -> list[list[Score]]:
        return await asyncio.gather(*(self.score(group) for group in groups))

    async def score(self, group: Group) -> list[Score]:
        key = tuple(episode.id for episode in group.episodes)
        if key not in self._known:
            self._calls += 1
            call = self._calls
            self._known[key] = call, ScoredGroup(group, await score_group(self.reward, group))
        return self._known[key][1].scores

    def pop_before(self, slot: int) -> list[ScoredGroup]:
        """Removes and returns everything that was scored in slots below `slot`, redrawn and dropped groups included.

        They are ordered by slot, and within one slot by the order of play, whichever of its groups was scored first.
        """
        popped = {key: known for key, known in self._known.items() if known[1].group.slot < slot}
        for key in popped:
            del self._known[key]
        return [scored for _, scored in sorted(popped.values(), key=lambda known: (known[1].group.slot, known[0]))]


async def judged(score: Callable[[Group], Awaitable[list[Score]]], group: Group) -> tuple[Group, list[Score]]:
    """Returns a group and its scores. Where its reward gave no answer, its episodes have that as their error, as those
    of a world that failed do, and there are no scores."""
    try:
        return group, await score(group)
    except RewardError as error:
        failed = [e if e.error is not None else replace(e, error=recorded(error)) for e in group.episodes]
        return replace(group, episodes=tuple(failed)), []


async def _asked(reward: Reward, group: Group) -> list[Score]:
    """Returns what the reward answers; after a failure of the network it is asked again, up to `MAX_ATTEMPTS` times in
    all. Raises `RewardError` where it does not answer."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await reward(group)
        except Exception as error:
            if not _is_of_network(error):
                raise
            if attempt == MAX_ATTEMPTS:
                raise RewardError(
                    f"the reward {type(reward).__module__}:{type(reward).__qualname__} gave no answer for task "
                    f"{group.task.id} in {MAX_ATTEMPTS} attempts: {cause(error)}"
                ) from error
        await asyncio.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _is_of_network(error: BaseException) -> bool:
    """Returns whether an error is of a server or the way to it, and not of the reward's own code."""
    first = leaf(error)
    packages = {kind.__module__.partition(".")[0] for kind in type(first).__mro__}
    return isinstance(first, InfrastructureError | ConnectionError | TimeoutError) or bool(packages & HTTP_CLIENTS)


async def score_group(reward: Reward, group: Group) -> list[Score]:
    """Returns a reward's scores of a group.

    Raises `ConfigError` unless there is one score for each trajectory, with a finite number for each turn, and
    `RewardError` where a server that the reward asks does not answer.
    """
    scores = await _asked(reward, group) if group.trajectories else []
    if len(scores) != len(group.trajectories):
        raise ConfigError(
            f"the reward gave {len(scores)} scores for {len(group.trajectories)} trajectories of slot "
            f"{group.slot}: a reward returns one score for each of group.trajectories"
        )
    for owner, trajectory, score in zip(group.owners, group.trajectories, scores, strict=True):
        name = group.episodes[owner].id
        if len(score.turns) != len(trajectory.turns):
            raise ConfigError(
                f"the reward gave {len(score.turns)} numbers for the {len(trajectory.turns)} turns of episode {name}: "
                "a score has one for each turn"
            )
        if wrong := [turn for turn, value in enumerate(score.turns) if not np.isfinite(value)]:
            raise ConfigError(
                f"the reward of turn {wrong[0]} of episode {name} is {score.turns[wrong[0]]}: expected a "
                "finite number for each turn: look at what the world or the reward divides by"
            )
    return scores
