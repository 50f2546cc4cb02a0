"""What the index of a run counts for a page: its stages, causes of failure, and success by tag and task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from sojourn.intervals import Estimate, wilson
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line

PREFIX = "evaluation-"  # of the stages that evaluations are recorded in
RECENT = 20  # steps that success by tag is of
HARDEST = 12  # tasks that are listed
MOST = 40  # steps without records that are asked after


class Cause(NamedTuple):
    """An infrastructure failure, how often it came, and one episode that it ended."""

    error: str
    times: int
    episode: str


class Tagged(NamedTuple):
    """Success and mean reward of the episodes with one tag; taken for independent, which plays of one task are not."""

    key: str  # of a query: "tag", or "env" where the tasks have none
    tag: str
    success: Estimate
    reward: float
    episodes: int


class OfTask(NamedTuple):
    """One task, its success rate and mean reward, and how often it was played."""

    task: str
    env: str
    seed: str
    success: float
    reward: float
    episodes: int


class Tasks(NamedTuple):
    """The tasks of the last steps of a stage: how many, how many were never and always won, and the hardest."""

    stage: str
    played: int
    never: int
    always: int
    hardest: Sequence[OfTask]


class Span(NamedTuple):
    """A stage that has episodes, and the first and last step of them."""

    stage: str
    first: int
    last: int


class Around(NamedTuple):
    """The steps before and after one, None where there is none."""

    before: int | None
    after: int | None


def stages(store: EpisodeStore) -> list[Span]:
    """Every stage in order of its name, found one after another in the index: the rows in between are not read."""
    following = "SELECT min(stage) FROM episodes"
    statement = f"""
        WITH RECURSIVE each (stage) AS (
            {following} UNION ALL SELECT ({following} WHERE stage > each.stage) FROM each WHERE stage IS NOT NULL
        ) SELECT stage, (SELECT min(step) FROM episodes WHERE stage = each.stage),
            (SELECT max(step) FROM episodes WHERE stage = each.stage) FROM each WHERE stage IS NOT NULL
    """
    return store.rows(statement, (), lambda row: Span(*row))


def around(store: EpisodeStore, stage: str, step: int) -> Around:
    """The neighbours of a step that have episodes."""
    statement = (
        "SELECT (SELECT max(step) FROM episodes WHERE stage = ?1 AND step < ?2), "
        "(SELECT min(step) FROM episodes WHERE stage = ?1 AND step > ?2)"
    )
    return store.rows(statement, (stage, step), lambda row: Around(*row))[0]


def unrecorded(store: EpisodeStore, played: Sequence[Span], lines: Sequence[Line]) -> list[str]:
    """A sentence on the steps of the index whose full records are gone."""
    try:
        held = set(os.listdir(store.tokens))
    except OSError:
        rest = "no episode can be opened" if played else "there are no episodes"
        return [f"{store.tokens} is missing: {rest}"] if played or lines else []
    named = {span.stage for span in played}
    files = {(line.stage, line.step): store.step_path(line.stage, line.step, 0).name for line in lines}
    asked = "SELECT 1 FROM episodes WHERE stage = ? AND step = ? LIMIT 1"
    gone = [at for at, name in files.items() if at[0] in named and name not in held]
    gone = [at for at in gone[:MOST] if store.rows(asked, at, bool)]
    some = ", ".join(f"{stage} {step}" for stage, step in gone[:5]) + (", ..." if len(gone) > 5 else "")
    return [f"{store.tokens} lacks files: the episodes of {some} cannot be opened"] if gone else []


def failures(store: EpisodeStore) -> list[Cause]:
    """The causes of failed episodes, the most frequent first."""
    statement = (
        "SELECT substr(error, 1, 300) AS cause, count(*), max(id) FROM episodes WHERE error IS NOT NULL "
        "GROUP BY cause ORDER BY count(*) DESC LIMIT 10"
    )
    return store.rows(statement, (), lambda row: Cause(*row))


def of_tags(store: EpisodeStore, stage: str, step: int) -> list[Tagged]:
    """By tag, or by world where tasks have none, over the last steps of a stage."""
    statement = (
        "SELECT iif(tag.value IS NULL, 'env', 'tag') AS kind, coalesce(tag.value, env) AS name, avg(success), "
        "avg(reward), count(success) "
        "FROM episodes LEFT JOIN json_each(tags) AS tag "
        "WHERE stage = ? AND step > ? AND step <= ? AND success NOT NULL "
        "GROUP BY kind, name ORDER BY name LIMIT 200"
    )
    return store.rows(
        statement,
        (stage, step - RECENT, step),
        lambda row: Tagged(row[0], row[1], wilson(row[2] * row[4], row[4]), row[3], row[4]),
    )


def of_tasks(store: EpisodeStore, stage: str, step: int) -> Tasks:
    """By task over the last steps of a stage: those that are won least, of those the worst paid, first."""
    where = "FROM episodes WHERE stage = ? AND step > ? AND step <= ? AND success NOT NULL GROUP BY task"
    values = (stage, step - RECENT, step)
    counted = f"SELECT count(*), total(rate <= 0), total(rate >= 1) FROM (SELECT avg(success) AS rate {where})"
    statement = f"SELECT task, env, min(seed), avg(success) AS rate, avg(reward) AS paid, count(*) {where}"
    hardest = store.rows(f"{statement} ORDER BY rate, paid, task LIMIT {HARDEST}", values, lambda row: OfTask(*row))
    return Tasks(stage, *store.rows(counted, values, lambda row: (row[0], int(row[1]), int(row[2])))[0], hardest)
