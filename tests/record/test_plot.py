"""The curve is drawn from what the run folder holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sojourn import plot, plot_recipes
from sojourn.cli import app
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
    starts, end = plot.stage_starts([one])
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


def test_seeds_are_a_mean_in_a_band_from_the_lowest_to_the_highest():
    from matplotlib.figure import Figure

    panel = Figure().subplots()
    x, y = np.arange(9.0), np.array([0.2, 0.4, 0.9])
    plot.draw_lines(panel, [plot.Series(x, np.full(9, value)) for value in y], {"rl": 0})
    [line], [band] = panel.lines, panel.collections
    assert np.allclose(line.get_ydata(), y.mean())
    assert {round(value, 6) for value in band.get_paths()[0].vertices[:, 1]} == {0.2, 0.9}


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


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_a_world_measures_has_a_panel(tmp_path: Path, seeds: int):
    from matplotlib.figure import Figure

    runs = [make_run(tmp_path / str(seed), seed) for seed in range(seeds)]
    plot.curve(runs, tmp_path / "without.png")
    for seed, path in enumerate(runs):
        with RunFolder.open(path) as run:
            for name, stage, step, value in (("base", "warmup", 0, 2.0), ("trained", "rl", 20, 1.0)):
                run.add_evaluation(name, stage, step, replace(summary(0.5), measures={"nash_conv": value + seed}))
    plot.curve(runs, tmp_path / "with.png")
    heights = [int.from_bytes((tmp_path / f"{name}.png").read_bytes()[20:24]) for name in ("without", "with")]
    assert heights[1] - heights[0] == 120  # a panel of an inch
    panel, curves = Figure().subplots(), plot.read_curves(runs)
    plot._measure(panel, curves, plot.stage_starts(curves)[0], "nash_conv")
    assert panel.lines[-1].get_xdata().tolist() == [0, 25]
    assert panel.lines[-1].get_ydata().tolist() == [2.0 + (seeds - 1) / 2, 1.0 + (seeds - 1) / 2]
    assert len(panel.lines) == (1 if seeds == 1 else 3)


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
        ("nowhere/curve.png", "there is no folder 'nowhere': make it first"),
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


def test_runs_of_several_recipes_are_drawn_in_one_picture(tmp_path: Path, monkeypatch):
    named = ["[optim]\nlr = 1.0", "[optim]\nlr = 1.0", "[optim]\nlr = 2.0"]
    folders = [make_run(tmp_path / f"{n}", n, config) for n, config in enumerate(named)]
    first, second = plot_recipes.by_recipe(folders)
    assert [one.name for one in first.curves] == ["0", "1"]
    assert [one.name for one in second.curves] == ["2"]
    drawn: dict[str, list[str]] = {}
    whole = plot_recipes.plot.draw_lines

    def draw_lines(panel, series, starts, label=None, colour=""):
        drawn.setdefault(colour, []).append(str(len(series)))
        whole(panel, series, starts, label, colour)

    monkeypatch.setattr(plot_recipes.plot, "draw_lines", draw_lines)
    plot_recipes.draw(folders, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list(drawn.values()) == [["2", "2"], ["1", "1"]]


def test_a_legend_tells_recipes_apart(tmp_path: Path):
    same = 'name = "toy"\n[optim]\nlr = {}\nrate = {}\nsteps = {}'
    folders = [make_run(tmp_path / f"{n}", 0, same.format(n, 1, n)) for n in range(2)]
    assert [recipe.label for recipe in plot_recipes.by_recipe(folders)] == [
        "toy: optim.lr = 0, optim.steps = 0",
        "toy: optim.lr = 1, optim.steps = 1",
    ]
    other = make_run(tmp_path / "other", 0, 'name = "mine"\n[optim]\nlr = 3')
    assert [recipe.label for recipe in plot_recipes.by_recipe([folders[0], other])] == ["toy", "mine"]


def test_more_recipes_than_colours_are_refused(tmp_path: Path):
    folders = [make_run(tmp_path / f"{n}", 0, f"[optim]\nlr = {n}") for n in range(9)]
    with pytest.raises(RecordError, match="9 recipes cannot be told apart in one picture: expected at most 8"):
        plot_recipes.draw(folders, tmp_path / "curve.png")


@pytest.mark.parametrize("configs", [("", ""), ("a = 1", "a = 2")])
def test_all_runs_are_drawn_by_the_command(tmp_path: Path, configs):
    folders = [str(make_run(tmp_path / f"{n}", n, config)) for n, config in enumerate(configs)]
    done = CliRunner().invoke(app, ["runs", *folders, "--curve", str(tmp_path / "curve.png")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "curve.png").is_file()


def test_names_of_short_stages_do_not_lie_over_each_other():
    starts = {"warmup": 0, "collect": 100, "improve": 102, "collect_2": 150}
    assert plot._with_room(starts, 200) == {"warmup": 0, "collect": 100, "collect_2": 150}
    assert plot._with_room({"a": 0, "b": 5, "c": 10}, 10) == {"a": 0, "b": 5, "c": 10}


def test_an_evaluation_that_a_stage_took_over_is_drawn_once(tmp_path: Path):
    path = make_run(tmp_path / "a", 0)
    with RunFolder.open(path) as run:
        run.repeat_evaluation("collect", 4)
    assert [stage for stage, _, _ in plot._read(path).evaluations] == ["warmup", "rl"]
