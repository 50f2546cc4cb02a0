"""A stage ends before its last step where its evaluations say so, and is evaluated and kept as at its last step."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import trained_run
from safetensors.numpy import load_file
from typer.testing import CliRunner

from sojourn import sweep
from sojourn.cli import app
from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import ConfigError
from sojourn.record.checkpoint import checkpoints
from sojourn.record.run import RunFolder
from sojourn.record.run_status import State, read_status
from sojourn.record.run_weights import available_weights
from sojourn.train.early_stop import EarlyStop, Result, Spent, evaluations_within
from sojourn.train.resolve import load, resolve
from sojourn.train.run import run_recipe

STOPS = ("stages.warmup.steps=6", "stages.warmup.early_stop.patience=1", "evaluation.every=1")


def done(*successes: float, rewards: tuple[float, ...] = ()) -> list[Result]:
    return [Result(10 * n + 10, s, r) for n, (s, r) in enumerate(zip(successes, rewards or successes, strict=True))]


@pytest.mark.parametrize(
    ("rule", "results", "stops"),
    [
        (EarlyStop(success=0.9), done(0.5, 0.89), ""),
        (EarlyStop(success=0.9), done(0.5, 0.9), "step 20 has a success of 90.0% (target 90.0%)"),
        (EarlyStop(patience=2), done(0.5, 0.4), ""),
        (EarlyStop(patience=2), done(0.5, 0.4, 0.5), "2 evaluations in a row did not improve on that after step 10"),
        (EarlyStop(patience=2), done(0.5, 0.4, 0.6, 0.6), ""),
        (EarlyStop(patience=1), done(0.0, 0.0, rewards=(0.1, 0.2)), ""),
        (EarlyStop(patience=1), done(0.0, 0.0, rewards=(0.2, 0.2)), "1 evaluation in a row did not improve"),
        (EarlyStop(success=0.5, patience=1), done(0.6, 0.5), "has a success of 50.0%"),
        (EarlyStop(), done(1.0, 0.0, 0.0, 0.0), ""),
        (EarlyStop(patience=1), [], ""),
    ],
)
def test_the_rule(rule: EarlyStop, results: list[Result], stops: str) -> None:
    reason = rule.reason(results, Spent())
    assert (stops in reason) if stops else not reason, reason


@pytest.mark.parametrize(
    ("steps", "every", "count"), [(10, 0, 0), (10, 10, 0), (10, 9, 1), (10, 5, 1), (11, 5, 2), (0, 5, 0)]
)
def test_the_evaluations_within_a_stage(steps: int, every: int, count: int) -> None:
    assert evaluations_within(steps, every) == count


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stages.rl.early_stop.success=0.9"], "at least one of the evaluations within the stage"),
        (["stages.rl.steps=10", "evaluation.every=10", "stages.rl.early_stop.success=0.9"], "gives 0 in its 10 steps"),
        (
            ["stages.rl.steps=10", "evaluation.every=4", "stages.rl.early_stop.patience=2"],
            "evaluation.every to at most 3",
        ),
    ],
)
def test_a_stage_with_too_few_evaluations_is_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    (tmp_path / "recipe.toml").write_text(trained_run.RECIPE)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "recipe.toml", overrides)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first stage is stopped after two of its six steps, as its success stays 0."""
    return trained_run.train(tmp_path_factory.mktemp("early") / "run", *STOPS)


def numbers(run: Path) -> dict[str, object]:
    """What a run computed: its weights, and the names, steps and results of its evaluations."""
    weights = {c.path.name: load_file(c.weights / "weights.safetensors") for c in checkpoints(run / "checkpoints")}
    found = {name: {key: value.tobytes() for key, value in arrays.items()} for name, arrays in weights.items()}
    return {**found, "evaluations": RunFolder.read(run).evaluations()}


def test_the_stage_ends_with_its_checkpoint_and_evaluation_and_the_next_goes_on(stopped: Path) -> None:
    evaluations = [(e["name"], e["step"]) for e in RunFolder.read(stopped).evaluations()]
    assert evaluations == [("before", 0), ("warmup-1", 1), ("warmup-2", 2), ("warmup", 2), ("rl", 1)]
    status = read_status(stopped)
    assert status.state is State.FINISHED
    assert sweep.finished(stopped)
    assert [one.name for one in available_weights(stopped)] == ["before", "warmup", "rl"]
    lines = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["step"]) for line in lines] == [("warmup", 0), ("warmup", 1), ("rl", 0)]


def test_the_reason_is_recorded_and_shown(stopped: Path) -> None:
    (sentence,) = read_status(stopped).stopped
    assert sentence.startswith("stage 'warmup' ended after step 2: 1 evaluation in a row did not improve on that after")
    shown = CliRunner().invoke(app, ["show", str(stopped)]).output
    assert "stage 'warmup' ended after step 2" in " ".join(shown.split())


def test_a_run_that_was_killed_while_it_stopped_stops_again(stopped: Path, tmp_path: Path) -> None:
    killed = tmp_path / "run"
    shutil.copytree(stopped, killed)
    for ended in checkpoints(killed / "checkpoints")[1:]:
        shutil.rmtree(ended.path)
    resolved = resolve(toml.read(killed))
    with RunFolder.open(killed) as folder, Display(live=False) as display:
        folder.write_json("evaluations.json", folder.evaluations()[:3])
        asyncio.run(run_recipe(resolved.recipe, folder, display, resume=True))
    assert numbers(killed) == numbers(stopped)
    assert read_status(killed).stopped == read_status(stopped).stopped
