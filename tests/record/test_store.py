"""The episode store gives back exactly what it was given, beside a writer and after damage."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import COLUMNS
from sojourn.record.episodes.step_file import StepFile
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import (
    Credit,
    Ending,
    Episode,
    Group,
    Message,
    Role,
    Sample,
    Score,
    Stop,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    Versions,
)


def same(a, b) -> bool:
    """Whether two facts are equal in type and value, arrays and their dtypes included."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and same(list(a.values()), list(b.values()))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


def make_turn(rng: np.random.Generator, parent: int, length: int, *, allowed: bool = False) -> Turn:
    limits = tuple(None if i % 2 else rng.integers(0, 50_000, i) for i in range(length)) if allowed else None
    return Turn(
        parent=parent,
        context=rng.integers(0, 260_000, int(rng.integers(0, 9))),
        sample=Sample(
            tokens=rng.integers(0, 260_000, length),
            logprobs=np.log(rng.random(length)).astype(np.float32),
            versions=Versions(3, 4),
            stop=Stop.LENGTH if allowed else Stop.END,
            temperature=0.7,
            allowed=limits,
        ),
        message=Message(
            Role.ASSISTANT, "ünï\ud800", "think", calls=(ToolCall("click", {"at": [1, 2.5], "x": None}, "c1"),)
        ),
        reward=0.1 + 0.2,
        info={"success": 1.0, "odd": math.nan},
        images=("ab" * 32,),
        state="room 3",
        observed=(Message(Role.TOOL, "ok", answers="c1"), Message(Role.USER, "", images=("ab" * 32,))),
    )


def make_group(seed: int, slot: int = 0, *, plays: int = 3) -> tuple[Group, list[Score], list[Credit]]:
    """A group with a fork, a frozen seat, a turn without tokens, a failed episode, and constrained samples."""
    rng = np.random.default_rng(seed)
    task = Task("rooms", {"start": seed, "nested": {"a": [1, "x"]}}, 2**63 + seed, "train", ("easy", f"seed-{seed}"))
    episodes = []
    for play in range(plays):
        turns = (make_turn(rng, -1, 4), make_turn(rng, 0, 0), make_turn(rng, 0, 7, allowed=True))
        silent = dataclasses.replace(turns[0], message=None, state=None, observed=(), images=(), info={})
        mine = Trajectory("agent", turns, Ending.TURNS)
        other = Trajectory("rival", (silent,), Ending.DONE, trainable=False)
        error = "the browser died" if play == plays - 1 else None
        episodes.append(Episode(f"{seed}-{slot}-{play}", task, (other, mine), error, 1.25))
    group = Group(slot, task, tuple(episodes))
    scores = [
        Score(rng.random(3).astype(np.float32), {"native": float(rng.random())}, {"judge": "wéll\ud800"})
        for _ in group.trajectories
    ]
    credits = [
        Credit(tuple(rng.random(len(turn.sample.tokens)).astype(np.float32) for turn in trajectory.turns))
        for trajectory in group.trajectories
    ]
    if scores:  # one with an outcome, and another with targets of a critic
        scores[0] = dataclasses.replace(scores[0], outcome=float(rng.random()))
        targets = tuple(rng.random(len(tokens)).astype(np.float32) for tokens in credits[-1].tokens)
        targets[-1][1:] = np.nan
        credits[-1] = dataclasses.replace(credits[-1], targets=targets)
    return group, scores, credits


def fill(folder: Path, steps: int = 3, stage: str = "rl") -> list[tuple[Group, list[Score], list[Credit]]]:
    made = []
    with EpisodeStore(folder, write=True) as store:
        for step in range(steps):
            pair = [make_group(10 * step + slot, slot) for slot in range(2)]
            store.append(stage, step, [g for g, _, _ in pair], [s for _, s, _ in pair], [c for _, _, c in pair])
            made += pair
    return made


def test_groups_come_back_exactly(tmp_path: Path):
    made = fill(tmp_path)
    with EpisodeStore(tmp_path) as store:
        records = list(store.records("rl"))
        assert [(r.step, r.group.slot) for r in records] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
        for record, (group, scores, credits) in zip(records, made, strict=True):
            assert same(record.group, group)
            assert same(list(record.scores), scores)
            assert same(list(record.credits), credits)
        assert same(next(store.groups("rl", [2])), made[4][0])


