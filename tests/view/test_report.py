"""The report of a run: one file, which needs nothing beside it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from trained_run import train

from sojourn import cli
from sojourn.record.changes import Change, record_changes
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.stopped import Stopped, record_stop
from sojourn.types import Ending, Episode, Group, Message, Role, Score, Task, Trajectory, Turn
from sojourn.view import report
from sojourn.view.server import application
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


def test_the_episodes_are_of_the_evaluation_that_was_made_last(tmp_path: Path) -> None:
    """Also where its stage has fewer steps than the one before."""
    run = train(tmp_path / "run", "stages.warmup.steps=3")
    with EpisodeStore(run) as store:
        assert {count.stage: count.step for count in store.steps()}["evaluation-warmup"] == 3
        assert {entry.stage for entry, _ in report._choose(store)} == {"evaluation-rl"}


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


def test_full_contexts_failures_changes_and_early_stops_are_told(
    runs: Path, client: TestClient, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "seed0", run)
    with RunFolder.open(run) as folder:
        evaluations = folder.evaluations()
        for evaluation in evaluations:
            evaluation["summary"] |= {"full_contexts": 0, "errors": 0}
        folder.write_json("evaluations.json", evaluations)
        report.write_report(run, tmp_path / "before.html")
        assert ">contexts full</th>" not in (tmp_path / "before.html").read_text()
        evaluations[-1]["summary"] |= {"full_contexts": 7123, "errors": 4567}
        folder.write_json("evaluations.json", evaluations)
        record_changes(folder, "rl", 4, [Change("stages.rl.steps", 6, 9)])
        record_stop(folder, "rl", Stopped(5, "two evaluations in a row did not improve"))
    report.write_report(run, tmp_path / "report.html")
    page = TestClient(application([run]), base_url="http://127.0.0.1").get("/runs/run").text
    for text in ((tmp_path / "report.html").read_text(), page):
        assert text.count(">contexts full</th>") == text.count('<td class="right">7123</td>') == 1
        assert text.count(">errors</th>") == 1 + ("<h2>Steps</h2>" in text)
        assert text.count('<td class="right">4567</td>') == 1
        assert "<p>Changed after step 4 of &#39;rl&#39;: stages.rl.steps 6 -&gt; 9.</p>" in text
        assert "<p>Stage &#39;rl&#39; ended after step 5: two evaluations in a row did not improve.</p>" in text
    assert "Changed after step" not in client.get("/runs/seed0").text
