"""A group's page shows what was preferred beside what was not, as the stage's stream of pairs numbered it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from made import sample
from starlette.testclient import TestClient
from trained_run import train

from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Credit, Ending, Episode, Message, Role, Score, Task, Trajectory, Turn
from sojourn.view.pairs import pairs
from sojourn.view.server import application

TASK = Task("made", {}, 0, "train")


def record(*turns: tuple[str, str, float], reward: float = 0.0) -> Record:
    """An episode of turns, each with what was observed, what was said, and the number of its pair."""
    made = [
        Turn(
            n - 1,
            np.array([1]),
            sample([2, 3]),
            Message(Role.ASSISTANT, said),
            observed=(Message(Role.USER, observed),),
        )
        for n, (observed, said, _) in enumerate(turns)
    ]
    trajectory = Trajectory("agent", tuple(made), Ending.DONE)
    numbers = tuple(np.full(2, number, dtype=np.float32) for _, _, number in turns)
    rewards = np.zeros(len(turns), dtype=np.float32)
    rewards[-1:] = reward
    episode = Episode("e", TASK, (trajectory,))
    return Record(episode, (Score(rewards),), (Credit.uniform(trajectory, 1.0),), {"pairs": (numbers,)})


def shown(*records: Any) -> Any:
    """The pairs of a group: for each side its name, its reward and its turns."""
    found = pairs([cast(Any, None)] * len(records), records, [f"episode {n}" for n in range(len(records))])
    if found is None:
        return None
    return [
        [side and (side.name, side.reward, [(t.anchor, t.observed, t.action) for t in side.turns]) for side in pair]
        for pair in found
    ]


def test_the_preferred_side_of_each_pair_comes_first():
    worse, better = record(("Go?", "no", -3), reward=0.5), record(("Go?", "yes", 3), ("On?", "on", 3), reward=1.0)
    assert shown(worse, better) == [
        [
            ("episode 1", 1.0, [("0.0", "Go?", "yes"), ("0.1", "On?", "on")]),
            ("episode 0", 0.5, [("0.0", "Go?", "no")]),
        ]
    ]
    rows = pairs([cast(Any, None)] * 2, [worse, better], ["a", "b"])
    assert rows is not None
    assert [tuple(turn and turn.action for turn in row) for row in rows[0].rows] == [("yes", "no"), ("on", None)]


def test_turns_that_are_pairs_of_their_own_are_shown_alone():
    one, other = record(("Go?", "yes", 1), ("On?", "on", 2)), record(("Go?", "no", -1), ("On?", "off", -2))
    assert shown(one, other) == [
        [("episode 0", 0.0, [("0.0", "Go?", "yes")]), ("episode 1", 0.0, [("0.0", "Go?", "no")])],
        [("episode 0", 0.0, [("0.1", "On?", "on")]), ("episode 1", 0.0, [("0.1", "On?", "off")])],
    ]


def test_what_cannot_be_read_or_is_in_no_pair():
    assert shown(record(("Go?", "yes", 1)), "its file is damaged") == [
        [("episode 0", 0.0, [("0.0", "Go?", "yes")]), None]
    ]
    assert shown(record(("Go?", "yes", 0))) == []
    assert shown(replace(record(("Go?", "yes", 1)), streams={})) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plays of two tasks: those of the first have equal rewards, those of the second do not."""
    return train(
        tmp_path_factory.mktemp("runs") / "paired",
        "env={name='made_world:Odd'}",
        "agent={name='plain'}",
        "stages.0.groups.success_only=false",
        "stages.rl.groups={name='slots', width=2, size=2}",
        "stages.rl.estimator={name='constant'}",
        "stages.rl.losses=[{name='simpo'}]",
        "stages.rl.streams=[{name='pairs'}]",
    )


def test_a_groups_page_has_its_pairs_or_says_that_there_are_none(run: Path):
    client = TestClient(application([run.parent]), base_url="http://127.0.0.1")
    with EpisodeStore(run) as store:
        won = {entry.place: entry.id for entry in store.query(stage="rl") if entry.reward}
        every = {entry.place for entry in store.query(stage="rl")}
    assert len(won) == 1 < len(every)
    ((place, episode),) = won.items()
    page = client.get(f"/runs/paired/groups/rl/0/{place}").text
    assert ">1 pair<" in page
    chosen = page.index("chosen")
    assert chosen < page.index(f"/episodes/{episode}", chosen) < page.index("rejected")
    (other,) = every - {place}
    page = client.get(f"/runs/paired/groups/rl/0/{other}").text
    assert ">0 pairs<" in page
    assert "Nothing is preferred in this group" in page
    assert 'id="pairs"' in page
    assert 'id="pairs"' not in client.get("/runs/paired/groups/warmup/0/0").text  # a stage without the stream
