"""What is measured of a world, and how it is told."""

from __future__ import annotations

import dataclasses

import pytest

from sojourn import env_catalog
from sojourn.checks.env.measure import measure
from sojourn.envs.about import About
from sojourn.envs.measured import Measured, Scored
from sojourn.envs.toy import Toy
from sojourn_worlds.shop import Shop

FOUND = Measured(100_000, 500, 16, Scored(1.0, 1.0), Scored(0.25, 0.2), 3.2, 1234.5, "re-execution", 0.0123)


class Forkless(Toy):
    """A toy whose plays cannot be forked."""

    def make(self, task):
        env = super().make(task)

        class Play:
            start, step, close, expert = env.start, env.step, env.close, env.expert

        return Play()


async def test_the_expert_earns_all_and_chance_little() -> None:
    found = await measure(Toy(rooms=6, side_rooms=4, doors=3), plays=6)
    assert (found.train, found.test, found.plays) == (100_000, 1_000, 6)
    assert found.expert == Scored(1.0, 1.0)
    assert found.chance.reward < 0.5
    assert found.fork == "own"
    assert min(found.start_ms, found.actions_per_s, found.fork_ms) > 0


async def test_without_choices_chance_says_what_experts_say_elsewhere() -> None:
    found = await measure(Shop(products=200, test=8), plays=4)
    assert found.expert == Scored(1.0, 1.0)
    assert found.chance.reward < 1


async def test_a_world_without_forks_is_played_again() -> None:
    assert (await measure(Forkless(rooms=2), plays=2)).fork == "re-execution"


async def test_a_world_is_opened_and_closed() -> None:
    log = []

    class Opening(Toy):
        async def open(self):
            log.append("open")

        async def close(self):
            log.append("close")

    await measure(Opening(), plays=1)
    assert log == ["open", "close"]


def test_what_was_measured_is_read_back() -> None:
    assert Measured.from_json(FOUND.to_json()) == FOUND
    silent = dataclasses.replace(FOUND, expert=None)
    assert Measured.from_json(silent.to_json()) == silent


def test_a_row_and_a_sheet_tell_what_is_known() -> None:
    about = About(source="ours", licence="MIT", extra="castle", programs={"java": "default-jre-headless"})
    entry = env_catalog.World("castle", "A castle.", about, FOUND, "2026, here")
    row = env_catalog.row(entry)
    assert (row["tasks"], row["fork"], row["acts/s"]) == ("100k / 500", "0.012 ms*", "1,234")
    assert (row["expert"], row["random"], row["licence"]) == ("1.00", "0.25", "MIT")
    sheet = dict(env_catalog.details(entry, Toy()))
    assert sheet["needs"] == "pip install 'sojourn[castle]'; java (Debian: default-jre-headless)"
    assert sheet["random policy"] == "0.25 (20%)"
    assert sheet["measured"] == "16 test tasks, 2026, here"
    assert "side_rooms" in sheet["fields"]


def test_a_world_that_was_never_measured_says_how_to() -> None:
    sheet = dict(env_catalog.details(env_catalog.World("castle", "A castle.", None, None), Toy()))
    assert sheet["measured"] == "not yet: sojourn envs castle --measure"


@pytest.mark.parametrize(("value", "shown"), [(7, "7"), (1_000, "1k"), (100_000, "100k"), (10**9, "1000M")])
def test_counts_are_short(value, shown) -> None:
    assert env_catalog.count(value) == shown
