"""Worlds that measure the policy as a whole at each evaluation: what they are told, and where it is recorded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trained_run
from measured_world import COLOURS, SEATS, WAYS
from trained_run import untimed, weight_bytes
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.errors import SojournError, WorldError, leaf
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.view.server import application

RECIPE = """
name = "measured"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "measured_world:Picks" }
agent = { name = "plain", choices = true }
evaluation = { tasks = 8, every = 1 }
sampling = { max_tokens = 16 }
[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 2, size = 4 }
losses = [{ name = "ppo" }]
optim = { lr = 1e-2 }
"""


def measures(path: Path) -> list[dict[str, float]]:
    return [evaluation["summary"]["measures"] for evaluation in RunFolder.read(path).evaluations()]


def drawn(path: Path, stage: str) -> Iterator[tuple[str, float]]:
    """Yields each action that was drawn in an evaluation, with what came before, and its probability."""
    with EpisodeStore(path) as store:
        for trajectory in (one for group in store.groups(stage) for one in group.trajectories):
            name = trajectory.agent
            for turn in trajectory.turns:
                assert turn.message is not None
                name = f"{name}/{turn.message.text}"
                yield name, float(np.exp(turn.sample.logprobs.sum()))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return trained_run.train(tmp_path_factory.mktemp("measured") / "run", recipe=RECIPE)


AGENTS = {
    "plain": [],
    "page": ["agent.history=page"],
    "window": ["agent.history=window", "agent.turns=1"],
    "instructed": ["agent={name='instructed', text='Be quick.', base={name='plain', choices=true}}"],
    "hot": ["evaluation.temperature=1.7", "sampling.temperature=0.9"],
}


@pytest.mark.parametrize("agent", AGENTS)
def test_the_probabilities_are_those_of_what_is_played(agent: str, run: Path, tmp_path: Path):
    """By the weights of each evaluation, in both seats, and whatever of the past an agent shows its model."""
    path = trained_run.train(tmp_path / "run", *AGENTS[agent], recipe=RECIPE) if AGENTS[agent] else run
    evaluations = RunFolder.read(path).evaluations()
    assert [evaluation["name"] for evaluation in evaluations] == ["before", "rl-1", "rl"]
    for evaluation in evaluations:
        told = evaluation["summary"]["measures"]
        assert len(told) == len(SEATS) * (len(COLOURS) + len(COLOURS) * len(WAYS))
        for seat in SEATS:
            assert sum(told[f"{seat}/{colour}"] for colour in COLOURS) == pytest.approx(1.0)
        for name, probability in drawn(path, f"evaluation-{evaluation['name']}"):
            assert told[name] == pytest.approx(probability, abs=1e-5), name
    assert evaluations[0]["summary"]["measures"] != evaluations[-1]["summary"]["measures"]


def test_a_run_learns_the_same_with_and_without(run: Path, tmp_path: Path):
    """What was computed for a measure is not in the engine's cache any more either."""
    path = trained_run.train(tmp_path / "run", "env.measures=nothing", recipe=RECIPE)
    assert measures(path) == [{}, {}, {}]
    assert weight_bytes(path) == weight_bytes(run)
    ours, theirs = ([line.values for line in metrics.read(one / "metrics.jsonl")] for one in (path, run))
    for mine, other in zip(ours, theirs, strict=True):
        assert untimed(mine) == untimed(other)
        for name in ("sampler_reuse", "sampler_prefill_tokens"):
            assert mine[name] == other[name]


NOT_TAKEN = {
    "an agent that samples freely": ["agent.choices=false", "rollout.limits.turns=4"],
    "no room for some action": ["sampling.max_tokens=6"],
    "no room in a context": ["backend.max_context=40"],
    "an agent that searches": ["agent={name='best_of_n', n=2, base={name='plain', choices=true}}"],
}


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_what_nobody_can_tell_is_not_measured_and_the_run_goes_on(case: str, tmp_path: Path):
    path = trained_run.train(tmp_path / "run", *NOT_TAKEN[case], "stages.0.steps=1", recipe=RECIPE)
    assert measures(path) == [{}, {}]


