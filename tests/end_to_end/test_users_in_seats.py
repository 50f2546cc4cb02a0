"""Users who sit in a seat: a server, a model that is here, one that learns, and the policy itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trained_run
from judge_server import reply

from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Group
from tests.envs.loopback import Raw, answered

pytest.importorskip("sojourn_worlds")

RECIPE = """
name = "users"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
agent = { name = "plain", choices = true }
evaluation = { tasks = 2 }
sampling = { max_tokens = 48 }
rollout = { limits = { turns = 12 } }
[env]
name = "clarify"
user = "seat"
attributes = 2
dependent = false
choices = true
[seats]
models = { user = ["customer"] }
[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 2, size = 3 }
losses = [{ name = "ppo" }]
"""
HERE = '[models.customer]\nname = "tiny:layers=2,hidden=64"\ndtype = "fp32"\n'


def groups_of(path: Path) -> list[Group]:
    with EpisodeStore(path) as store:
        return list(store.groups("rl"))


def served(url: str) -> str:
    return f'{RECIPE}\n[models.customer.endpoint]\nbase_url = "{url}"\nmodel = "big"\n'


def honest(path: str, body: dict[str, Any]) -> Raw:
    """Answers a question about an attribute by its instructions."""
    [system, *_, question] = [message["content"] for message in body["messages"]]
    wanted = dict(line[2:].split(": ") for line in system.splitlines() if line.startswith("- "))
    return reply(f"{wanted.get(question, 'anything')}, please.")


def test_a_server_plays_the_user_and_what_it_said_is_in_the_record(tmp_path):
    with answered(honest) as (url, asked):
        path = trained_run.train(tmp_path / "run", recipe=served(url))
    turns = 0
    for group in groups_of(path):
        for episode in group.episodes:
            ours, theirs = episode.trajectories
            assert (ours.agent, ours.model, theirs.agent, theirs.model) == ("agent", "policy", "user", "customer")
            answers = [turn.message.text for turn in theirs.turns if turn.message is not None]
            seen = [m.text for turn in ours.turns[1:] for m in turn.observed if m.text.startswith("User: ")]
            assert [f"User: {answer}" for answer in answers][: len(seen)] == seen
            turns += len(answers)
            profile = theirs.turns[0].observed[0].text if theirs.turns else ""
            assert not profile or "You want to order" in profile
            assert not any("You want to order" in m.text for turn in ours.turns for m in turn.observed)
            assert ours.reward == theirs.reward
        assert [trajectory.model for trajectory in group.trajectories] == ["policy"] * 3
    assert 0 < turns <= len(asked)


def test_models_that_are_here_play_the_user_and_may_learn(tmp_path):
    frozen = trained_run.train(tmp_path / "frozen", recipe=RECIPE + HERE)
    learned = trained_run.train(tmp_path / "learned", "stages.0.learners={customer={}}", recipe=RECIPE + HERE)
    own = trained_run.train(tmp_path / "own", "seats={}", recipe=RECIPE)
    groups = {path.name: groups_of(path) for path in (frozen, learned, own)}
    trained = {name: {t.model for group in several for t in group.trajectories} for name, several in groups.items()}
    assert trained == {"frozen": {"policy"}, "learned": {"policy", "customer"}, "own": {"policy"}}
    assert {t.agent for group in groups["own"] for t in group.trajectories} == {"agent", "user"}
    of_users = [t for group in groups["frozen"] for e in group.episodes for t in e.trajectories if t.agent == "user"]
    assert any(t.turns for t in of_users)
    assert all(len(turn.sample.tokens) for t in of_users for turn in t.turns)
