"""The rows of the episode index: what can be searched without opening a record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import numpy as np

from sojourn.errors import RecordError
from sojourn.record.step_file import Record
from sojourn.types import Credit, Group, Score


@dataclass(frozen=True)
class Entry:
    """One row of the index. `part` and `number` say where in the step's files the record is, `place` in which group.

    `reward` and `success` (1 or 0) are means over the trainable trajectories, None where the episode failed.
    """

    stage: str
    step: int
    part: int
    number: int
    place: int
    slot: int
    id: str
    task: str
    env: str
    tags: tuple[str, ...]
    split: str
    seed: int
    reward: float | None
    success: float | None
    turns: int
    sampled: int
    ending: str | None
    error: str | None
    seconds: float
    parts: Mapping[str, float]


COLUMNS = tuple(field.name for field in fields(Entry))


def to_row(entry: Entry) -> tuple[Any, ...]:
    """As SQLite holds it: lists and mappings as JSON, and the seed as text, which may not fit 64 bits."""
    values = vars(entry) | {"tags": json.dumps(entry.tags), "parts": json.dumps(entry.parts), "seed": str(entry.seed)}
    return tuple(values.values())


def from_row(row: Sequence[Any]) -> Entry:
    values = dict(zip(COLUMNS, row, strict=True))
    values["tags"], values["parts"] = tuple(json.loads(values["tags"])), json.loads(values["parts"])
    values["seed"] = int(values["seed"])
    return Entry(**values)


def describe(
    stage: str,
    step: int,
    part: int,
    place: int,
    groups: Sequence[Group],
    scores: Sequence[Sequence[Score]] | None,
    credits: Sequence[Sequence[Credit]] | None,
) -> tuple[list[Record], list[Entry]]:
    """The records of the groups' episodes in order, and their rows; raises RecordError where judgements do not fit."""
    records: list[Record] = []
    entries: list[Entry] = []
    for at, group in enumerate(groups):
        judged = _aligned(group, "scores", scores, at)
        credited = _aligned(group, "credits", credits, at)
        for episode in group.episodes:
            count = sum(t.trainable for t in episode.trajectories) if episode.error is None else 0
            record = Record(episode, tuple(islice(judged, count)), tuple(islice(credited, count)))
            entries.append(_entry(record, stage, step, part, len(records), place + at, group))
            records.append(record)
    return records, entries


def _aligned(group: Group, name: str, values: Sequence[Sequence[Any]] | None, at: int) -> Iterator[Any]:
    if values is None:
        return iter(())
    if len(values) <= at or len(values[at]) != len(group.trajectories):
        found = len(values[at]) if len(values) > at else "no"
        raise RecordError(
            f"slot {group.slot} has {len(group.trajectories)} trajectories to judge but {found} {name}: "
            "give one for each trajectory of `group.trajectories`"
        )
    return iter(values[at])


def _entry(record: Record, stage: str, step: int, part: int, number: int, place: int, group: Group) -> Entry:
    episode, task = record.episode, record.episode.task
    seats = [t for t in episode.trajectories if t.trainable]
    judged = seats if episode.error is None else []
    rewards = [score.total for score in record.scores] or [t.reward for t in judged]
    names = {name for score in record.scores for name in score.parts}
    return Entry(
        stage=stage,
        step=step,
        part=part,
        number=number,
        place=place,
        slot=group.slot,
        id=episode.id,
        task=task.id,
        env=task.env,
        tags=task.tags,
        split=task.split,
        seed=task.seed,
        reward=float(np.mean(rewards)) if rewards else None,
        success=float(np.mean([t.success for t in judged])) if judged else None,
        turns=sum(len(t.turns) for t in seats),
        sampled=sum(len(turn.sample.tokens) for t in seats for turn in t.turns),
        ending=str(seats[0].ending) if seats else None,
        error=episode.error,
        seconds=float(episode.seconds),
        parts={n: float(np.mean([s.parts[n] for s in record.scores if n in s.parts])) for n in sorted(names)},
    )
