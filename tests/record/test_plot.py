"""The curve is drawn from what the run folder holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sojourn import plot
from sojourn.errors import RecordError
from sojourn.intervals import Estimate
from sojourn.record.metrics import Jsonl
from sojourn.record.run import RunFolder
from sojourn.record.summary import Summary, TaskStatistics

pytest.importorskip("matplotlib")


def summary(success: float) -> Summary:
    one = Estimate(1.0, 1.0, 1.0, 10)
    statistics = TaskStatistics(10, 10, Estimate(success, success - 0.1, success + 0.1, 10), one, one, one, one)
    return Summary(statistics, {}, {})


def make_run(path: Path, seed: int, config: str = "") -> Path:
    rng = np.random.default_rng(seed)
    with RunFolder.create(path, f"seed = {seed}\n{config}") as run:
        sink = Jsonl(path / "metrics.jsonl")
        for step in range(5):
            sink.write(step, "warmup", {"loss": 1.0})
        for step in range(20):
            sink.write(step, "rl", {"loss": 0.0, "success": rng.random(), "entropy": 0.5, "kl": float("nan")})
        sink.write(0, "remarks", {"success": 0.0})  # no loss: not a training stage
        sink.close()
        run.add_evaluation("base", "warmup", 0, summary(0.1))
        run.add_evaluation("trained", "rl", 20, summary(0.8))
    return path


def test_stages_lie_one_after_the_other(tmp_path: Path):
    one = plot._read(make_run(tmp_path / "a", 0))
    starts, end = plot._starts([one])
    assert (starts, end) == ({"warmup": 0, "rl": 5}, 25)
    x, y = one.series("success", starts)
    assert x.tolist() == list(range(5, 25))
    assert y.tolist() == [np.random.default_rng(0).random(20)[i] for i in range(20)]
    assert len(one.series("kl", starts).x) == 0
    assert [(stage, step, success.mean) for stage, step, success in one.evaluations] == [
        ("warmup", 0, 0.1),
        ("rl", 20, 0.8),
    ]


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_png_is_drawn(tmp_path: Path, seeds: int):
    runs = [make_run(tmp_path / str(seed), seed) for seed in range(seeds)]
    plot.curve(runs, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_what_learns_beside_the_policy_has_a_panel():
    assert list(plot._lower_names({"entropy", "kl", "loss"})) == ["entropy", "kl"]
    seen = {"drift", "explained_variance", "value_error", "progress_error", "curiosity_error", "success"}
    assert list(plot._lower_names(seen)) == [
        "entropy",
        "drift",
        "explained_variance",
        "curiosity_error",
        "progress_error",
    ]
    assert plot._lower_names(seen)["progress_error"] == "progress:\nerror"


def test_an_empty_run_cannot_be_drawn(tmp_path: Path):
    RunFolder.create(tmp_path / "a", "").close()
    with pytest.raises(RecordError, match="nothing to draw"):
        plot.curve([tmp_path / "a"], tmp_path / "curve.png")


def test_smoothing_keeps_lines_and_means():
    line = np.linspace(0.0, 1.0, 60)
    np.testing.assert_allclose(plot.smooth(line), line)
    rng = np.random.default_rng(0)
    noisy = rng.random(400)
    assert plot.smooth(noisy).std() < 0.4 * noisy.std()
    assert plot.smooth(np.zeros(0)).tolist() == []


@pytest.mark.parametrize(
    ("second", "told"),
    [((1, "[optim]\nlr = 2.0"), "differ in optim.lr"), ((0, "[optim]\nlr = 1.0"), "has a seed that another run has")],
)
def test_unlike_runs_are_not_drawn_as_seeds(tmp_path: Path, second, told):
    runs = [make_run(tmp_path / "a", 0, "[optim]\nlr = 1.0"), make_run(tmp_path / "b", *second)]
    with pytest.raises(RecordError, match=told):
        plot.curve(runs, tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("", r"to '\.': curves are PNGs"),
        ("curve.pdf", "name a file such as curve.png"),
        ("/dev/full", "curves are PNGs"),
        ("folder.png", r"folder\.png cannot be written \(Is a directory\)"),
        ("nowhere/curve.png", r"cannot be written \(No such file or directory\)"),
    ],
)
def test_a_target_that_cannot_be_drawn_to_is_one_sentence(tmp_path: Path, monkeypatch, out: str, told: str):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a", 0)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(RecordError, match=told):
        plot.curve([tmp_path / "a"], Path(out))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "folder.png"]


def test_a_curve_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path, full_disk):
    out = tmp_path / "curve.png"
    plot.curve([make_run(tmp_path / "a", 0)], out)
    before = out.read_bytes()
    with full_disk(), pytest.raises(RecordError, match="cannot be written"):
        plot.curve([tmp_path / "a"], out)
    assert out.read_bytes() == before
