"""The rows of the episode index: what can be searched without opening a record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import numpy as np

from sojourn.errors import RecordError
from sojourn.record.episodes.step_file import Record
from sojourn.types import Credit, Group, Score, Stop, Streams


@dataclass(frozen=True)
class Entry:
    """One row of the index. `part` and `number` say where in the step's files the record is, `place` in which group.

    `reward` and `success` (1 or 0) are means over the trainable trajectories, None where the episode failed. The turns,
    tokens, tools and versions are those of trainable seats too. Rows that an older Sojourn wrote have the defaults.
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
    tools: tuple[str, ...] = ()  # names of the tools called, each once
    malformed: int = 0  # turns whose action could not be read or done
    cut_off: int = 0  # turns that ran out of tokens
    oldest: int | None = None  # versions of the weights that the tokens were drawn with, None where no weights drew any
    newest: int | None = None
    advantage: float | None = None  # mean over the sampled tokens, None without credit


COLUMNS = tuple(field.name for field in fields(Entry))
FIRST = COLUMNS[: COLUMNS.index("tools")]  # the columns that every Sojourn wrote
_LISTS = ("tags", "tools")


def to_row(entry: Entry) -> tuple[Any, ...]:
    """As SQLite holds it: lists and mappings as JSON, and the seed as text, which may not fit 64 bits."""
    texts = {name: json.dumps(getattr(entry, name)) for name in (*_LISTS, "parts")}
    values = (vars(entry) | texts | {"seed": str(entry.seed)}).values()
    return tuple(_sound(value) if isinstance(value, str) else value for value in values)


def _sound(text: str) -> str:
    """The text with half characters, which SQLite refuses, spelled out: an error may come from anywhere."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def from_row(row: Sequence[Any]) -> Entry:
    """Of all columns, or of the first ones."""
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=False))
    lists: dict[str, Any] = {name: tuple(json.loads(values[name])) for name in _LISTS if name in values}
    return Entry(**(values | lists | {"parts": json.loads(values["parts"]), "seed": int(values["seed"])}))


def from_json(data: Mapping[str, Any]) -> Entry:
    """Of the row that a step's file carries, an older one too; raises TypeError or KeyError where it is no row."""
    values: dict[str, Any] = {name: data[name] for name in COLUMNS if name in data}
    values |= {name: tuple(values[name]) for name in _LISTS if name in values}
    return Entry(**values)


def completed(entry: Entry, record: Record) -> Entry:
    """The row with what its record says, for one that an older Sojourn wrote."""
    return replace(entry, **_played(record))


def describe(
    stage: str,
    step: int,
    part: int,
    place: int,
    groups: Sequence[Group],
    scores: Sequence[Sequence[Score]] | None,
    credits: Sequence[Sequence[Credit]] | None,
    streams: Streams,
) -> tuple[list[Record], list[Entry]]:
    """The records of the groups' episodes in order, and their rows; raises RecordError where judgements do not fit."""
    records: list[Record] = []
    entries: list[Entry] = []
    for at, group in enumerate(groups):
        judged = _aligned(group, "scores", scores, at)
        credited = _aligned(group, "credits", credits, at)
        told = {name: _aligned(group, f"arrays of '{name}'", found, at) for name, found in streams.items()}
        for episode in group.episodes:
            count = sum(t.trainable for t in episode.trajectories) if episode.error is None else 0
            own = {name: tuple(islice(found, count)) for name, found in told.items()} if count else {}
            record = Record(episode, tuple(islice(judged, count)), tuple(islice(credited, count)), own)
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
        **_played(record),
    )


def _played(record: Record) -> dict[str, Any]:
    """The columns from `tools` on."""
    turns = [turn for t in record.episode.trajectories if t.trainable for turn in t.turns]
    drawn = [turn.sample.versions for turn in turns if len(turn.sample.tokens) and turn.sample.versions.newest >= 0]
    said = [turn.message for turn in turns if turn.message is not None]
    credits = [part for credit in record.credits for part in credit.tokens if len(part)]
    return {
        "tools": tuple(dict.fromkeys(call.name for message in said for call in message.calls)),
        "malformed": sum(bool(turn.info.get("malformed")) for turn in turns),
        "cut_off": sum(turn.sample.stop is Stop.LENGTH for turn in turns),
        "oldest": min((version.oldest for version in drawn), default=None),
        "newest": max((version.newest for version in drawn), default=None),
        "advantage": float(np.concatenate(credits).mean()) if credits else None,
    }
