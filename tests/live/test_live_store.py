"""The store of a live service: what is kept, what is taken once, and what is gone when a person takes it back."""

import contextlib
import sqlite3
from dataclasses import replace

import pytest

from sojourn.errors import RecordError
from sojourn.live import reading
from sojourn.live.facts import Traffic, digest_of
from sojourn.live.store import LiveStore
from sojourn.types import Versions
from tests.live_sessions import kept, turn


@pytest.fixture
def store(tmp_path):
    store = LiveStore(tmp_path / "live")
    yield store
    store.close()


def test_turns_are_read_as_they_were_kept_with_their_feedback(store):
    kept(store, "a", turns=2)
    store.add_feedback("a", "f", 1, -0.5)
    first, second = store.turns("a")
    same = turn("a-0")
    assert first.sample.tokens.tolist() == same.sample.tokens.tolist()
    assert first.sample.logprobs.tolist() == same.sample.logprobs.tolist()
    assert replace(first, context=same.context, sample=same.sample) == same
    assert (first.context.tolist(), first.sample.versions) == ([1, 2], Versions(3, 4))
    assert (second.parent, second.reward, second.info) == (0, -0.5, {"a": 1.0, "feedback": -0.5})


def test_feedback_counts_once_can_change_and_be_taken_back_until_it_is_trained_on(store):
    kept(store, "a", turns=2)
    assert store.add_feedback("a", "f", 0, 1.0)
    assert store.add_feedback("a", "f", 0, 1.0)
    assert store.feedback("a") == [(0, 1.0)]
    assert store.add_feedback("a", "f", 0, -1.0)
    assert store.add_feedback("a", "g", 0, 0.5)
    assert store.turns("a")[0].reward == -0.5
    assert store.add_feedback("a", "f", 0, None)
    assert store.feedback("a") == [(0, 0.5)]
    assert store.take("rl", 0, 1)
    assert not store.add_feedback("a", "late", 0, 1.0)
    assert not store.add_feedback("nobody", "f", 0, 1.0)
    assert store.feedback("a") == [(0, 0.5)]


def test_a_step_takes_what_ended_first_once_and_again_when_it_is_repeated(store):
    for key in "abcd":
        kept(store, key)
    assert store.take("rl", 0, 5) is None
    assert [one.key for one in store.take("rl", 0, 2)] == ["a", "b"]
    assert [one.key for one in store.take("rl", 1, 2)] == ["c", "d"]
    assert store.take("rl", 2, 1) is None
    assert [one.key for one in store.take("rl", 0, 2)] == ["a", "b"]
    again = LiveStore(store.folder)
    assert [one.key for one in again.take("rl", 1, 2)] == ["c", "d"]
    again.close()


def test_only_sessions_that_ended_with_consent_and_turns_are_taken_and_few_of_a_person(store):
    kept(store, "open", ended=False)
    kept(store, "no", consent=False)
    kept(store, "empty", turns=0)
    for number in range(3):
        kept(store, f"mine-{number}", "me")
    kept(store, "other")
    assert store.take("rl", 0, 4, per_person=2) is None
    assert [one.key for one in store.take("rl", 0, 3, per_person=2)] == ["mine-0", "mine-1", "other"]
    store.agree("no", True)
    assert [one.key for one in store.take("rl", 1, 2)] == ["no", "mine-2"]


def test_sessions_of_weights_that_were_replaced_too_often_are_not_taken(store):
    store.tell("serving", 0, "first")
    kept(store, "a")
    store.tell("canary", 1, "tried")
    store.tell("serving", 1, "better")
    kept(store, "b")
    store.tell("serving", 2, "better")
    kept(store, "c")
    assert [store.age(store.session(key)) for key in "abc"] == [2, 1, 0]
    assert [store.too_old(most) for most in (0, 1, 2, 3)] == [0, 1, 0, 0]
    assert store.take("rl", 0, 3, max_age=1) is None
    assert [one.key for one in store.take("rl", 0, 2, max_age=1)] == ["b", "c"]
    store.tell("serving", 3, "better")
    store.tell("serving", 4, "better")
    assert [one.key for one in store.take("rl", 0, 2, max_age=1)] == ["b", "c"]  # a step that is repeated
    assert [one.key for one in store.take("rl", 1, 1)] == ["a"]


