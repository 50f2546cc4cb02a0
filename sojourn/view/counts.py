"""Queries a run's index for the numbers of a page: stages, causes of failure, and success by tag and by task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from sojourn.intervals import Estimate, wilson
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.metrics import Line

EVALUATION_PREFIX = "evaluation-"  # of the names of the stages in which evaluations are recorded
RECENT_STEPS = 20  # over which success by tag and by task is averaged
MAX_TASKS = 12  # that are listed as the hardest
MAX_MISSING = 40  # steps without records that are looked up in the index


class Cause(NamedTuple):
    """A cause of infrastructure failures, the number of episodes that it ended, and the id of one of them."""

    error: str
    times: int
    episode: str


class TagSuccess(NamedTuple):
    """The success rate and the mean reward of the episodes with one tag.

    The interval treats episodes as independent, which episodes of the same task are not.
    """

    key: str  # of a search query: "tag", or "env" if the tasks have no tags
    tag: str
    success: Estimate
    reward: float
    episodes: int


class TaskSuccess(NamedTuple):
    """One task with its success rate, its mean reward, and its number of episodes."""

    task: str
    env: str
    seed: str
    success: float
    reward: float
    episodes: int


class TaskCounts(NamedTuple):
    """The number of tasks in the last steps of a stage, how many were never and always solved, and the hardest ones."""

    stage: str
    played: int
    never_solved: int
    always_solved: int
    hardest: Sequence[TaskSuccess]


class StageSteps(NamedTuple):
    """A stage that has episodes, with the first and the last step of them."""

    stage: str
    first: int
    last: int


class Neighbours(NamedTuple):
    """The steps before and after a step, None if there is none."""

    before: int | None
    after: int | None


def stages(store: EpisodeStore) -> list[StageSteps]:
    """Returns every stage, sorted by name. They are looked up one by one in the index, without reading all rows."""
    following = "SELECT min(stage) FROM episodes"
    statement = f"""
        WITH RECURSIVE each (stage) AS (
            {following} UNION ALL SELECT ({following} WHERE stage > each.stage) FROM each WHERE stage IS NOT NULL
        ) SELECT stage, (SELECT min(step) FROM episodes WHERE stage = each.stage),
            (SELECT max(step) FROM episodes WHERE stage = each.stage) FROM each WHERE stage IS NOT NULL
    """
    return store.rows(statement, (), lambda row: StageSteps(*row))


def neighbour_steps(store: EpisodeStore, stage: str, step: int) -> Neighbours:
    """Returns the nearest steps before and after a step that have episodes, or trained earlier ones again."""

    def nearest(which: str, sign: str) -> str:
        found = f"SELECT {which}(step) AS step FROM {{}} WHERE stage = ?1 AND step {sign} ?2"
        return f"(SELECT {which}(step) FROM ({found.format('episodes')} UNION ALL {found.format('reused')}))"

    statement = f"SELECT {nearest('max', '<')}, {nearest('min', '>')}"
    return store.rows(statement, (stage, step), lambda row: Neighbours(*row))[0]


def missing_records(store: EpisodeStore, played: Sequence[StageSteps], lines: Sequence[Line]) -> list[str]:
    """Returns a sentence about the steps that are in the index but whose step files are missing, if there are any."""
    try:
        files_there = set(os.listdir(store.tokens))
    except OSError:
        consequence = "no episode can be opened" if played else "there are no episodes"
        return [f"{store.tokens} is missing: {consequence}"] if played or lines else []
    played_stages = {span.stage for span in played}
    files = {(line.stage, line.step): store.step_path(line.stage, line.step, 0).name for line in lines}
    statement = "SELECT 1 FROM episodes WHERE stage = ? AND step = ? LIMIT 1"
    missing = [at for at, name in files.items() if at[0] in played_stages and name not in files_there]
    missing = [at for at in missing[:MAX_MISSING] if store.rows(statement, at, bool)]
    some = ", ".join(f"{stage} {step}" for stage, step in missing[:5]) + (", ..." if len(missing) > 5 else "")
    return [f"files are missing in {store.tokens}: the episodes of {some} cannot be opened"] if missing else []


def failures(store: EpisodeStore) -> list[Cause]:
    """Returns the ten most frequent causes of failed episodes, the most frequent first."""
    statement = (
        "SELECT substr(error, 1, 300) AS cause, count(*), max(id) FROM episodes WHERE error IS NOT NULL "
        "GROUP BY cause ORDER BY count(*) DESC LIMIT 10"
    )
    return store.rows(statement, (), lambda row: Cause(*row))


def success_by_tag(store: EpisodeStore, stage: str, step: int) -> list[TagSuccess]:
    """Returns the success rate by tag (by environment for tasks without tags) over the `RECENT_STEPS` up to a step."""
    statement = (
        "SELECT iif(tag.value IS NULL, 'env', 'tag') AS kind, coalesce(tag.value, env) AS name, avg(success), "
        "avg(reward), count(success) "
        "FROM episodes LEFT JOIN json_each(tags) AS tag "
        "WHERE stage = ? AND step > ? AND step <= ? AND success NOT NULL "
        "GROUP BY kind, name ORDER BY name LIMIT 200"
    )
    return store.rows(
        statement,
        (stage, step - RECENT_STEPS, step),
        lambda row: TagSuccess(row[0], row[1], wilson(row[2] * row[4], row[4]), row[3], row[4]),
    )


def success_by_task(store: EpisodeStore, stage: str, step: int) -> TaskCounts:
    """Returns the success rate by task over the `RECENT_STEPS` up to a step, the lowest success and reward first."""
    where = "FROM episodes WHERE stage = ? AND step > ? AND step <= ? AND success NOT NULL GROUP BY task"
    values = (stage, step - RECENT_STEPS, step)
    counted = f"SELECT count(*), total(rate <= 0), total(rate >= 1) FROM (SELECT avg(success) AS rate {where})"
    statement = f"SELECT task, env, min(seed), avg(success) AS rate, avg(reward) AS mean_reward, count(*) {where}"
    hardest = store.rows(
        f"{statement} ORDER BY rate, mean_reward, task LIMIT {MAX_TASKS}", values, lambda row: TaskSuccess(*row)
    )
    return TaskCounts(stage, *store.rows(counted, values, lambda row: (row[0], int(row[1]), int(row[2])))[0], hardest)
