"""Puts a recorded group together from the records of its episodes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.types import Credit, Episode, Group, Score, Trajectory


@dataclass(frozen=True)
class GroupRecord:
    """A group with its judgements; `credits` is empty where none were recorded."""

    stage: str
    step: int
    group: Group
    scores: tuple[Score, ...]
    credits: tuple[Credit, ...]


def group_of(members: Sequence[tuple[EpisodeRow, Record | RecordError]]) -> GroupRecord | None:
    """Returns the group of the records that could be read, None if none could; warns of each that is left out."""
    records: list[Record] = []
    for row, loaded in members:
        if isinstance(loaded, RecordError):
            warnings.warn(f"episode {row.id} is left out: {loaded}", RuntimeWarning, stacklevel=3)
        else:
            records.append(loaded)
    if not records:
        return None
    first = members[0][0]
    return GroupRecord(
        stage=first.stage,
        step=first.step,
        group=Group(
            first.slot,
            records[0].episode.task,
            _joined([record.episode for record in records]),
            first.origin or "policy",
        ),
        scores=tuple(score for record in records for score in record.scores),
        credits=tuple(credit for record in records for credit in record.credits),
    )


def _joined(episodes: Sequence[Episode]) -> tuple[Episode, ...]:
    """Returns the episodes with branches that share their first samples with the episode that they left, as they did
    when they were played; each is recorded whole."""
    known: dict[str, Episode] = {}
    joined: list[Episode] = []
    for episode in episodes:
        branch, origin = episode.branch, None if episode.branch is None else known.get(episode.branch.of)
        if branch is not None and origin is not None and len(origin.trajectories) == len(episode.trajectories):
            places = zip(episode.trajectories, origin.trajectories, branch.turns, strict=True)
            episode = replace(episode, trajectories=tuple(_sharing(*place) for place in places))
        known[episode.id] = episode
        joined.append(episode)
    return tuple(joined)


def _sharing(trajectory: Trajectory, origin: Trajectory, count: int) -> Trajectory:
    turns = list(trajectory.turns)
    for number, other in enumerate(origin.turns[:count]):
        turns[number] = replace(turns[number], sample=other.sample)
    return replace(trajectory, turns=tuple(turns))
