"""Episodes that are removed for ever are in no file of the run, and all others are as they were."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from single_episodes import group_of, ids

from sojourn.models.answers import AnswerStore, KnownAnswer
from sojourn.models.questions import Questions
from sojourn.record.episodes import step_file
from sojourn.record.episodes.origins import reused_in
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Message, Role

SECRET = "zqsecretword"


def made(folder: Path) -> EpisodeStore:
    """Returns a store of two steps, the second of which trained a group of the first again."""
    store = EpisodeStore(folder, write=True)
    gone = group_of(f"{SECRET} one", "two", name="gone", observed=f"{SECRET} asked", tags=(f"{SECRET}tag",))
    store.append("rl", 0, [group_of("first", name="a"), gone, group_of("third", name="c")])
    store.append("rl", 2, [group_of("later", name="d")], reused=[gone, group_of("first", name="a")])
    return store


def holding(folder: Path, text: str) -> list[str]:
    """Returns the files in which a text is, compressed members of step files included."""
    found = [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
    for path in folder.rglob("*.npz"):
        with np.load(path) as file:
            found += [path.name for name in file.files if text.encode() in file[name].tobytes()]
    return found


def test_nothing_of_it_is_left_in_any_file_and_the_others_are_as_they_were(tmp_path):
    with made(tmp_path) as store:
        before = {row.id: (row, store.read(row).episode.trajectories[0].turns[0].message) for row in store.query()}
        assert holding(tmp_path, SECRET[:6])
        assert store.remove(["gone", "unknown"]) == ["gone"]
        del before["gone"]
        assert {
            row.id: (row, store.read(row).episode.trajectories[0].turns[0].message) for row in store.query()
        } == before
        assert ids(store, "first") == ["a"]
        assert ids(store, SECRET) == []
        assert store.labels("tag") == []
        assert [(one.of_step, one.of_place) for one in reused_in(store, "rl", 2)] == [(0, 0)]
        assert holding(tmp_path, SECRET[:6]) == []  # the index of words keeps a common beginning of words once
        assert holding(tmp_path, "gone") == []
        assert store.remove(["gone"]) == []


def test_a_lost_index_is_made_again_without_it_and_in_the_same_order(tmp_path):
    with made(tmp_path) as store:
        assert store.remove(["a"]) == ["a"]
        rows = list(store.query())
    (tmp_path / "episodes.sqlite").unlink()
    with warnings.catch_warnings(action="ignore"), EpisodeStore(tmp_path, write=True) as store:
        assert list(store.query()) == rows
        assert ids(store, SECRET) == ["gone"]
        assert [(one.of_step, one.of_place) for one in reused_in(store, "rl", 2)] == [(0, 1)]
        files = sorted((path.stat().st_mtime_ns, path.name) for path in store.tokens.iterdir())
        assert [name for _, name in files] == ["rl-000000-0.npz", "rl-000002-0.npz"]


def test_a_removal_that_was_interrupted_is_carried_out_whole(tmp_path):
    """The file is written anew, and the process ends before the index is: then the words are no longer known."""
    with made(tmp_path) as store:
        [row] = store.query(id="gone")
        step_file.rewrite(store.step_path("rl", 0, 0), {row.number}, set())
        assert store.remove(["gone"]) == ["gone"]
        assert holding(tmp_path, SECRET[:6]) == []
        assert (ids(store, "first"), ids(store, "later")) == (["a"], ["d"])


def test_a_file_with_nothing_left_is_removed_and_its_step_can_be_recorded_again(tmp_path):
    with EpisodeStore(tmp_path, write=True) as store:
        store.append("rl", 0, [group_of("first", name="a")])
        store.remove(["a"])
        assert list(store.tokens.iterdir()) == []
        store.append("rl", 0, [group_of("second", name="b")])
        assert ids(store, "second") == ["b"]


def test_one_that_is_open_to_read_removes_nothing(tmp_path):
    made(tmp_path).close()
    with EpisodeStore(tmp_path) as store, pytest.raises(Exception, match="open to read"):
        store.remove(["gone"])


def test_what_judges_said_of_it_is_gone_and_what_that_cost_is_not(tmp_path):
    answers = AnswerStore(tmp_path)
    for episode in ("gone", "a"):
        answers.add(f"key of {episode}", KnownAnswer("judge", episode, f"{SECRET} of {episode}", 5, 2, 0.25, 1.0))
    with made(tmp_path) as store:
        store.remove(["gone"])
    assert answers.find("key of gone") is None
    assert answers.find("key of a") is not None
    assert answers.spent("judge") == (14, 0.5)
    assert holding(tmp_path, "of gone") == []
    answers.close()


def test_what_people_were_asked_in_it_is_gone(tmp_path):
    questions = Questions(tmp_path)
    for episode in ("gone", "a"):
        questions.put(episode, episode, [Message(Role.ASSISTANT, f"ask: {SECRET} of {episode}?")], 600.0)
        questions.answer(episode, f"{SECRET} of {episode}")
    with made(tmp_path) as store:
        store.remove(["gone"])
    assert questions.reply("gone") is None
    assert questions.reply("a") == (f"{SECRET} of a", True)
    assert holding(tmp_path, "of gone") == []
