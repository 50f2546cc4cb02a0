"""Searches in stores that are cut back, damaged, of an older form, or being written."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from single_episodes import group_of, ids, recorded

from sojourn.record.episodes import index
from sojourn.record.episodes.episode_row import OLDEST_COLUMNS
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Message, Role, ToolCall


def test_what_was_truncated_is_not_found(tmp_path: Path):
    with recorded(
        tmp_path, *(group_of(f"common w{step}", name=f"e{step}", tags=(f"t{step}",)) for step in range(4))
    ) as store:
        store.truncate("rl", 2)
        assert ids(store, "common") == ["e1", "e0"]
        assert ids(store, "w3") == []
        assert ids(store, "-w0") == ["e1"]
        assert store.labels("tag") == ["t0", "t1"]
        store.append("rl", 2, [group_of("other", name="new")])
        assert ids(store, "w2") == ids(store, "w3") == []
        assert ids(store, "other") == ["new"]
        assert ids(store, "sort:oldest") == ["e0", "e1", "new"]


def test_a_damaged_record_is_found_without_an_excerpt(tmp_path: Path):
    with recorded(tmp_path, group_of("needle one", name="whole"), group_of("needle two", name="broken")) as store:
        path = tmp_path / "tokens" / "rl-000001-0.npz"
        path.write_bytes(path.read_bytes()[:-200])
        found = store.search("needle")
        assert [(row.entry.id, row.excerpt is None) for row in found.rows] == [("broken", True), ("whole", False)]
        path.unlink()
        assert [row.entry.id for row in store.search("needle").rows] == ["broken", "whole"]


@pytest.mark.parametrize("damage", ["garbled", "lost", "words"])
def test_a_damaged_index_is_searched_all_the_same(tmp_path: Path, damage: str):
    recorded(tmp_path, group_of("needle one", name="a"), group_of("two", name="b", tags=("t",))).close()
    index = tmp_path / "episodes.sqlite"
    if damage == "garbled":
        index.write_bytes(b"nothing that SQLite knows" * 100)
    elif damage == "lost":
        index.unlink()
    else:
        with closing(sqlite3.connect(index)) as database, database:
            database.execute("DROP TABLE words")
    with EpisodeStore(tmp_path) as store:
        if damage == "lost":
            assert ids(store, "needle") == ["a"]
        else:
            with pytest.warns(RuntimeWarning, match=r"is damaged \(.*\): open it once with write=True"):
                assert ids(store, "needle") == ["a"]
        assert ids(store, "tag:t") == ["b"]
        assert store.search("needle").rows[0].excerpt.segments[0] == ("needle", True)


def test_a_folder_without_episodes_has_none_and_then_has_those_that_come(tmp_path: Path):
    with EpisodeStore(tmp_path) as reader:
        assert reader.search("needle").total == 0
        assert reader.labels("tag") == []
        with recorded(tmp_path, group_of("needle")):
            assert ids(reader, "needle") == ["a"]


def as_an_older_one_wrote(folder: Path) -> None:
    """The same store as the first form had it: rows of fewer columns, in the files too, and no words."""
    with EpisodeStore(folder) as store:
        entries = list(store.query())
    (folder / "episodes.sqlite").unlink()
    with closing(sqlite3.connect(folder / "episodes.sqlite")) as database, database:
        columns = f"{', '.join(OLDEST_COLUMNS)}, PRIMARY KEY (stage, step, part, number)"
        database.execute(f"CREATE TABLE episodes ({columns}) WITHOUT ROWID")
        for entry in entries:
            row = {**vars(entry), "tags": "[]", "parts": "{}", "seed": str(entry.seed)}
            database.execute(
                f"INSERT INTO episodes VALUES ({', '.join('?' * len(OLDEST_COLUMNS))})",
                [row[n] for n in OLDEST_COLUMNS],
            )
    for path in (folder / "tokens").iterdir():
        with np.load(path) as file:
            members = dict(file)
        rows = [{n: row[n] for n in OLDEST_COLUMNS} for row in json.loads(members["index"].tobytes())]
        members["index"] = np.frombuffer(json.dumps(rows).encode(), np.uint8)
        np.savez_compressed(path, **members)


def test_a_store_of_an_older_form_is_read_searched_and_made_new(tmp_path: Path):
    call = ToolCall("click", {"at": 1})
    recorded(tmp_path, group_of("needle one", name="a", calls=[call]), group_of("two", name="b", tags=("t",))).close()
    with EpisodeStore(tmp_path) as store:
        before = list(store.query())
    as_an_older_one_wrote(tmp_path)
    with EpisodeStore(tmp_path) as store:
        assert [(entry.id, entry.tools) for entry in store.query()] == [("a", ()), ("b", ())]
        assert len(store.steps()) == 2
        assert store.load("a").id == "a"
        with pytest.warns(
            RuntimeWarning, match="written by an older Sojourn, without words to search: open it once with"
        ):
            assert ids(store, "needle") == ["a"]
        assert ids(store, "tool:click") == ["a"]  # said once: the index is kept while the store is open
    with pytest.warns(
        RuntimeWarning, match=r"without words to search, was moved to episodes\.older, and is made again"
    ):
        store = EpisodeStore(tmp_path, write=True)
    assert list(store.query()) == [replace(row, origin=None) for row in before]  # which was not recorded
    assert ids(store, "needle") == ids(store, "tool:click") == ["a"]
    store.append("rl", 2, [group_of("needle three", name="c")])
    assert ids(store, "needle") == ["c", "a"]
    store.close()
    EpisodeStore(tmp_path, write=True).close()  # says nothing any more


def said_as_a_call(name: str, text: str):
    """Returns a group of one episode that calls a tool in words, of which the system message tells."""
    group = group_of(text, name=name)
    (trajectory,) = group.episodes[0].trajectories
    system = Message(Role.SYSTEM, "Say one of these calls:\nquery(sql: str)")
    turn = replace(trajectory.turns[0], observed=(system,))
    return replace(group, episodes=(replace(group.episodes[0], trajectories=(replace(trajectory, turns=(turn,)),)),))


def test_tools_that_an_older_form_did_not_know_are_found_and_made_known(tmp_path: Path):
    recorded(tmp_path, said_as_a_call("a", "query('needle')"), group_of("two", name="b")).close()
    with closing(sqlite3.connect(tmp_path / "episodes.sqlite")) as database, database:
        database.executescript("DELETE FROM labels; UPDATE episodes SET tools = '[]'; PRAGMA user_version = 1")
    for path in (tmp_path / "tokens").iterdir():
        with np.load(path) as file:
            members = dict(file)
        rows = [{**row, "tools": []} for row in json.loads(members["index"].tobytes())]
        members["index"] = np.frombuffer(json.dumps(rows).encode(), np.uint8)
        np.savez_compressed(path, **members)
    with EpisodeStore(tmp_path) as store:
        assert ids(store, "needle") == ["a"]  # all else is asked of the index as it is
        with pytest.warns(RuntimeWarning, match="without the tools that are called in words: open it once with"):
            assert ids(store, "tool:query") == ["a"]
        assert ids(store, "-tool:query") == ["b"]
    with pytest.warns(RuntimeWarning, match=r"tools that are called in words, was moved to episodes\.older"):
        EpisodeStore(tmp_path, write=True).close()
    with EpisodeStore(tmp_path) as store:
        assert ids(store, "tool:query") == ["a"]  # and nothing more is said
        assert store.labels("tool") == ["query"]


def test_searches_work_while_another_process_writes(tmp_path: Path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); import single_episodes as t\n"
        "with t.EpisodeStore(sys.argv[1], write=True) as store:\n"
        "    for step in range(40): store.append('rl', step, [t.group_of('needle', name=f'e{step}')])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)]
    seen = [0]
    with subprocess.Popen(command) as writer, EpisodeStore(tmp_path) as store:
        while writer.poll() is None:
            found = store.search("needle", 1000)
            assert [row.entry.step for row in found.rows] == list(range(found.total))[::-1]
            seen.append(found.total)
    assert writer.returncode == 0
    assert all(a <= b for a, b in pairwise(seen))
    with EpisodeStore(tmp_path) as store:
        assert store.search("needle").total == 40


def test_a_search_does_not_find_what_is_not_committed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorded(tmp_path / "other", group_of("needle")).close()
    (tmp_path / "run" / "tokens").mkdir(parents=True)
    asked = index.has_records

    def ask_before_the_writer(tokens: Path) -> bool:
        """Answers, and then writes the file of a step whose rows are not committed."""
        answer = asked(tokens)
        shutil.copytree(tmp_path / "other" / "tokens", tokens, dirs_exist_ok=True)
        return answer

    monkeypatch.setattr(index, "has_records", ask_before_the_writer)
    with EpisodeStore(tmp_path / "run") as store:
        assert store.search("needle").total == 0
