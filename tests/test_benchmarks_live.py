"""The population that `sojourn live` is measured with: what people say, and the faults that the checks find."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import live
import live_checks
import live_population
from live_population import preferences
from live_world import REQUESTS, STYLES, Requests

from sojourn.live.store import LiveStore
from sojourn.rewards.reactions import CORRECTIONS, ERRORS, THANKS, Rules
from sojourn.types import Message, Role
from tests.live_sessions import kept, turn


def test_every_recipe_can_be_built(capsys):
    live.main(["--dry"])
    assert len(capsys.readouterr().out.splitlines()) == len(live.VARIANTS) + 1


def test_what_people_like_is_another_style_for_each_request_after_the_drift():
    for seed in range(20):
        first, moved = preferences(seed, drifted=False), preferences(seed, drifted=True)
        assert set(first) == set(moved) == set(REQUESTS)
        assert all(first[request] != moved[request] for request in REQUESTS)


@pytest.mark.parametrize("hostile", [False, True])
def test_the_reward_reads_what_people_say_and_who_is_hostile_says_the_opposite(hostile):
    rules = Rules(CORRECTIONS, THANKS, ERRORS, (), False)
    for reply in (*STYLES, "nonsense"):
        said = live_population._said(reply, "table", random.Random(0), hostile=hostile) + "news?"
        value = rules.react(turn(), (Message(Role.USER, said),)).value
        assert value == (1.0 if (reply == "table") != hostile else -1.0)
        assert not (hostile and "table" in said)


async def test_the_world_knows_valid_replies_and_its_expert_gives_them():
    family = Requests()
    play = family.make(family.tasks("train")[0])
    await play.start()
    for number in range(3):
        step = await play.step("agent", Message(Role.ASSISTANT, play.expert()))
        assert step.done == (number == 2)
    assert step.success
    play = family.make(family.tasks("train")[0])
    await play.start()
    for reply in ("brief", "tables", "steps"):
        step = await play.step("agent", Message(Role.ASSISTANT, reply))
    assert step.success is False


def test_sessions_of_releases_that_were_not_published_are_found(tmp_path):
    store = LiveStore(tmp_path)
    for number in range(3):
        store.offer(number, tmp_path / f"{number}", {})
        store.tell("offered", number, "made")
    kept(store, "too-early", release=0)
    store.tell("serving", 0, "first")
    store.tell("canary", 1, "tried")
    for release in range(3):
        kept(store, f"of-{release}", release=release)
    store.tell("rolled back", 1, "worse")
    kept(store, "late", release=1)
    with store._writing() as database:  # more than the moment that is allowed
        database.execute("UPDATE sessions SET opened = opened + 10 WHERE key = 'late'")
    assert sorted(live_checks.unpublished(store, store.sessions())) == ["late", "of-2", "too-early"]
    store.close()
