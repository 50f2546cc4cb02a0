"""Diagnosis: a short real run has each cause of learning nothing, and it is said; of one that learns, nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest
from starlette.testclient import TestClient
from trained_run import train
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.intervals import wilson
from sojourn.record.diagnosis import Evaluation, Evidence, Finding, diagnose, findings
from sojourn.view.server import application

HEAD = """
name = "{name}"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[backend]
name = "torch"
threads = 1
kernel = false
max_context = {context}
[agent]
name = "plain"
choices = {choices}
[sampling]
max_tokens = 8
[rollout.limits]
turns = 8
[evaluation]
tasks = 16
[env]
{env}
"""
RL = """
[[stages]]
name = "rl"
steps = 6
groups = { name = "slots", width = 4, size = 4 }
losses = [{ name = "ppo" }]
optim = { lr = 1e-3 }
"""
CLONE = """
[[stages]]
name = "warmup"
steps = 20
groups = {{ name = "imported", files = ["{file}"] }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
optim = {{ lr = 1e-2 }}
"""
TOY = 'name = "toy"\nrooms = 2\nside_rooms = 0\ndoors = 0\ndecoys = 0\nobjects = 0\nchoices = true'


class Doors:
    """Open the door."""

    tasks: ClassVar = {"train": [{"right": n % 2} for n in range(40)], "test": [{"right": 2} for _ in range(40)]}

    def __init__(self, right: int) -> None:
        self.right = right
        self.opened: int | None = None

    def open(self, door: int) -> None:
        self.opened = door

    def choices(self) -> list[str]:
        return ["open(0)", "open(1)"]

    def reward(self) -> float | None:
        return None if self.opened is None else float(self.opened == self.right)


def recipe(name: str, env: str = TOY, stages: str = RL, context: int = 4096, choices: str = "true") -> str:
    return HEAD.format(name=name, env=env, context=context, choices=choices) + stages


def found(tmp_path: Path, text: str, *overrides: str) -> list[Finding]:
    return findings(train(tmp_path / "run", *overrides, recipe=text))


def names(found: list[Finding]) -> list[str]:
    return [finding.name for finding in found]


def test_everything_cut_off(tmp_path: Path):
    first = found(tmp_path, recipe("cut", choices="false"))[0]
    assert first.name == "cut_off"
    assert first.cause.startswith("98% of the actions in the last 6 steps of 'rl' were cut off")
    assert str(first).endswith(first.remedy)


def test_contexts_full(tmp_path: Path):
    first = found(tmp_path, recipe("full", context=160), "env.rooms=6", "rollout.limits.turns=30")[0]
    assert first.name == "contexts_full"
    assert "ended because their context was full" in first.cause


def test_all_malformed(tmp_path: Path):
    file = tmp_path / "yes.jsonl"
    file.write_text(json.dumps({"prompt": "Go.", "completion": "yes"}))
    text = recipe("malformed", stages=CLONE.format(file=file) + RL, choices="false")
    assert names(found(tmp_path, text))[0] == "malformed"


def test_no_entropy(tmp_path: Path):
    text = recipe("cold", stages=RL.replace("steps = 6", "steps = 12"))
    told = found(tmp_path, text, "sampling.temperature=0.001", "env.rooms=4", "stages.rl.groups.width=8")
    assert names(told) == ["no_entropy", "no_signal"]
    assert "all plays of a task ended alike in the last 10 steps of 'rl', though" in told[0].cause


def test_no_group_with_differing_rewards(tmp_path: Path):
    (only,) = found(tmp_path, recipe("far"), "env.rooms=6", "rollout.limits.turns=2")
    assert only.name == "no_signal"
    assert only.cause == "no group had differing rewards in the last 6 steps of 'rl' (success 0%)"


def test_it_is_said_by_train_show_viewer_and_report(tmp_path: Path):
    file = tmp_path / "far.toml"
    file.write_text(recipe("far").replace("rooms = 2", "rooms = 6"))
    run, sentence = tmp_path / "run", "no group had differing rewards in the last 6 steps of 'rl' (success 0%)"

    def said(*words: object) -> str:
        done = CliRunner().invoke(app, list(map(str, words)))
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    assert said("train", file, "rollout.limits.turns=2", "--out", run).count(f"diagnosis: {sentence}: give easier") == 1
    assert said("show", run).count(f"diagnosis: {sentence}") == 1
    [told] = json.loads(CliRunner().invoke(app, ["show", str(run), "--json"]).output)["diagnosis"]
    assert (told["name"], told["cause"]) == ("no_signal", sentence)
    said("report", run, "--out", tmp_path / "report.html")
    escaped = f"Diagnosis: {sentence}".replace("'", "&#39;")
    assert (tmp_path / "report.html").read_text().count(escaped) == 1
    page = TestClient(application([run]), base_url="http://127.0.0.1").get("/runs/run")
    assert page.text.count(escaped) == 1


def test_success_in_training_alone(tmp_path: Path):
    (only,) = found(tmp_path, recipe("doors", f'name = "tools"\ncls = "{__name__}:Doors"'))
    assert only.name == "overfit"
    assert "in training, but 0% [0–" in only.cause


def test_of_a_run_that_learns_nothing_is_said(tmp_path: Path):
    """In its last steps every play wins, so no group has differing rewards, and there is hardly any entropy."""
    text = recipe("well", stages=RL.replace("steps = 6", "steps = 12").replace("width = 4", "width = 8"))
    run = train(tmp_path / "run", "stages.rl.optim.lr=1e-2", recipe=text)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["success"], last["zero_signal"]) == (1, 1), last
    assert findings(run) == []


def test_entropy_that_is_gone_is_said_with_its_figure():
    steps = [{"success": 0.0, "zero_signal": 0.5, "entropy": entropy} for entropy in (1.0, 0.5, *[1e-4] * 10)]
    (only,) = diagnose(Evidence("rl", steps))
    assert only.cause.endswith("the policy's entropy in the last 10 steps of 'rl' is 0.0001 nats per token")
    assert diagnose(Evidence("rl", steps[:6])) == []


@pytest.mark.parametrize(
    ("early", "late", "evaluated", "said"),
    [
        (0.0, 0.0, (0.0, 0.0), ["no_signal"]),
        (0.0, 0.2, (0.0, 0.1), []),  # it rises in training
        (0.2, 0.0, (0.2, 0.4), []),  # or in the evaluation
        (0.9, 0.9, (0.9, 0.9), []),  # what is solved has no signal
    ],
)
def test_a_cause_is_said_where_nothing_is_learnt(early: float, late: float, evaluated, said: list[str]):
    steps = [{"success": early, "zero_signal": 1.0}] * 5 + [{"success": late, "zero_signal": 1.0}] * 10
    evaluations = [Evaluation(n, wilson(e * 100, 100)) for n, e in zip(("before", "rl"), evaluated, strict=True)]
    assert names(diagnose(Evidence("rl", steps, {}, evaluations))) == said
    assert diagnose(Evidence("rl", steps[:4], {}, evaluations[:1])) == []  # too short to say
