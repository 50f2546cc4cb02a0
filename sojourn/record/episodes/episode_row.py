"""The rows of the episode index, which can be searched without opening a record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from sojourn.call_text import written_name
from sojourn.errors import RecordError
from sojourn.models.asking import Exchange
from sojourn.record.episodes.step_file import Record
from sojourn.search_cost import spent_tokens
from sojourn.types import Credit, Group, Role, Score, Stop, Streams, Trajectory


@dataclass(frozen=True)
class EpisodeRow:
    """One episode in the index: record `number` of file `part` of its step, in group `place` of that step.

    `reward` and `success` (1 or 0) are means over the trainable trajectories, None where the episode failed. Turns,
    tokens, tools and versions are of trainable trajectories, too. Rows of an older Sojourn have the defaults.
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
    origin: str | None = None  # of its group: "policy", or the source that gave it; None where it was not recorded


COLUMNS = tuple(field.name for field in fields(EpisodeRow))
OLDEST_COLUMNS = COLUMNS[: COLUMNS.index("tools")]  # the columns that every Sojourn wrote
COLUMNS_BEFORE_ORIGIN = COLUMNS[: COLUMNS.index("origin")]
_LISTS = ("tags", "tools")


def to_values(row: EpisodeRow) -> tuple[Any, ...]:
    """Returns the values of `COLUMNS`: lists and mappings as JSON, the seed as text, since it may exceed 64 bits."""
    texts = {name: json.dumps(getattr(row, name)) for name in (*_LISTS, "parts")}
    values = (vars(row) | texts | {"seed": str(row.seed)}).values()
    return tuple(_without_surrogates(value) if isinstance(value, str) else value for value in values)


def _without_surrogates(text: str) -> str:
    """Escapes halves of surrogate pairs, which SQLite refuses and any error message may hold."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def from_values(row: Sequence[Any]) -> EpisodeRow:
    """Returns the row whose values are those of all columns, or of the first ones."""
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=False))
    lists: dict[str, Any] = {name: tuple(json.loads(values[name])) for name in _LISTS if name in values}
    return EpisodeRow(**(values | lists | {"parts": json.loads(values["parts"]), "seed": int(values["seed"])}))


def from_json(data: Mapping[str, Any]) -> EpisodeRow:
    """Returns a row as a step file holds it, an older one too; raises TypeError or KeyError if `data` is none."""
    values: dict[str, Any] = {name: data[name] for name in COLUMNS if name in data}
    values |= {name: tuple(values[name]) for name in _LISTS if name in values}
    return EpisodeRow(**values)


def with_later_columns(row: EpisodeRow, record: Record) -> EpisodeRow:
    """Fills the columns that an older Sojourn did not write from the record."""
    return replace(row, **_later_columns(record))


def describe(
    stage: str,
    step: int,
    part: int,
    place: int,
    groups: Sequence[Group],
    scores: Sequence[Sequence[Score]] | None,
    credits: Sequence[Sequence[Credit]] | None,
    streams: Streams,
    asked: Mapping[str, Sequence[Exchange]],
) -> tuple[list[Record], list[EpisodeRow]]:
    """Returns the records of the groups' episodes in order, and their rows; `asked` is by the episodes' ids.

    Raises RecordError if scores, credits or streams do not fit the trajectories.
    """
    records: list[Record] = []
    rows: list[EpisodeRow] = []
    for at, group in enumerate(groups):
        judged = _aligned(group, "scores", scores, at)
        credited = _aligned(group, "credits", credits, at)
        of_streams = {name: _aligned(group, f"arrays of '{name}'", values, at) for name, values in streams.items()}
        for episode in group.episodes:
            count = sum(t.trainable for t in episode.trajectories) if episode.error is None else 0
            arrays = {name: tuple(islice(values, count)) for name, values in of_streams.items()} if count else {}
            judgements = tuple(islice(judged, count)), tuple(islice(credited, count)), arrays
            record = Record(episode, *judgements, tuple(asked.get(episode.id, ())))
            rows.append(_row(record, stage, step, part, len(records), place + at, group))
            records.append(record)
    return records, rows


def _aligned(group: Group, name: str, values: Sequence[Sequence[Any]] | None, at: int) -> Iterator[Any]:
    if values is None:
        return iter(())
    if len(values) <= at or len(values[at]) != len(group.trajectories):
        count = len(values[at]) if len(values) > at else "no"
        raise RecordError(
            f"slot {group.slot} has {len(group.trajectories)} trajectories to judge but {count} {name}: "
            "give one for each trajectory of `group.trajectories`"
        )
    return iter(values[at])


def _row(record: Record, stage: str, step: int, part: int, number: int, place: int, group: Group) -> EpisodeRow:
    episode, task = record.episode, record.episode.task
    seats = [t for t in episode.trajectories if t.trainable]
    judged = seats if episode.error is None else []
    rewards = [score.total for score in record.scores] or [t.reward for t in judged]
    names = {name for score in record.scores for name in score.parts}
    return EpisodeRow(
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
        reward=fmean(rewards) if rewards else None,
        success=fmean(t.success for t in judged) if judged else None,
        turns=sum(len(t.turns) for t in seats),
        sampled=sum(spent_tokens(t.turns) for t in seats),
        ending=str(seats[0].ending) if seats else None,
        error=episode.error,
        seconds=float(episode.seconds),
        parts={n: fmean(s.parts[n] for s in record.scores if n in s.parts) for n in sorted(names)},
        **_later_columns(record),
        origin=group.origin,
    )


def _called(trajectory: Trajectory) -> Iterator[str]:
    """Yields the names of the tools called, in structured calls and in texts that are the call of a tool which was
    declared, or which the system messages tell of."""
    declared = {tool.name for turn in trajectory.turns for tool in turn.tools}
    told: str | None = None  # by the system messages, which are gathered only where a text is an undeclared call
    for turn in trajectory.turns:
        if turn.message is None:
            continue
        yield from (call.name for call in turn.message.calls)
        name = None if turn.message.calls else written_name(turn.message.text)
        if name is None:
            continue
        if name not in declared and told is None:
            shown = (message for turn in trajectory.turns for message in (*turn.observed, *turn.context_messages))
            told = "\n".join({message.text: None for message in shown if message.role is Role.SYSTEM})
        if name in declared or (told is not None and f"{name}(" in told):
            yield name


def _later_columns(record: Record) -> dict[str, Any]:
    """Returns the columns from `tools` to `advantage`, which older versions did not write."""
    turns = [turn for t in record.episode.trajectories if t.trainable for turn in t.turns]
    sampled = [turn.sample.versions for turn in turns if len(turn.sample.tokens) and turn.sample.versions.newest >= 0]
    credits = [part for credit in record.credits for part in credit.tokens if len(part)]
    return {
        "tools": tuple(dict.fromkeys(name for t in record.episode.trajectories if t.trainable for name in _called(t))),
        "malformed": sum(bool(turn.info.get("malformed")) for turn in turns),
        "cut_off": sum(turn.sample.stop is Stop.LENGTH for turn in turns),
        "oldest": min((version.oldest for version in sampled), default=None),
        "newest": max((version.newest for version in sampled), default=None),
        "advantage": float(np.concatenate(credits).mean()) if credits else None,
    }


class StepCount(NamedTuple):
    """The groups and episodes that one step has recorded, and their mean reward and success."""

    stage: str
    step: int
    groups: int
    episodes: int
    reward: float | None
    success: float | None
