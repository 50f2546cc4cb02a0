"""The report of a run: one file, which needs nothing beside it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from sojourn import cli
from sojourn.record.episodes.store import EpisodeStore
from sojourn.types import Ending, Episode, Group, Message, Role, Score, Task, Trajectory, Turn
from sojourn.view import report
from tests.made import sample

HOSTILE = "</pre></script><script>document.title='taken'</script><img src=x onerror=alert(1)>\x1b[31m\x00\u202e"


def run_command(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sojourn", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_a_report_describes_the_run_and_some_episodes(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    chosen = report.write_report(runs / "seed0", out)
    text = out.read_text()
    assert 3 < chosen == text.count('<details class="episode"') <= report.MAX_EPISODES
    assert text.count('<figure class="chart"') > 8
    assert "highest reward" in text
    assert "lowest reward" in text
    assert not re.search(r'(?:href|src)="(?!data:)', text), "it needs something beside it"


def test_named_episodes_are_in_the_report(runs: Path, tmp_path: Path) -> None:
    with EpisodeStore(runs / "seed0") as store:
        names = [entry.id for entry in store.query(stage="rl", step=2, limit=2)]
    assert report.write_report(runs / "seed0", tmp_path / "a.html", names) == 2
    text = (tmp_path / "a.html").read_text()
    assert all(name in text for name in names)


def test_text_of_an_agent_is_shown_and_never_runs(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "seed0", run)
    message = Message(Role.ASSISTANT, HOSTILE, thought=HOSTILE)
    turn = Turn(-1, sample([1]).tokens, sample([1, 2]), message, observed=(Message(Role.USER, HOSTILE),))
    played = Episode(
        "hostile", Task(HOSTILE, {"x": HOSTILE}, 0, "train", (HOSTILE,)), (Trajectory("agent", (turn,), Ending.DONE),)
    )
    with EpisodeStore(run, write=True) as store:
        scores = [[Score(sample([1]).logprobs * 0, {HOSTILE: 1.0}, {"judge": "too slow: " + HOSTILE})]]
        store.append("rl", 99, [Group(0, played.task, (played,))], scores)
    report.write_report(run, tmp_path / "report.html", ["hostile"])
    text = (tmp_path / "report.html").read_text()
    assert text.count("<script>") == 1
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "the judge's text" in text
    assert "too slow: &lt;/pre&gt;" in text
    assert not re.search("[\x00\x1b\u202e]", text)


def test_an_existing_file_is_not_overwritten(runs: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "report.html"
    out.write_text("mine")
    assert run_command(monkeypatch, "report", str(runs / "seed0"), "--out", str(out)) == 2
    assert "this file exists" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert run_command(monkeypatch, "report", str(runs / "seed0"), "--out", str(out), "--force") == 0
    assert "Sojourn" in out.read_text()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    assert run_command(monkeypatch, "report", str(tmp_path), "--out", str(tmp_path / "x.html")) == 2
    assert "not a run folder" in capsys.readouterr().err
