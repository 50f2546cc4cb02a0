"""The origins of a step's groups are recorded and found, those of groups that were recorded before included."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from single_episodes import group_of, ids

from sojourn.record.episodes.episode_row import COLUMNS_BEFORE_ORIGIN
from sojourn.record.episodes.origins import first_record, reused_in, uses_of
from sojourn.record.episodes.reused import ReusedGroup
from sojourn.record.episodes.store import EpisodeStore

AGAIN = [ReusedGroup("rl", 3, 0, "replay", 1, 0), ReusedGroup("rl", 3, 0, "experts", 0, 1)]


def mixed(folder: Path) -> EpisodeStore:
    """Returns a store of two steps of one live group each, a demonstration in the first, and a step that replays."""
    live, shown = group_of("needle", name="a"), replace(group_of("needle", name="x"), origin="experts")
    later = group_of("needle", name="b")
    store = EpisodeStore(folder, write=True)
    store.append("rl", 0, [live, shown])
    store.append("rl", 1, [later])
    store.append("rl", 3, [], reused=[replace(later, origin="replay"), shown])
    return store


def test_a_step_names_the_groups_that_it_trains_again(tmp_path: Path):
    with mixed(tmp_path) as store:
        assert [(row.id, row.origin) for row in store.query()] == [("a", "policy"), ("x", "experts"), ("b", "policy")]
        assert [record.group.origin for record in store.records("rl", [0])] == ["policy", "experts"]
        assert reused_in(store, "rl", 3) == AGAIN
        assert [group.age for group in AGAIN] == [2, 3]
        assert uses_of(store, "rl", 1, 0) == AGAIN[:1]
        assert uses_of(store, "rl", 0, 0) == reused_in(store, "rl", 1) == []


def test_what_a_step_plays_beside_reused_groups_is_in_a_file_of_its_own(tmp_path: Path):
    with mixed(tmp_path) as store:
        store.append("rl", 3, [group_of("needle", name="c")])
        assert [(row.part, row.place) for row in store.query(id="c")] == [(1, 0)]
        assert reused_in(store, "rl", 3) == AGAIN


def test_search_finds_a_group_by_all_its_origins(tmp_path: Path):
    with mixed(tmp_path) as store:
        assert ids(store, "origin:policy") == ["b", "a"]
        assert ids(store, "origin:experts") == ["x"]
        assert ids(store, "origin:replay") == ["b"]  # which the policy played, and which was replayed
        assert ids(store, "origin:replay,experts needle") == ["b", "x"]
        assert ids(store, "-origin:replay") == ["x", "a"]
        assert ids(store, "origin:dagger") == []


def test_a_lost_index_is_made_again_with_origins(tmp_path: Path):
    mixed(tmp_path).close()
    (tmp_path / "episodes.sqlite").unlink()
    with EpisodeStore(tmp_path) as store:
        assert ids(store, "origin:replay") == ["b"]
        assert reused_in(store, "rl", 3) == AGAIN


def test_a_resumed_run_forgets_what_the_lost_steps_trained_again(tmp_path: Path):
    with mixed(tmp_path) as store:
        store.truncate("rl", 3)
        assert reused_in(store, "rl", 3) == uses_of(store, "rl", 1, 0) == []
    assert not list((tmp_path / "tokens").glob("rl-000003*"))


def test_an_older_index_answers_without_origins_and_is_brought_up_to_date_in_place(tmp_path: Path):
    with EpisodeStore(tmp_path, write=True) as store:
        store.append("rl", 0, [group_of("needle", name="a")])
    with closing(sqlite3.connect(tmp_path / "episodes.sqlite")) as database, database:
        database.executescript("DROP TABLE reused; ALTER TABLE episodes DROP COLUMN origin; PRAGMA user_version = 2;")
        assert [column[1] for column in database.execute("PRAGMA table_info(episodes)")][1:] == [*COLUMNS_BEFORE_ORIGIN]
    with EpisodeStore(tmp_path) as store:
        assert [(row.id, row.origin) for row in store.query()] == [("a", None)]
        assert ids(store, "needle") == ids(store, "-origin:policy") == ["a"]
        assert ids(store, "origin:policy") == reused_in(store, "rl", 0) == []
        assert [record.group.origin for record in store.records("rl")] == ["policy"]
    with EpisodeStore(tmp_path, write=True) as store:
        store.append("rl", 1, [group_of("needle", name="b")], reused=[replace(group_of(name="a"), origin="replay")])
        assert [(row.id, row.origin) for row in store.query()] == [("a", None), ("b", "policy")]
        assert ids(store, "origin:replay") == ["a"]
    assert not list(tmp_path.glob("episodes.older*"))


def test_an_episode_that_is_recorded_twice_names_its_first_record(tmp_path: Path):
    with EpisodeStore(tmp_path, write=True) as store:
        store.append("warmup", 0, [group_of("needle", name="a")])
        store.append("rl", 2, [replace(group_of("needle", name="a"), origin="earlier")])
        store.append("rl", 4, [group_of("needle", name="a#4-7")])
        first, second, copy = store.query(stage="warmup"), store.query(stage="rl", step=2), store.query(step=4)
        [first], [second], [copy] = list(first), list(second), list(copy)
        assert first_record(store, first) is None
        assert first_record(store, second) == first_record(store, copy) == first


def test_a_step_file_without_reused_groups_is_as_it_was(tmp_path: Path):
    mixed(tmp_path).close()
    members = {path.name: np.load(path).files for path in (tmp_path / "tokens").iterdir()}
    assert members["rl-000001-0.npz"] == ["index", "0"]
    assert members["rl-000003-0.npz"] == ["index", "reused"]
    with np.load(tmp_path / "tokens" / "rl-000003-0.npz") as file:
        assert json.loads(file["reused"].tobytes())[0] == AGAIN[0]._asdict()
