"""Scores every group once, and keeps the scores until the step is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sojourn.config.registry import shown
from sojourn.errors import ConfigError, InfrastructureError, RankError, RewardError, cause, leaf, recorded
from sojourn.finite import as_finite
from sojourn.protocols import Reward
from sojourn.types import Group, Score, Trajectory

MAX_ATTEMPTS = 3
RECALLED = -1  # of a group whose scores were known, instead of the number of a call
ALL_SLOTS = 2**62  # a number above that of any slot
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
    _known: dict[tuple[str, ...], tuple[int, ScoredGroup]] = field(
        default_factory=dict
    )  # each group with the number of the call of `reward` that scored it, or RECALLED
    _calls: int = 0

    async def __call__(self, groups: Sequence[Group]) -> list[list[Score]]:
        return await asyncio.gather(*(self.score(group) for group in groups))

    async def score(self, group: Group) -> list[Score]:
        key = _key(group)
        if key not in self._known:
            self._calls += 1
            call = self._calls
            self._known[key] = call, ScoredGroup(group, await score_group(self.reward, group))
        return self._known[key][1].scores

    def add(self, group: Group, scores: Sequence[Score]) -> None:
        """Takes the scores of a group that was newly played from whoever knows them: the reward is not asked."""
        self._calls += 1
        self._known[_key(group)] = self._calls, ScoredGroup(group, list(scores))

    def remember(self, group: Group, scores: Sequence[Score]) -> None:
        """Takes over the scores that a group was given before: it is not scored again, nor is it newly played."""
        self._known[_key(group)] = RECALLED, ScoredGroup(group, list(scores))

    def pop(self, groups: Sequence[Group], *, below: int) -> list[ScoredGroup]:
        """Removes these groups and all in slots with numbers below `below`, and returns those that were scored since
        the last call, redrawn and dropped groups included.

        They are ordered by slot, and within a slot in the order in which their scoring began, which is that of play.
        """
        given = set(map(_key, groups))
        popped = {k: known for k, known in self._known.items() if k in given or known[1].group.slot < below}
        for key in popped:
            del self._known[key]
        scored = [known for known in popped.values() if known[0] != RECALLED]
        return [one for _, one in sorted(scored, key=lambda known: (known[1].group.slot, known[0]))]

    def clear(self) -> None:
        """Forgets everything, as what a stage played ahead of its end belongs to no other stage."""
        self._known.clear()


def _key(group: Group) -> tuple[str, ...]:
    return tuple(episode.id for episode in group.episodes)


async def scored_or_failed(score: Callable[[Group], Awaitable[list[Score]]], group: Group) -> tuple[Group, list[Score]]:
    """Returns a group and its scores. Where its reward gave no answer, the episodes without one have that as their
    error, as those of a world that failed do; where these are not all, the others are scored without them."""
    try:
        return group, await score(group)
    except RewardError as error:
        left = _failed(group, error)
        if not left.trajectories:
            return left, []
    return await scored_or_failed(score, left)


def _failed(group: Group, error: RewardError) -> Group:
    """Returns a group in which the episodes that an error names have it, and all of them where it names none, or where
    they branch, so that one has turns of another."""
    whole = {episode.id for episode in group.episodes if episode.error is None}
    branched = any(episode.branch is not None for episode in group.episodes)
    named = whole if branched else whole.intersection(error.episodes) or whole
    failed = [replace(e, error=recorded(error)) if e.id in named else e for e in group.episodes]
    return replace(group, episodes=tuple(failed))


async def _asked(reward: Reward, group: Group) -> list[Score]:
    """Returns what the reward answers; after a failure of the network it is asked again, up to `MAX_ATTEMPTS` times in
    all. Raises `RewardError` where it does not answer, or says so itself, and at once the `RankError` of a model that
    the run trains, or has open for the reward, as the run then goes on from its last checkpoint."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            answer = reward(group)
            if not isinstance(answer, Awaitable):
                raise ConfigError(
                    f"the reward {_name(reward)} returned {type(answer).__name__} {answer!r:.60} at once: a reward is "
                    "asked asynchronously: write `async def __call__`"
                )
            return await answer
        except Exception as error:
            if isinstance(leaf(error), RewardError | RankError) or not _is_of_network(error):
                raise
            if attempt == MAX_ATTEMPTS:
                raise RewardError(
                    f"the reward {_name(reward)} gave no answer for task "
                    f"{group.task.id} in {MAX_ATTEMPTS} attempts: {cause(error)}"
                ) from error
        await asyncio.sleep(FIRST_WAIT_S * 2 ** (attempt - 1))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _name(reward: Reward) -> str:
    return f"{type(reward).__module__}:{type(reward).__qualname__}"


def _is_of_network(error: BaseException) -> bool:
    """Returns whether an error is of a server or the way to it, and not of the reward's own code."""
    first = leaf(error)
    packages = {kind.__module__.partition(".")[0] for kind in type(first).__mro__}
    return isinstance(first, InfrastructureError | ConnectionError | TimeoutError) or bool(packages & HTTP_CLIENTS)


async def score_group(reward: Reward, group: Group) -> list[Score]:
    """Returns a reward's scores of a group.

    Raises `ConfigError` unless there is one score for each trajectory, with a finite number for each turn and part, and
    `RewardError` where a server that the reward asks does not answer.
    """
    scores = await _asked(reward, group) if group.trajectories else []
    if len(scores) != len(group.trajectories):
        raise ConfigError(
            f"the reward gave {len(scores)} scores for {len(group.trajectories)} trajectories of slot "
            f"{group.slot}: a reward returns one score for each of group.trajectories"
        )
    if wrong := [s for s in scores if not isinstance(s, Score) or not isinstance(s.turns, np.ndarray)]:
        raise ConfigError(
            f"the reward {_name(reward)} gave {wrong[0]!r:.100} as a score: expected a sojourn.types.Score whose "
            "`turns` is a numpy array with a number for each turn"
        )
    for owner, trajectory, score in zip(group.owners, group.trajectories, scores, strict=True):
        _require_sound(score, trajectory, group.episodes[owner].id)
    return scores


def _require_sound(score: Score, trajectory: Trajectory, name: str) -> None:
    """Requires a finite number for each turn of an episode, as its outcome, and as each part."""
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
    outcome = {} if score.outcome is None else {"outcome": score.outcome}
    for part, value in {**{f"part '{part}'": value for part, value in score.parts.items()}, **outcome}.items():
        if as_finite(value) is None:
            raise ConfigError(
                f"the {part} of the reward of episode {name} is {shown(value)}: expected a finite number: look at "
                "what the reward divides by"
            )
