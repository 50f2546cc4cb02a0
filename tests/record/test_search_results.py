"""Searches find what a reader would: against a plain look at every record, page by page, whatever is in the texts."""

from __future__ import annotations

import dataclasses
import re
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

import big_run
from single_episodes import group_of, ids, recorded

from sojourn.errors import QueryError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.index import open_to_read
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.search.fts_documents import MAX_CHARACTERS
from sojourn.record.search.query import ORDERS, Query, quoted
from sojourn.record.search.search_results import page
from sojourn.types import (
    Ending,
    Episode,
    Message,
    Role,
    ToolCall,
    Trajectory,
)

SIZE = big_run.Size(steps=6, groups=8, plays=8, evaluations=2, panel=25, turns=5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "big"
    big_run.make(folder, SIZE, seed=2)
    return folder


@pytest.fixture(scope="module")
def held(run: Path) -> list[tuple[EpisodeRow, Episode]]:
    """Every episode in the order of recording."""
    with EpisodeStore(run) as store:
        entries = list(store.query())
        rows = {entry.id: entry for entry in entries}
        order = [row.entry.id for row in store.search("sort:oldest", 1000).rows]
        return [(rows[name], store.load(name)) for name in order]


def spoken(episode: Episode, part: str) -> str:
    """The words of a part, passage by passage; only letters and digits are in these runs."""
    said: list[str] = []
    for turn in (turn for trajectory in episode.trajectories for turn in trajectory.turns):
        for message in (*turn.observed, *([turn.message] if turn.message else [])):
            if part == {"assistant": "message", "system": "system"}.get(message.role, "observed"):
                calls = "".join(f" {call.name} {' '.join(call.arguments.values())}" for call in message.calls)
                said.append(f"{message.thought} {message.text}{calls}")
    said += [episode.error] if part == "error" and episode.error else []
    return " | ".join(f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} " for text in said)


def has(text: str, *parts: str) -> Callable[[EpisodeRow, Episode], bool]:
    return lambda entry, episode: any(
        f" {text} " in spoken(episode, part) for part in parts or ("message", "observed", "system", "error")
    )


CASES: dict[str, Callable[[EpisodeRow, Episode], bool]] = {
    "": lambda e, _: True,
    "refund": has("refund"),
    "REFUND": has("refund"),
    "refund umbrella": lambda e, p: has("refund")(e, p) and has("umbrella")(e, p),
    '"of the"': has("of the"),
    "of-the": has("of the"),
    "message:refund": has("refund", "message"),
    "observed:refund -message:the": lambda e, p: has("refund", "observed")(e, p) and not has("the", "message")(e, p),
    "system:easy": has("easy", "system"),
    "-refund": lambda e, p: not has("refund")(e, p),
    '-refund -"of the"': lambda e, p: not has("refund")(e, p) and not has("of the")(e, p),
    "tag:hard": lambda e, _: "hard" in e.tags,
    "tag:hard,easy -tag:music": lambda e, _: bool({"hard", "easy"} & set(e.tags)) and "music" not in e.tags,
    "tag:hard tag:music": lambda e, _: {"hard", "music"} <= set(e.tags),
    "tool:buy_now": lambda e, p: has("buy now", "message")(e, p),
    "env:toy,shop stage:rl": lambda e, _: e.env in ("toy", "shop") and e.stage == "rl",
    "-stage:rl": lambda e, _: e.stage != "rl",
    "split:test": lambda e, _: e.split == "test",
    "step:2..3": lambda e, _: 2 <= e.step <= 3,
    "step:>=4": lambda e, _: e.step >= 4,
    "reward:>0.5": lambda e, _: e.reward is not None and e.reward > 0.5 + 1e-6,
    "-reward:>0.5": lambda e, _: e.reward is None or e.reward <= 0.5 + 1e-6,
    "reward:0.97..": lambda e, _: e.reward is not None and round(e.reward, 4) >= 0.97,
    "reward:0.96": lambda e, _: e.reward is not None and round(e.reward, 4) == 0.96,  # it is kept as 0.9599999785
    "success:yes": lambda e, _: e.success == 1,
    "success:no": lambda e, _: e.success == 0,
    "success:yes,no": lambda e, _: e.error is None,
    "ending:malformed,turns": lambda e, _: e.ending in ("malformed", "turns"),
    "error:any": lambda e, _: e.error is not None,
    "error:none -refund": lambda e, p: e.error is None and not has("refund")(e, p),
    "error:the": has("the", "error"),
    "turns:>5 tokens:<150": lambda e, _: e.turns > 5 and e.sampled < 150,
    "seed:3": lambda e, _: e.seed == 3,
    "seed:003": lambda e, _: e.seed == 3,
    "malformed:>0 refund": lambda e, p: e.malformed > 0 and has("refund")(e, p),
    "cut_off:1": lambda e, _: e.cut_off == 1,
    "version:1": lambda e, _: e.oldest is not None and e.oldest <= 1 <= e.newest,
    "advantage:<0": lambda e, _: e.advantage is not None and e.advantage < 0,
    "slot:3..5 stage:rl": lambda e, _: 3 <= e.slot <= 5 and e.stage == "rl",
}


@pytest.mark.parametrize("text", CASES)
def test_a_search_finds_what_a_look_at_every_record_finds(run: Path, held, text: str):
    expected = [entry.id for entry, episode in held if CASES[text](entry, episode)][::-1]
    with EpisodeStore(run) as store:
        found = store.search(text, 1000)
    assert [row.entry.id for row in found.rows] == expected
    assert found.total == len(expected)
    assert found.total_text == f"{len(expected):,}"
    assert found.next is None


def test_the_cases_tell_something(held):
    """Apart from the first, every case finds some and leaves some."""
    for text, fits in list(CASES.items())[1:]:
        found = sum(fits(*pair) for pair in held)
        assert 0 < found < len(held), (text, found)


def test_names_and_ids_are_found_exactly(run: Path, held):
    entry, _ = held[40]
    with EpisodeStore(run) as store:
        assert [row.entry for row in store.search(f'id:"{entry.id}"').rows] == [entry]
        assert {row.entry.task for row in store.search(f"task:{entry.task}").rows} == {entry.task}
        assert store.search(f"id:{entry.id[:-1]}").total == 0
        assert store.labels("tag") == sorted({tag for one, _ in held for tag in one.tags})
        assert store.labels("tool") == sorted({tool for one, _ in held for tool in one.tools})
        assert set(store.labels("tool")) == {name for names in big_run.TOOLS.values() for name in names}


@pytest.mark.parametrize("most", [40, 10_000])  # what is more than is counted is looked for in another way
@pytest.mark.parametrize("words", ["", "refund", "tag:hard"])
@pytest.mark.parametrize("order", ORDERS)
def test_pages_follow_each_other_and_hold_everything_once(run: Path, held, order: str, words: str, most: int):
    query, pages, after = Query.parse(f"{words} sort:{order}"), [], ""
    every = sum(CASES[words](entry, episode) for entry, episode in held)
    with closing(open_to_read(run / "episodes.sqlite")) as database:
        while after is not None:
            got = page(database, query, 30, after, max_counted=most)
            pages.append(got.rows)
            after = got.next
            assert got.total == min(most + 1, every)
    entries = [entry for one in pages for entry in one]
    assert all(len(one) == 30 for one in pages[:-1])
    assert len({entry.id for entry in entries}) == len(entries) == every > 60
    numbers = {entry.id: number for number, (entry, _) in enumerate(held)}
    down = order.startswith("-") or order == "newest"
    name = {"newest": None, "oldest": None, "tokens": "sampled"}.get(order.strip("-"), order.strip("-"))

    def key(entry: EpisodeRow):
        value = getattr(entry, name) if name else 0
        sign = -1 if down else 1
        return value is None, sign * (value or 0), sign * numbers[entry.id]

    assert entries == sorted(entries, key=key)


def test_a_page_that_none_gave_is_refused(run: Path):
    with EpisodeStore(run) as store:
        good = store.search("sort:reward").next
        assert store.search("sort:reward", after=good).rows
        for text, after in (
            ("", good),
            ("sort:reward", "12"),
            ("", "1; DROP TABLE episodes"),
            ("sort:reward", "1:1 OR 1"),
            ("", "-1"),
        ):
            with pytest.raises(QueryError, match="is no position in these results"):
                store.search(text, after=after)
        for limit in (0, -1, 1001):
            with pytest.raises(QueryError, match=f"a page of {limit} rows: ask for 1 to 1000"):
                store.search("", limit)


def test_excerpts_show_where_the_words_are(run: Path):
    with EpisodeStore(run) as store:
        for text in ("refund", '"of the"', "message:the refund", "error:the"):
            found = store.search(text)
            assert found.rows
            for row in found.rows:
                seat, turn, part, segments = row.excerpt
                hits = [segment.text.lower() for segment in segments if segment.hit]
                assert hits
                assert {hit.replace(".", "") for hit in hits} <= {"refund", "of the", "the"}
                if part != "error":
                    shown = store.load(row.entry.id).trajectories[seat].turns[turn]
                    texts = {"message": (shown.message,), "observed": shown.observed, "system": shown.observed}[part]
                    whole = " ".join(str(message).lower() for message in texts)
                    assert all(hit in whole for hit in hits)
        assert all(row.excerpt is None for row in store.search("tag:hard -refund").rows)


HOSTILE = (
    '"', 'a" OR b', "NEAR(", "NEAR(a b, 3)", "a*", "message:a", "{message} : a", "a AND b", "a OR b", "NOT a", "^a",
    "a + b", "'; DROP TABLE episodes; --", "a\x00b", "\ud800a", "\U0001f600a", "a\ue000b", "\x01a\x02", "é", "漢字",
    "%a_", "a\\", "-a", "(a", "a)", "\u202ea",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words_are_only_words(tmp_path: Path, text: str):
    """A phrase of anything finds the episode that has it, and not the one that would fit it as code."""
    with recorded(tmp_path, group_of(f"x {text} y", name="it"), group_of("a c b", name="other")) as store:
        for part in ("", "message:"):
            if text == '"':
                with pytest.raises(QueryError, match="no letter or digit"):
                    store.search(part + quoted(text))
            else:
                assert "it" in ids(store, part + quoted(text))
                alone = re.findall(r"[^\W_]+", text.replace("\ue000", " "))
                assert ("other" in ids(store, part + quoted(text))) == (alone == ["a"])
        for key in ("tag", "env", "id", "stage", "tool"):
            assert ids(store, f"{key}:{quoted(text)}") == []
        assert store.search("").total == 2


def test_hostile_texts_are_recorded_and_shown_as_text(tmp_path: Path):
    script = "<script>alert('needle')</script> \x1b[31m\x00 \x01fake\x02"
    tags = ("a,b", 'q"uote', "\ud800", "<b>")
    call = ToolCall("click\ud800", {"at": "needle\x00"})
    with recorded(
        tmp_path, group_of(script, "bad \udcff name", error="lost \udcff file", tags=tags, calls=[call])
    ) as store:
        [row] = store.search("needle").rows
        segments = row.excerpt.segments
        assert [segment.text for segment in segments if segment.hit] in (["needle"], ["needle", "needle"])
        assert "".join(segment.text for segment in segments).isprintable()
        assert (
            ids(store, "fake")
            == ids(store, "error:lost")
            == ids(store, 'tag:"a,b"')
            == ids(store, 'tag:"q\\"uote"')
            == ["a"]
        )
        assert ids(store, "tag:a") == []
        assert store.load("a").error == "lost \udcff file"  # the record is exact
        assert ids(store, "tool:click\ufffd") == ["a"]


def test_a_phrase_does_not_run_on_into_another_message(tmp_path: Path):
    with recorded(tmp_path, group_of("one two", "three four", observed="zero")) as store:
        assert ids(store, '"one two"') == ids(store, "one four") == ["a"]
        assert ids(store, '"two three"') == ids(store, '"zero one"') == []


def test_megabytes_in_one_line_are_found_to_a_limit(tmp_path: Path):
    long = "needle " + "x" * 3_000_000
    many = "word " * (MAX_CHARACTERS // 5 + 1) + "late"
    with recorded(tmp_path, group_of(long, name="long"), group_of(many, name="many")) as store:
        [row] = store.search("needle").rows
        assert row.entry.id == "long"
        assert sum(len(segment.text) for segment in row.excerpt.segments) < 1000
        assert ids(store, "word") == ["many"]
        assert ids(store, "late") == []
    assert (tmp_path / "episodes.sqlite").stat().st_size < 2_000_000


def test_what_a_new_context_shows_again_is_held_once(tmp_path: Path):
    again = Message(Role.ASSISTANT, "needle in the hay")
    group = group_of("needle in the hay", "straw")
    first, second = group.episodes[0].trajectories[0].turns
    turns = (first, dataclasses.replace(second, parent=-1, observed=(again, Message(Role.USER, "more"))))
    episode = dataclasses.replace(group.episodes[0], trajectories=(Trajectory("agent", turns, Ending.DONE),))
    with recorded(tmp_path, dataclasses.replace(group, episodes=(episode,))) as store:
        assert store.search("message:needle").rows[0].excerpt.turn == 0
        assert ids(store, "observed:needle") == []
        assert ids(store, "observed:more") == ["a"]


def test_an_index_made_again_is_the_same(run: Path, tmp_path: Path):
    (tmp_path / "tokens").symlink_to(run / "tokens")
    with EpisodeStore(run) as original, EpisodeStore(tmp_path) as made:
        assert list(made.query()) == list(original.query())
        for text in ("refund", "tool:click", "advantage:>0 cut_off:0"):
            assert sorted(ids(made, text)) or text
            assert {row.entry.id for row in made.search(text, 1000).rows} == {
                row.entry.id for row in original.search(text, 1000).rows
            }


def test_threads_search_one_store(run: Path):
    results: list[int] = []
    with EpisodeStore(run) as store:
        threads = [threading.Thread(target=lambda: results.append(store.search("refund").total)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [store.search("refund").total] * 4
