"""Prints the groups of one step with the reward and the advantage of each episode."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from sojourn.errors import RecordError
from sojourn.record.episodes.address import Address
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.origins import count_origins, reused_in
from sojourn.record.episodes.reused import ReusedGroup
from sojourn.record.episodes.store import EpisodeStore, GroupRecord
from sojourn.terminal.clean import one_line
from sojourn.terminal.find import group_episodes
from sojourn.terminal.jsonable import jsonable
from sojourn.terminal.numbers import number, signed
from sojourn.terminal.rows import Column, rows
from sojourn.terminal.run import collect_warnings


class EpisodeSummary(NamedTuple):
    """An episode of a group. `reward` is the mean over its trainable seats, `advantage` the mean over its tokens."""

    id: str
    reward: float | None
    advantage: float | None
    turns: int
    tokens: int
    ending: str
    success: bool | None


class TrainedAgain(NamedTuple):
    """A group that the step trained again, and its episodes as they were recorded before."""

    group: ReusedGroup
    episodes: Sequence[EpisodeRow]


class RecordedStep(NamedTuple):
    """The groups that a step recorded, those that it trained again, and warnings about what cannot be read. The
    `addresses` are those of all recorded episodes by id, also where some of their group cannot be read."""

    groups: Sequence[GroupRecord]
    addresses: Mapping[str, Address]
    again: Sequence[TrainedAgain]
    problems: Sequence[str]


def episode_summaries(record: GroupRecord) -> Iterator[EpisodeSummary]:
    """Yields the episodes of a group, in order."""
    owners = record.group.owners
    for index, episode in enumerate(record.group.episodes):
        places = [at for at, owner in enumerate(owners) if owner == index]
        seats = [record.group.trajectories[at] for at in places]
        rewards = [record.scores[at].total for at in places if at < len(record.scores)]
        credit = [part for at in places if at < len(record.credits) for part in record.credits[at].tokens]
        tokens = np.concatenate(credit) if credit else np.zeros(0)
        yield EpisodeSummary(
            episode.id,
            float(np.mean(rewards)) if rewards else None,
            float(tokens.mean()) if len(tokens) else None,
            sum(len(seat.turns) for seat in seats),
            sum(len(turn.sample.tokens) for seat in seats for turn in seat.turns),
            str(seats[0].ending) if seats else f"failed: {episode.error}",
            bool(np.mean([seat.success for seat in seats])) if seats else None,
        )


def read_step(path: Path, stage: str, step: int) -> RecordedStep:
    """Reads the groups of a step (counted from 0)."""
    problems: list[str] = []
    with collect_warnings(problems), EpisodeStore(path) as store:
        records, addresses = list(store.records(stage, [step])), _addresses(store.query(stage=stage, step=step))
        again = [
            TrainedAgain(group, group_episodes(store, stage, group.of_step, group.of_place))
            for group in reused_in(store, stage, step)
        ]
        if not addresses and not again:
            recorded = [count.step for count in store.steps() if count.stage == stage]
            steps = f"has the steps {min(recorded)} to {max(recorded)}" if recorded else "has no episodes"
            raise RecordError(f"--step {step}: the stage '{stage}' in {path} {steps}")
    return RecordedStep(records, addresses, again, problems)


def _addresses(rows: Iterable[EpisodeRow]) -> dict[str, Address]:
    """Returns the addresses of the episodes of a step, by id."""
    groups = groupby(rows, key=lambda row: row.place)
    return {row.id: Address(row.stage, row.step, place, at) for place, of in groups for at, row in enumerate(of)}


def table(path: Path, stage: str, step: int, width: int) -> Lines:
    """Returns a table for each group of a step."""
    read = read_step(path, stage, step)
    lines: list[RenderableType] = [*_counts(read)]
    for record in read.groups:
        played = list(episode_summaries(record))
        addresses = [read.addresses[play.id] for play in played]
        heading = _heading(record, addresses[0].group, played)
        lines += [heading, *_rows(played, list(map(str, addresses)), width), Text()]
    lines += map(_again, read.again)
    return Lines(*lines, *(Text(f"missing: {one_line(sentence, 500)}", "red") for sentence in read.problems))


def as_json(path: Path, stage: str, step: int) -> str:
    """Returns the groups of a step as JSON."""
    read = read_step(path, stage, step)
    groups: list[dict[str, Any]] = [
        {
            "place": read.addresses[r.group.episodes[0].id].group,
            "slot": r.group.slot,
            "origin": r.group.origin,
            "task": jsonable(r.group.task),
            "episodes": [jsonable(p) for p in episode_summaries(r)],
        }
        for r in read.groups
    ]
    again = [
        {**one.group._asdict(), "age": one.group.age, "episodes": [row.id for row in one.episodes]}
        for one in read.again
    ]
    return json.dumps(
        {"stage": stage, "step": step, "groups": groups, "again": again, "missing": list(read.problems)}, indent=1
    )


def _counts(read: RecordedStep) -> Iterator[Text]:
    """Yields how many groups are of each origin, where any is not the policy's."""
    origins = [*(record.group.origin for record in read.groups), *(one.group.origin for one in read.again)]
    if counts := count_origins(origins):
        told = ", ".join(f"{count} {one_line(origin, 40)}" for origin, count in counts.items())
        yield Text(f"groups by origin: {told}\n")