def test_streams_come_back_with_the_episode_that_they_are_of(tmp_path: Path):
    pair = [make_group(slot, slot) for slot in range(2)]
    streams = {
        name: [[tuple(of * factor for of in credit.tokens) for credit in credits] for _, _, credits in pair]
        for name, factor in (("entropy", 2.0), ("weight", -1.0))
    }
    with EpisodeStore(tmp_path, write=True) as store:
        store.append("rl", 0, [g for g, _, _ in pair], [s for _, s, _ in pair], [c for _, _, c in pair], streams)
    with EpisodeStore(tmp_path) as store:
        group, _, credits = pair[1]
        found = store.record(group.episodes[1].id)
        assert list(found.streams) == ["entropy", "weight"]
        assert same(found.streams["entropy"], (tuple(of * 2.0 for of in credits[1].tokens),))
        assert same(found.streams["weight"], (tuple(of * -1.0 for of in credits[1].tokens),))
        assert store.record(group.episodes[2].id).streams == {}, "the failed one has none"


def test_streams_that_do_not_fit_are_refused(tmp_path: Path):
    group, scores, credits = make_group(0)
    short = {"entropy": [[tuple(of[:-1] for of in credit.tokens) for credit in credits]]}
    with EpisodeStore(tmp_path, write=True) as store:
        with pytest.raises(RecordError, match="arrays of the stream 'entropy' of shape"):
            store.append("rl", 0, [group], [scores], [credits], short)
        with pytest.raises(RecordError, match="trajectories to judge but no arrays of 'entropy'"):
            store.append("rl", 0, [group], [scores], [credits], {"entropy": []})
        assert store.steps() == []


def test_an_episode_comes_back_with_its_own_judgement(tmp_path: Path):
    group, scores, credits = fill(tmp_path, steps=1)[1]
    with EpisodeStore(tmp_path) as store:
        found = store.record(group.episodes[1].id)
        assert same(found.episode, group.episodes[1])
        assert same(found.scores, (scores[1],))
        assert same(found.credits, (credits[1],))
        assert same(store.load(group.episodes[2].id), group.episodes[2])  # the failed one
        with pytest.raises(RecordError, match="'nobody' is not in"):
            store.load("nobody")


def test_groups_without_judgement_and_several_appends_to_a_step(tmp_path: Path):
    first, second = make_group(1, slot=5)[0], make_group(2, slot=6)[0]
    with EpisodeStore(tmp_path, write=True) as store:
        store.append("test/base", 0, [first])
        store.append("test/base", 0, [second])
        records = list(store.records("test/base"))
        assert [same(r.group, g) for r, g in zip(records, (first, second), strict=True)] == [True, True]
        assert all(r.scores == () and r.credits == () for r in records)


def test_query_filters(tmp_path: Path):
    fill(tmp_path)
    with EpisodeStore(tmp_path) as store:
        everything = list(store.query())
        assert len(everything) == 18
        assert [e.id for e in store.query(newest=True)] == [e.id for e in everything][::-1]
        assert {e.step for e in store.query(step=range(1, 3))} == {1, 2}
        assert {e.step for e in store.query(step=range(0, 3, 2))} == {0, 2}
        assert [e.id for e in store.query(step=0, limit=2, offset=1)] == ["0-0-1", "0-0-2"]
        assert {e.tags for e in store.query(tag="seed-11")} == {("easy", "seed-11")}
        assert list(store.query(tag="eas")) == []
        assert len(list(store.query(failed=True))) == 6
        assert all(e.error is None and e.success == 1.0 for e in store.query(success=True))
        assert list(store.query(success=False)) == []
        assert {e.seed for e in store.query(task=everything[0].task)} == {2**63}
        for number in (2**63, -(2**63) - 1, 10**30):
            with pytest.raises(RecordError, match="more than 18 digits"):
                list(store.query(step=number))
        assert [(s.step, s.groups, s.episodes) for s in store.steps()] == [(0, 2, 6), (1, 2, 6), (2, 2, 6)]


def test_rows_say_what_the_records_hold(tmp_path: Path):
    group, scores, _ = fill(tmp_path, steps=1)[0]
    with EpisodeStore(tmp_path) as store:
        row, *_, failed = store.query(task=group.task.id)
        assert row.reward == pytest.approx(scores[0].total)
        assert row.parts == pytest.approx(dict(scores[0].parts))
        assert (row.turns, row.sampled, row.ending, row.seconds) == (3, 11, "turns", 1.25)
        assert (failed.error, failed.reward, failed.success) == ("the browser died", None, None)


def test_truncate_removes_the_step_and_later_ones_of_that_stage_only(tmp_path: Path):
    made = fill(tmp_path)
    fill(tmp_path, stage="rl-2")
    with EpisodeStore(tmp_path, write=True) as store:
        store.truncate("rl", 1)
        assert {(e.stage, e.step) for e in store.query()} == {("rl", 0), ("rl-2", 0), ("rl-2", 1), ("rl-2", 2)}
        assert len(list((tmp_path / "tokens").iterdir())) == 4
        store.append("rl", 1, [made[2][0]], [made[2][1]])
        assert same(next(store.groups("rl", [1])), made[2][0])


