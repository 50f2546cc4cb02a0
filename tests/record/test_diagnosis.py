"""Diagnosis: a short real run has each cause of learning nothing, and it is said; of one that learns, nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest
from scipy.stats import binomtest
from starlette.testclient import TestClient
from trained_run import train
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.intervals import wilson
from sojourn.record import metrics
from sojourn.record.diagnosis import Evidence, Finding, LiveDiagnosis, diagnose, findings
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.paired import Evaluation, clear_fall, evaluations, sign_test
from sojourn.record.run import RunFolder
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
UNLEARN = (
    "stages.rl.steps=2",
    "stages.rl.optim.lr=1.0",
    "stages.rl.estimator={name='reinforce', baseline='none'}",
    "reward.scale=-1.0",
    "stages.rl.losses=[{name='reinforce'}]",
    "env.rooms=4",
)
CLONE_TOY = """
[[stages]]
name = "warmup"
steps = 20
groups = { name = "experts", width = 8 }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
optim = { lr = 3e-3 }
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
    return of_run(train(tmp_path / "run", *overrides, recipe=text))


def of_run(run: Path) -> list[Finding]:
    with EpisodeStore(run) as store:
        return findings(store, metrics.read(run / "metrics.jsonl"))


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
    text = recipe("cold", stages=CLONE_TOY.replace("steps = 20", "steps = 5") + RL.replace("steps = 6", "steps = 12"))
    told = found(tmp_path, text, "sampling.temperature=0.01", "env.rooms=4", "stages.rl.groups.width=8")
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

    printed = said("train", file, "rollout.limits.turns=2", "--out", run)
    assert printed.count(f"diagnosis: {sentence}: give easier") == 1
    early = f"diagnosis: {sentence.replace('last 6', 'last 5')}: give easier"  # while it trains
    assert printed.count(early) == 1
    assert printed.index("rl 4/6") < printed.index(early) < printed.index("rl 6/6")
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
    assert "in training in the last 6 steps of 'rl', but 0% [0–" in only.cause


def test_of_a_run_that_learns_nothing_is_said(tmp_path: Path):
    """In its last steps every play wins, so no group has differing rewards, and there is hardly any entropy."""
    text = recipe("well", stages=RL.replace("steps = 6", "steps = 12").replace("width = 4", "width = 8"))
    run = train(tmp_path / "run", "stages.rl.optim.lr=1e-2", recipe=text)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["success"], last["zero_signal"]) == (1, 1), last
    assert of_run(run) == []


@pytest.mark.parametrize(
    ("successes", "said"),
    [
        ([127, 38, 22], "success fell from 99% [96–100] in the evaluation 'warmup' to 17% [12–25] in 'rl'"),
        ([38, 127, 22], "success fell from 99% [96–100] in the evaluation 'rl-10' to 17% [12–25] in 'rl'"),
        ([38, 38, 30], ""),  # within the noise
        ([22, 38, 127], ""),
    ],
)
def test_a_collapse_is_told_apart_from_tasks_that_differ(successes: list[int], said: str):
    """Success in training falls with it, more slowly, as it is a mean over several steps."""
    steps = [{"success": success, "zero_signal": 0.5, "entropy": 0.5} for success in (0.9, 0.6, 0.5, 0.4, 0.3, 0.25)]
    names = ("warmup", "rl-10", "rl")
    evaluations = [Evaluation(name, wilson(count, 128)) for name, count in zip(names, successes, strict=True)]
    found_here = diagnose(Evidence("rl", steps, evaluations=evaluations))
    collapsed = [finding for finding in found_here if finding.name == "collapsed"]
    assert [finding.cause for finding in collapsed] == [said] * bool(said)
    weights = "RUN@best" if "'rl-10'" in said else "RUN@warmup"
    assert all(finding.remedy.endswith(f"begin again from {weights}") for finding in collapsed)
    assert not said or len(found_here) == 1


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


