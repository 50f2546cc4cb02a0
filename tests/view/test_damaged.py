"""A run that is half-written or damaged opens with what is there, and says what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sojourn.record.episodes.store import EpisodeStore
from sojourn.view.server import application

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # which say the same to whoever has no page


def cut(name: str, share: float) -> Callable[[Path], None]:
    def do(run: Path) -> None:
        data = (run / name).read_bytes()
        (run / name).write_bytes(data[: int(share * len(data))])

    return do


def replaced(name: str, text: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(text) and None


def removed(*names: str) -> Callable[[Path], None]:
    def do(run: Path) -> None:
        for name in names:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()

    return do


def torn(run: Path) -> None:
    """Pages in the middle of the index are overwritten."""
    data = (run / "episodes.sqlite").read_bytes()
    (run / "episodes.sqlite").write_bytes(data[:8192] + b"\xde\xad" * 20_000 + data[48_192:])


STEP = "tokens/rl-000003-0.npz"
DAMAGES = {  # what is done, the page that says so, and what it says
    "metrics cut": (cut("metrics.jsonl", 0.95), "", "metrics.jsonl: 1 line cut off or damaged"),
    "metrics lost": (removed("metrics.jsonl"), "", "metrics.jsonl is missing: there are no curves"),
    "metrics odd": (
        replaced("metrics.jsonl", '[]\n{"step":0,"stage":"rl","x":null}\n'),
        "",
        "1 line cut off or damaged",
    ),
    "parts odd": (replaced("parts.jsonl", '[]\n{"step":0}\n'), "/parts", "parts.jsonl: 2 lines damaged"),
    "parts a folder": (lambda run: (run / "parts.jsonl").mkdir(), "", "parts.jsonl cannot be read"),
    "parts binary": (replaced("parts.jsonl", "\x00\xff" * 99), "/parts", "Nothing is recorded of this run's parts"),
    "evaluations broken": (replaced("evaluations.json", "[{"), "", "evaluations.json is not JSON"),
    "evaluations odd": (replaced("evaluations.json", '[{"name":1}]'), "", "holds something else than evaluations"),
    "index damaged": (replaced("episodes.sqlite", "no database" * 999), "", "episodes.sqlite is damaged"),
    "index torn": (torn, "", "episodes.sqlite is damaged"),
    "index cut": (cut("episodes.sqlite", 0.5), "/steps/rl/3", "episodes.sqlite is damaged"),
    "index lost": (removed("episodes.sqlite"), "", "episodes.sqlite is missing: its rows are read from tokens/"),
    "index lost, search": (removed("episodes.sqlite"), "/find?q=the", "episodes.sqlite is missing"),
    "a step lost": (removed(STEP), "", "tokens: the episodes of rl 3 cannot be opened"),
    "a step cut": (cut(STEP, 0.5), "/groups/rl/3/0", f"{STEP} cannot be read"),
    "an episode lost": (removed(STEP), "/episodes/EPISODE", f"{STEP} is missing"),
    "all records lost": (removed("tokens"), "", "tokens is missing: no episode can be opened"),
    "records and index lost": (removed("tokens", "episodes.sqlite"), "", "tokens is missing: there are no episodes"),
    "config broken": (replaced("config.toml", "[[["), "", "config.toml is not valid TOML"),
    "config lost": (removed("config.toml"), "", "is not a run folder: expected a config.toml"),
    "config odd": (replaced("config.toml", 'name=3\nmodel=4\nenv=[1]\nstages=7\nseed="x"\nrecord=5'), "", ""),
    "vocabulary broken": (
        replaced("vocabulary.json", "{"),
        "/episodes/EPISODE?tokens=logprob&prompt=0.0",
        "vocabulary.json cannot be read",
    ),
    "cause broken": (replaced("failure.json", "{"), "", "failure.json is not JSON"),
    "hardly begun": (
        removed("metrics.jsonl", "evaluations.json", "episodes.sqlite", "tokens", "versions.json", "blobs"),
        "",
        "No training step has finished yet",
    ),
}
PAGES = (
    "?all=1&smooth=2", "/steps/rl/3", "/groups/rl/3/0", "/episodes/EPISODE", "/episodes/EPISODE?tokens=logprob",
    "/parts", "/find", "/find?q=the", "/changes", "/json/EPISODE", "/text/0/0/1/EPISODE", "/blobs/" + "0" * 64,
)  # fmt: skip


@pytest.fixture(scope="module")
def episode(runs: Path) -> str:
    with EpisodeStore(runs / "seed0") as store:
        return next(e.id for e in store.query(stage="rl", step=3, failed=False))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_shows_the_rest_and_names_what_is_missing(
    runs: Path, tmp_path: Path, episode: str, damage: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "seed0", run, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    do, page, sentence = DAMAGES[damage]
    do(run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1")  # which raises what would be a 500
    answer = client.get(f"/runs/run{page.replace('EPISODE', episode)}")
    assert answer.status_code == 200
    assert sentence in unescape(answer.text)
    for address in ("/", "/diff?run=run", *(f"/runs/run{page.replace('EPISODE', episode)}" for page in PAGES)):
        assert client.get(address).status_code in (200, 404), address
    assert 'href="/runs/run"' in client.get("/").text
    held = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and "-" not in path.suffix}
    assert {path: time for path, time in before.items() if held.get(path) != time} == {}, "a viewer writes nothing"


def test_a_missing_image_is_named(runs: Path, tmp_path: Path) -> None:
    page = TestClient(application([runs]), base_url="http://127.0.0.1").get("/runs/seed0/blobs/" + "a" * 64)
    assert page.status_code == 404
    assert "copy the run&#39;s blobs folder with the run" in page.text
