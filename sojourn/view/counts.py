"""What the index of a run counts for a page: causes of failure, and success by tag."""

from __future__ import annotations

from typing import NamedTuple

from sojourn.record.intervals import Estimate, wilson
from sojourn.record.store import EpisodeStore

RECENT = 20  # steps that success by tag is of


class Cause(NamedTuple):
    """An infrastructure failure, how often it came, and one episode that it ended."""

    error: str
    times: int
    episode: str


class Tagged(NamedTuple):
    """Success and mean reward of the episodes with one tag; taken for independent, which plays of one task are not."""

    tag: str
    success: Estimate
    reward: float
    episodes: int


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
        "SELECT coalesce(tag.value, env) AS name, avg(success), avg(reward), count(success) "
        "FROM episodes LEFT JOIN json_each(tags) AS tag "
        "WHERE stage = ? AND step > ? AND step <= ? AND success NOT NULL "
        "GROUP BY name ORDER BY name LIMIT 200"
    )
    return store.rows(
        statement,
        (stage, step - RECENT, step),
        lambda row: Tagged(row[0], wilson(row[1] * row[3], row[3]), row[2], row[3]),
    )