def test_scores_that_do_not_fit_are_refused_and_leave_nothing(tmp_path: Path):
    group, scores, credits = make_group(0)
    with EpisodeStore(tmp_path, write=True) as store:
        with pytest.raises(RecordError, match="2 trajectories to judge but 1 scores"):
            store.append("rl", 0, [group], [scores[:1]])
        with pytest.raises(RecordError, match=r"a credit of shape .* where its turns need \(4, 0, 7\)"):
            store.append("rl", 0, [group], [scores], [[Credit(credits[0].tokens[:2]), credits[1]]])
        assert list(store.query()) == []
        assert list((tmp_path / "tokens").iterdir()) == []


def test_readers_work_beside_a_writer(tmp_path: Path):
    seen: list[int] = []
    with EpisodeStore(tmp_path) as reader, EpisodeStore(tmp_path, write=True) as writer:
        for step in range(4):
            group, scores, _ = make_group(step)
            writer.append("rl", step, [group], [scores])
            thread = threading.Thread(target=lambda: seen.append(sum(1 for _ in reader.groups("rl"))))
            thread.start()
            thread.join()
        rows = reader.query()
        next(rows)  # a reader in the middle of its rows does not stop the writer
        writer.append("rl", 4, [make_group(9)[0]])
        with pytest.raises(RecordError, match="open to read"):
            reader.append("rl", 5, [])
    assert seen == [1, 2, 3, 4]


def test_a_writer_that_was_killed_leaves_whole_steps(tmp_path: Path):
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); import test_store as t\n"
        "from sojourn.record.episodes.store import *\n"
        "store = EpisodeStore(sys.argv[1], write=True)\n"
        "for step in range(3): store.append('rl', step, [t.make_group(step)[0]])\n"
        "os._exit(9)"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)]
    assert subprocess.run(command, check=False).returncode == 9
    with EpisodeStore(tmp_path) as store:
        assert [same(g, make_group(step)[0]) for step, g in enumerate(store.groups("rl"))] == [True] * 3


def test_a_cut_file_gives_the_other_steps_and_says_what_is_missing(tmp_path: Path):
    made = fill(tmp_path)
    damaged = tmp_path / "tokens" / "rl-000001-0.npz"
    damaged.write_bytes(damaged.read_bytes()[:-300])
    with EpisodeStore(tmp_path) as store:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", RuntimeWarning)
            found = list(store.groups("rl"))
        assert len(said) == 6
        assert re.search(r"episode 10-0-0 is left out: .*rl-000001-0.npz cannot be read", str(said[0].message))
        assert [same(a, b[0]) for a, b in zip(found, made[:2] + made[4:], strict=True)] == [True] * 4
        assert len(store.unreadable()) == 6
        damaged.unlink()
        assert all("is missing: restore" in sentence for sentence in store.unreadable())


def test_a_flipped_byte_costs_one_episode(tmp_path: Path):
    fill(tmp_path, steps=1)
    path = tmp_path / "tokens" / "rl-000000-0.npz"
    data = bytearray(path.read_bytes())
    at = data.index(b"2.npy") + 60
    data[at] ^= 0xFF
    path.write_bytes(data)
    with EpisodeStore(tmp_path) as store:
        assert len(store.unreadable()) == 1
        with pytest.warns(RuntimeWarning, match="0-0-2 is left out"):
            groups = list(store.groups("rl"))
        assert [len(group.episodes) for group in groups] == [2, 3]


@pytest.mark.parametrize("damage", [b"", b"not a database at all, but long enough to have a header" * 40])
def test_a_lost_index_is_made_again(tmp_path: Path, damage: bytes):
    made = fill(tmp_path)
    index = tmp_path / "episodes.sqlite"
    index.write_bytes(damage)
    with EpisodeStore(tmp_path) as store, pytest.warns(RuntimeWarning, match="is damaged .* made again in memory"):
        assert same(list(store.groups("rl")), [group for group, _, _ in made])
    assert index.read_bytes() == damage  # looking changes nothing
    with pytest.warns(RuntimeWarning, match=r"(was lost|moved to episodes\.damaged), and is made again from tokens/"):
        store = EpisodeStore(tmp_path, write=True)
    assert same(list(store.groups("rl")), [group for group, _, _ in made])
    store.close()


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE episodes (name TEXT)",
        f"CREATE TABLE episodes ({', '.join(COLUMNS)}, more)",
        f"CREATE VIEW episodes AS SELECT {', '.join(f'1 AS {name}' for name in COLUMNS)}",
    ],
)
def test_an_index_of_another_schema_is_made_again(tmp_path: Path, table: str):
    made = fill(tmp_path)
    (tmp_path / "episodes.sqlite").unlink()
    with closing(sqlite3.connect(tmp_path / "episodes.sqlite")) as other:
        other.execute(table)
    with pytest.warns(RuntimeWarning, match=r"was damaged .* made again from tokens/"):
        store = EpisodeStore(tmp_path, write=True)
    assert same(list(store.groups("rl")), [group for group, _, _ in made])
    store.truncate("rl", 0)
    assert list(store.query()) == []
    store.close()