def _again(one: TrainedAgain) -> Text:
    """Returns the line of a group that the step trained again."""
    group, rewards = one.group, [row.reward for row in one.episodes if row.reward is not None]
    line = Text(f"{one_line(group.origin, 40)}: group {group.of_place} of step {group.of_step}", "bold")
    line.append(f", {group.age} step{'s' * (group.age != 1)} old", "not bold")
    if one.episodes:
        row = one.episodes[0]
        line.append(f": {one_line(', '.join((row.env, *row.tags)), 60)}, seed {row.seed}", "not bold")
    if rewards:
        line.append(f", mean reward {number(float(np.mean(rewards)))}", "not bold")
    return line.append(f" ({one_line(str(Address(group.stage, group.of_step, group.of_place, 0)))})", "not bold dim")


def _heading(record: GroupRecord, place: int, played: list[EpisodeSummary]) -> Text:
    task = record.group.task
    rewards = [play.reward for play in played if play.reward is not None]
    origin = "" if record.group.origin == "policy" else f", {one_line(record.group.origin, 40)}"
    heading = f"group {place}{origin}: {one_line(', '.join((task.env, *task.tags)), 60)}, seed {task.seed}"
    if rewards:
        heading += f", mean reward {number(float(np.mean(rewards)))}"
    signal = ", no signal" if len(rewards) > 1 and float(np.ptp(rewards)) == 0 else ""
    return Text(heading, "bold").append(signal, "not bold yellow")


def _rows(played: list[EpisodeSummary], addresses: list[str], width: int) -> Iterator[RenderableType]:
    columns = [
        Column(heading="address", cells=addresses),
        Column(heading="reward", cells=[_shown(p.reward) for p in played], right=True),
        Column(heading="advantage", cells=["-" if p.advantage is None else signed(p.advantage) for p in played],
               right=True),
        Column(heading="turns", cells=[str(play.turns) for play in played], right=True, drop_priority=2),
        Column(heading="tokens", cells=[str(play.tokens) for play in played], right=True, drop_priority=3),
        Column(heading="ending", cells=[one_line(play.ending.split(":")[0], 20) for play in played]),
        Column(heading="episode", cells=[one_line(play.id) for play in played], drop_priority=1),
    ]  # fmt: skip
    failures = [Text(one_line(play.ending, 300) if play.ending.startswith("failed") else "", "dim") for play in played]
    styles = ["green" if play.success else "" for play in played]
    return rows(columns, width, failures, styles)


def _shown(value: float | None) -> str:
    return "-" if value is None else number(value)