def test_while_it_trains_the_first_finding_of_a_stage_is_told_once(tmp_path: Path):
    """Of the next stage, and after a resume, it is told anew."""
    run, told = tmp_path / "run", list[tuple[str, str]]()
    nothing = {"success": 0.0, "zero_signal": 1.0, "loss": 1.0}
    with RunFolder.create(run, "seed = 1\n"), EpisodeStore(run, write=True) as store:
        for stage in ("rl", "more"):
            live = LiveDiagnosis(
                store, lambda text, stage=stage: told.append((stage, text)), [metrics.Line(0, "rl", nothing)] * 9
            )
            for step in range(8):
                live.write(step, stage, nothing)
    assert [stage for stage, _ in told] == ["rl", "more"]
    assert told[0][1].startswith("diagnosis: no group had differing rewards in the last 10 steps of 'rl'")
    assert told[1][1].startswith("diagnosis: no group had differing rewards in the last 5 steps of 'more'")


def solved(tasks: range) -> dict[str, float]:
    return {str(task): float(task in tasks) for task in range(100)}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (range(15, 57), "(15 tasks lost, 5 gained, p = 0.041)"),  # chance gives that too often
        (
            range(20, 57),
            "success fell from 52% [42–62] in the evaluation 'warmup' to 37% [28–47] in 'rl' (20 tasks lost, 5 gained, "
            "p = 0.0041)",
        ),
    ],
)
def test_a_stage_that_loses_more_tasks_than_it_gains_has_made_the_policy_worse(after: range, said: str):
    """Of both evaluations alone, whose intervals overlap, it could not be told."""
    warm, last = (
        Evaluation(name, wilson(len(tasks), 100), lambda tasks=tasks: solved(tasks))
        for name, tasks in (("warmup", range(52)), ("rl", after))
    )
    steps = [{"success": 0.5, "zero_signal": 0.5, "entropy": 0.5}] * 2  # fewer than the other findings need
    told = diagnose(Evidence("rl", steps, evaluations=[warm, last]))
    assert [finding.cause for finding in told] == [said] * said.startswith("success")
    assert all("begin again from RUN@warmup" in finding.remedy for finding in told)
    assert clear_fall([warm] * 10, last) is None  # the best of ten is better by chance
    assert clear_fall([last], warm) is None


def test_the_sign_test_is_exact():
    for lost, gained in ((20, 5), (0, 7), (3, 3), (0, 0)):
        expected = binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
        assert sign_test(lost, gained) == pytest.approx(expected, rel=1e-12)


def test_the_tasks_of_a_run_are_paired(tmp_path: Path):
    """A stage unlearns what won: the evaluations' episodes tell of it."""
    text = recipe("fell", stages=CLONE_TOY + RL).replace("tasks = 16", "tasks = 32")
    run = train(tmp_path / "run", *UNLEARN, recipe=text)
    with EpisodeStore(run) as store:
        before, warm, rl = evaluations(RunFolder.read(run), store)
        assert (before.steps, warm.steps, rl.steps) == (0, 20, 22)
        assert sum(warm.by_task().values()) / 32 == warm.success.mean
        fall = clear_fall([before, warm], rl)
    (only,) = of_run(run)
    assert fall is not None
    assert (only.name, fall.better.name) == ("collapsed", "warmup")
    assert f"in 'rl' ({fall.lost} tasks lost, " in only.cause
    for weights, told in (("@last", True), ("", False), ("@warmup", False)):
        words = ["export", f"{run}{weights}", "--format", "hf", "--out", str(tmp_path / f"model{weights}")]
        exported = CliRunner().invoke(app, words)
        assert exported.exit_code == 0, exported.output
        said = (
            f"note: the weights 'warmup' did clearly better in the evaluations than 'rl', {fall.better.success.percent}"
        )
        assert (said in exported.output) == told
        assert (f"{run}@warmup names them" in exported.output) == told