def test_a_deleted_index_is_made_again_and_new_runs_say_nothing(tmp_path: Path):
    made = fill(tmp_path / "a")  # a warning would be an error here
    (tmp_path / "a" / "episodes.sqlite").unlink()
    with pytest.warns(RuntimeWarning, match="was lost, and is made again"):
        store = EpisodeStore(tmp_path / "a", write=True)
    assert same(list(store.groups("rl")), [group for group, _, _ in made])
    store.close()


def test_foreign_files_among_the_tokens_are_left_alone(tmp_path: Path):
    made = fill(tmp_path)
    for name in ("rl-x-y.npz", "rl.npz", "notes.txt"):
        (tmp_path / "tokens" / name).write_bytes(b"mine")
    np.savez(tmp_path / "tokens" / "list.npz", index=np.frombuffer(b"[1]", np.uint8))
    with (tmp_path / "tokens" / "one.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    (tmp_path / "episodes.sqlite").unlink()
    with pytest.warns(RuntimeWarning) as said:
        store = EpisodeStore(tmp_path, write=True)
    assert sum("left out of the index" in str(warning.message) for warning in said) == 4
    store.truncate("rl", 1)
    assert same(list(store.groups("rl")), [group for group, _, _ in made[:2]])
    assert len(list((tmp_path / "tokens").iterdir())) == 6
    store.close()


def test_an_index_that_cannot_be_opened_is_one_sentence(tmp_path: Path):
    (tmp_path / "episodes.sqlite").mkdir(parents=True)
    with pytest.raises(RecordError, match="is a folder, not a file: remove it"):
        EpisodeStore(tmp_path, write=True)
    (tmp_path / "b").touch()
    with pytest.raises(RecordError, match=r"tokens cannot be written \(Not a directory\)"):
        EpisodeStore(tmp_path / "b", write=True)


def test_a_full_disk_is_one_sentence_and_costs_nothing_that_was_there(tmp_path: Path, full_disk):
    made = fill(tmp_path)
    with EpisodeStore(tmp_path, write=True) as store:
        with full_disk(), pytest.raises(RecordError, match=r"rl-000003-0.npz cannot be written \(File too large\)"):
            store.append("rl", 3, [make_group(9)[0]])
        with (
            full_disk(),
            pytest.raises(RecordError, match=r"episodes.sqlite cannot be written \(.*\): free disk space"),
        ):
            store.truncate("rl", 0)
        assert same(list(store.groups("rl")), [group for group, _, _ in made])
        store.append("rl", 3, [made[0][0]])
        assert not store.unreadable()


def test_an_index_cut_in_half_is_made_again(tmp_path: Path):
    made = fill(tmp_path, steps=20)
    index = tmp_path / "episodes.sqlite"
    index.write_bytes(index.read_bytes()[: index.stat().st_size // 2])
    with EpisodeStore(tmp_path) as store, pytest.warns(RuntimeWarning, match="made again in memory"):
        assert len(list(store.groups("rl"))) == len(made)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path):
    made = fill(tmp_path, steps=1)
    tmp_path.chmod(0o555)
    try:
        with EpisodeStore(tmp_path) as store:
            assert same(next(store.groups("rl")), made[0][0])
    finally:
        tmp_path.chmod(0o755)


def test_nothing_is_pickled(tmp_path: Path):
    fill(tmp_path, steps=1)
    path = tmp_path / "tokens" / "rl-000000-0.npz"
    with path.open("wb") as file:
        np.savez(file, index=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with StepFile(path) as file, pytest.raises(RecordError, match="cannot be read"):
        file.index()
    kinds = {
        row[0] for row in sqlite3.connect(tmp_path / "episodes.sqlite").execute("SELECT typeof(parts) FROM episodes")
    }
    assert kinds == {"text"}