def test_what_was_taken_is_to_be_removed_from_the_records_until_that_is_done(store):
    for key in ("secret-a", "secret-b", "secret-c"):
        kept(store, key, "me")
    store.take("rl", 3, 2)
    assert store.forget(person="me") == ["secret-a", "secret-b", "secret-c"]
    first, second = store.removals()
    assert {(one.digest, one.stage, one.step) for one in (first, second)} == {
        (digest_of(key), "rl", 3) for key in ("secret-a", "secret-b")
    }
    for path in store.folder.iterdir():
        assert b"secret" not in path.read_bytes()
    store.removed([first])
    assert store.removals() == [second]


def test_what_ended_keeps_nothing_more(store):
    kept(store, "a")
    store.add_turn("a", 1, turn())
    store.add_turn("gone", 0, turn())
    assert len(store.turns("a")) == 1
    assert store.turns("gone") == ()


def test_idle_sessions_end_and_old_ones_are_removed(store):
    kept(store, "a", ended=False)
    assert store.end_idle(3600) == []
    assert store.end_idle(-1) == ["a"]
    assert store.expire(3600) == []
    assert store.expire(-1) == ["a"]
    assert store.sessions() == []


@pytest.mark.parametrize("by", [{"key": "secret-1"}, {"person": "me"}])
def test_what_is_forgotten_is_in_no_file(store, by):
    kept(store, "secret-1", "me", turns=20)
    kept(store, "b", "you")
    store.add_feedback("secret-1", "f", 0, 1.0)
    assert store.forget(**by) == ["secret-1"]
    assert [one.key for one in store.sessions()] == ["b"]
    assert (store.turns("secret-1"), store.feedback("secret-1")) == ((), [])
    for path in store.folder.iterdir():
        assert b"secret-1" not in path.read_bytes()
    assert any(b"b-0" in path.read_bytes() for path in store.folder.iterdir())


def test_scores_of_a_release_are_the_means_of_its_newest_sessions_with_feedback(store):
    for key, release in (("a", 0), ("b", 1), ("c", 1), ("silent", 1)):
        kept(store, key, turns=2, release=release)
    store.add_feedback("a", "f", 0, 1.0)
    store.add_feedback("b", "f", 0, 1.0)
    store.add_feedback("b", "g", 1, 0.0)
    store.add_feedback("c", "f", 0, -1.0)
    assert store.scores(0, 10) == [1.0]
    assert sorted(store.scores(1, 10)) == [-1.0, 0.5]
    assert len(store.scores(1, 1)) == 1


def test_what_was_said_of_a_session_that_was_taken_back_decides_nothing(store):
    """Also where training took the session before; what its person agrees to again counts again."""
    for key in ("a", "b", "c"):
        kept(store, key, release=1)
        store.add_feedback(key, "x", 0, -1.0 if key == "a" else 1.0)
    store.offer(0, store.folder, {})
    store.offer(1, store.folder, {})
    assert [one.key for one in store.take("rl", 0, 2)] == ["a", "b"]
    store.agree("a", False)
    store.agree("c", False)
    assert store.scores(1) == [1.0]
    shown = reading.read(store.folder.parent, 10)
    assert shown.feedback[1].mean == 1.0
    assert {row.key: (row.values, row.feedback) for row in shown.sessions} == {
        "a": (0, None), "b": (1, 1.0), "c": (0, None),
    }  # fmt: skip
    store.agree("a", True)
    assert sorted(store.scores(1)) == [-1.0, 1.0]
    store.forget(person="a")
    assert store.scores(1) == [1.0]