def test_evaluations_without_a_search_measure_what_searches(run: Path, tmp_path: Path):
    path = trained_run.train(
        tmp_path / "run", *NOT_TAKEN["an agent that searches"], "evaluation.search=false", "stages.0.steps=0",
        recipe=RECIPE,
    )  # fmt: skip
    assert measures(path)[0] == measures(run)[0]


def test_a_greedy_policy_is_certain(tmp_path: Path):
    path = trained_run.train(tmp_path / "run", "evaluation.temperature=0.0", "stages.0.steps=0", recipe=RECIPE)
    told = measures(path)[0]
    assert set(told.values()) == {0.0, 1.0}
    assert {told[name] for name, _ in drawn(path, "evaluation-before")} == {1.0}


MIXED = "env={name='mixed', worlds=[{name='measured_world:Picks'}, {name='measured_world:Picks', named='other'}]"
LEVELS = MIXED.replace("named='other'", "level=1") + ", levels=true}"


@pytest.mark.parametrize(
    ("world", "endings"),
    [(MIXED + "}", ("picks", "other")), (LEVELS, ("level-0", "level-1"))],
)
def test_worlds_of_a_mixture_are_told_apart(world: str, endings: tuple[str, str], run: Path, tmp_path: Path):
    path = trained_run.train(tmp_path / "run", world, "stages.0.steps=0", recipe=RECIPE)
    expected = measures(run)[0]
    assert measures(path)[0] == {f"{name}_{ending}": expected[name] for ending in endings for name in expected}


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("no number", "measure() of Picks gives {'wrong': nan}: expected finite numbers by name"),
        ("no table", "measure() of Picks gives 3.0: expected finite numbers by name"),
        ("unlisted", "measure() asks what follows 'yellow': expected an action that was listed there"),
    ],
)
def test_a_world_that_measures_nonsense_is_told_before_the_first_step(does: str, told: str, tmp_path: Path):
    with pytest.raises((SojournError, ExceptionGroup)) as caught:
        trained_run.train(tmp_path / "run", f"env.measures={does}", recipe=RECIPE)
    assert isinstance(leaf(caught.value), WorldError)
    assert told in str(leaf(caught.value))
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()


def command(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_they_are_shown_wherever_an_evaluation_is(run: Path, tmp_path: Path):
    told = f"{measures(run)[-1]['left/red']:.3g}"
    [row] = [line for line in command("show", str(run)).splitlines() if line.startswith("left/red ")]
    assert row.split()[-1] == told
    said = command("eval", f"{run}@last")
    assert f"left/red {told}, " in said
    assert any(line.split() == ["left/red", told] for line in said.splitlines())
    command("report", str(run), "--out", str(tmp_path / "report.html"))
    testclient = pytest.importorskip("starlette.testclient")
    with testclient.TestClient(application([run.parent]), base_url="http://127.0.0.1") as client:
        page = client.get(f"/runs/{run.name}").text
    for text in (page, (tmp_path / "report.html").read_text()):
        assert ">left/red</th>" in text
        assert f'<td class="right">{told}</td>' in text


def test_experts_are_not_measured(run: Path):
    said = command("eval", str(run), "--expert")
    assert "success 100%" in said
    assert "left/red" not in said


def test_a_run_from_before_can_be_looked_at_and_goes_on(run: Path, tmp_path: Path):
    older = tmp_path / "older"
    shutil.copytree(run, older)
    evaluations = json.loads((older / "evaluations.json").read_text())
    for evaluation in evaluations:
        del evaluation["summary"]["measures"]
    (older / "evaluations.json").write_text(json.dumps(evaluations))
    assert "success" in command("show", str(older))
    assert "left/red" not in command("show", str(older))
    resumed = command("train", "--resume", str(older), "stages.0.steps=3")
    assert "left/red" in resumed
    assert [bool(one["summary"].get("measures")) for one in RunFolder.read(older).evaluations()][-1]
