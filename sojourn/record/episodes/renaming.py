"""Gives what a stage recorded another name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from sojourn.models.asking import Exchange
from sojourn.record.episodes.group import group_of
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Episode, Group, Score


def rename_stage(store: EpisodeStore, stage: str, new: str) -> None:
    """Records the episodes of a stage, with their scores and what was asked about them, under another name, with which
    their ids begin then, and removes them from where they were. What cannot be read is left out, with a warning."""
    for step in [count.step for count in store.steps() if count.stage == stage]:
        groups, scores, asked = list[Group](), list[Sequence[Score]](), dict[str, Sequence[Exchange]]()
        read = store.read_each(store.query(stage=stage, step=step))
        for _, members in groupby(read, key=lambda pair: pair[0].place):
            pairs = list(members)
            if (record := group_of(pairs)) is None:
                continue
            episodes = tuple(_renamed(episode, stage, new) for episode in record.group.episodes)
            groups.append(replace(record.group, episodes=episodes))
            scores.append(record.scores)
            asked |= {_id(one.episode.id, stage, new): one.asked for _, one in pairs if isinstance(one, Record)}
        store.append(new, step, groups, scores, asked=asked)
    store.truncate(stage, 0)


def _renamed(episode: Episode, stage: str, new: str) -> Episode:
    branch = episode.branch
    if branch is not None:
        branch = replace(branch, of=_id(branch.of, stage, new))
    return replace(episode, id=_id(episode.id, stage, new), branch=branch)


def _id(id: str, stage: str, new: str) -> str:
    return f"{new}/{id.removeprefix(f'{stage}/')}" if id.startswith(f"{stage}/") else id