def test_a_file_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "live.sqlite").write_text("no database at all, but long enough to be read as one" * 10)
    with pytest.raises(RecordError, match="expected the store of a service"):
        LiveStore(tmp_path).sessions()


def test_nothing_is_half_written(store):
    kept(store, "a")
    with contextlib.suppress(RuntimeError), store._writing() as database:
        database.execute("DELETE FROM sessions")
        raise RuntimeError
    assert [one.key for one in store.sessions()] == ["a"]
    with pytest.raises(RecordError, match="cannot be written"), store._writing():
        raise sqlite3.OperationalError("disk is full")


def test_a_store_that_is_only_read_changes_nothing_and_says_what_is_wrong(store):
    kept(store, "a")
    store.add_traffic({Traffic(7, 0, "messages", "200"): 2})
    store.add_traffic({Traffic(7, 0, "messages", "200"): 1, Traffic(8, -1, "messages", "503"): 1})
    reader = LiveStore.to_read(store.folder)
    assert [one.key for one in reader.sessions()] == ["a"]
    assert reader.rows("SELECT * FROM traffic") == [(7, 0, "messages", "200", 3), (8, -1, "messages", "503", 1)]
    with pytest.raises(RecordError, match="cannot be written"):
        reader.end("a")
    reader.close()
    with pytest.raises(RecordError, match="expected the store of a service"):
        LiveStore.to_read(store.folder / "nothing")
    assert not (store.folder / "nothing").exists()


def test_notes_of_turns_are_kept_and_deleted_with_them(store):
    noted = replace(turn(), notes={"request body": "<b>\ud800 0123456789abcdef"})
    store.open("a", "a", 0, consent=True)
    store.add_turn("a", 0, noted)
    assert store.turns("a")[0].notes == noted.notes
    assert store.forget(key="a") == ["a"]
    for path in store.folder.iterdir():
        assert b"0123456789abcdef" not in path.read_bytes()


def test_the_reward_of_a_turn_is_bounded_however_often_its_person_speaks(store):
    kept(store, "a")
    for number in range(50):
        store.add_feedback("a", f"f{number}", 0, -1.0)
    [one] = store.turns("a")
    assert (one.reward, one.info["feedback"]) == (-1.0, -1.0)


def test_a_name_that_is_taken_back_twice_is_removed_from_both_steps(store):
    for step in range(2):
        kept(store, "a")
        assert store.take("rl", step, 1)
        store.forget(key="a")
    assert [(one.stage, one.step) for one in store.removals()] == [("rl", 0), ("rl", 1)]


def test_what_is_forgotten_while_another_program_reads_leaves_the_log_once_that_has_read(store, monkeypatch):
    monkeypatch.setattr("sojourn.live.store.BUSY_S", 0.1)
    kept(store, "secret-1", turns=20)
    reader = LiveStore.to_read(store.folder)
    reader._database.execute("BEGIN")
    reader.sessions()
    assert store.forget(key="secret-1") == ["secret-1"]
    assert not store.without_copies()
    reader.close()
    assert store.without_copies()
    for path in store.folder.iterdir():
        assert b"secret-1" not in path.read_bytes()


def test_removals_of_an_older_store_are_kept(store):
    store.sessions()
    store._database.executescript(
        "DROP TABLE removals;"
        "CREATE TABLE removals (digest TEXT PRIMARY KEY, stage TEXT NOT NULL, step INTEGER NOT NULL);"
        "INSERT INTO removals VALUES ('d', 'rl', 3)"
    )
    store.close()
    for _ in range(2):
        again = LiveStore(store.folder)
        assert [tuple(one) for one in again.removals()] == [("d", "rl", 3)]
        assert [row[5] for row in again.rows("PRAGMA table_info(removals)")] == [1, 2, 3]
        again.close()
