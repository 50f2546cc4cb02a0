"""Models behind endpoints that take seats: asked turn by turn, recorded without tokens, counted, killed and resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trained_run
from judge_server import reply
from spawned import sojourn
from trained_run import final_weights, killed_and_resumed, untimed
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.record import metrics
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.resolve import resolve
from sojourn.view.server import application
from tests.envs.loopback import Raw, answered

TESTS = Path(__file__).parents[1]


def recipe(url: str, endpoint: str = "") -> str:
    return f"""
name = "served"
model = {{ name = "tiny:layers=1,hidden=64", dtype = "fp32" }}
backend = {{ name = "torch", threads = 1 }}
env = {{ name = "matrix", opponent = "self", rounds = 3, choices = true }}
agent = {{ name = "plain", choices = true }}
evaluation = {{ tasks = 2 }}
sampling = {{ max_tokens = 8 }}
rollout = {{ limits = {{ turns = 12 }} }}
seats = {{ models = {{ column = ["rival"] }} }}
record = {{ checkpoint_every = 1 }}
[models.rival.endpoint]
base_url = "{url}"
model = "big"
max_tokens = 77
prompt_price = 1.0
sampled_price = 2.0
{endpoint}
[[stages]]
name = "rl"
steps = 3
groups = {{ name = "slots", width = 2, size = 3 }}
losses = [{{ name = "ppo" }}]
optim = {{ lr = 1e-3 }}
"""


def plays(path: str, body: dict[str, Any]) -> Raw:
    """Returns one of the two actions that the game offers, by the question alone: at first after a thought."""
    text = json.dumps(body["messages"])
    number = sum(map(ord, text)) + body["seed"]
    action = ("cooperate", "defect")[number % 2]
    return reply(f"<think>Hm.</think>{action}" if len(body["messages"]) == 2 else action)


def episodes(path: Path, stage: str = "rl") -> list[Record]:
    with EpisodeStore(path) as store:
        return [store.read(row) for row in store.query(stage=stage)]


def values(path: Path) -> list[dict[str, float]]:
    return [untimed(line.values) for line in metrics.read(path / "metrics.jsonl")]


def said(path: Path, stage: str = "rl") -> dict[str, list[tuple[object, ...]]]:
    """Returns what the rival said in each episode, and what it was asked for it."""
    return {
        one.episode.id: [
            *((turn.message, turn.observed) for turn in one.episode.trajectories[1].turns),
            *((x.purpose, x.question, x.answer, x.cost, x.seed) for x in one.asked),
        ]
        for one in episodes(path, stage)
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    with answered(plays) as (url, asked):
        path = trained_run.train(tmp_path_factory.mktemp("served") / "run", recipe=recipe(url))
    return path, asked


def test_it_is_asked_for_each_of_its_turns(run):
    path, asked = run
    turns = [
        turn
        for stage in ("rl", "evaluation-before", "evaluation-rl")
        for one in episodes(path, stage)
        for turn in one.episode.trajectories[1].turns
    ]
    assert len(turns) == len(asked) == 3 * (18 + 2 * 2)
    for body in asked:
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["system", *["user", "assistant"] * 2, "user"][: len(roles)]
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("big", 77, 1.0)
    assert len({body["seed"] for body in asked}) == len(asked)


def test_its_turns_are_recorded_with_their_messages_and_without_tokens(run):
    for one in episodes(run[0]):
        ours, theirs = one.episode.trajectories
        assert (ours.model, ours.trainable) == ("policy", True)
        assert (theirs.model, theirs.trainable, theirs.agent) == ("rival", False, "column")
        assert len(theirs.turns) == 3
        for number, turn in enumerate(theirs.turns):
            assert turn.message is not None
            assert turn.message.text in ("cooperate", "defect")
            assert turn.message.thought == ("Hm." if number == 0 else "")
            assert len(turn.sample.tokens) == len(turn.context) == 0
            assert turn.observed
        assert len(one.scores) == 1


def test_what_it_was_asked_is_recorded_and_counted(run):
    path, _ = run
    for one in episodes(path):
        assert [x.purpose for x in one.asked] == [f"the seat column, turn {number}" for number in (1, 2, 3)]
        assert [len(x.question) for x in one.asked] == [2, 1, 1]  # what is new
        assert all((x.model, x.about) == ("rival", (one.episode.id,)) for x in one.asked)
    for step in values(path):
        assert (step["asked"], step["asked_tokens"]) == (18, 18 * 110)
        assert step["asked_cost"] == pytest.approx(18 * 120e-6)
    shown = CliRunner().invoke(app, ["show", str(path), "rl:0/0/0"]).output
    assert "played by the model rival, not trained on" in shown
    assert "3 answers of models about it: 330 tokens, cost 0.00036" in shown
    testclient = pytest.importorskip("starlette.testclient")
    with testclient.TestClient(application([path.parent]), base_url="http://127.0.0.1") as client:
        page = client.get(f"/runs/{path.name}/episodes/rl/0/0/0").text
    assert "played by the model rival, not trained on" in page
    for words in (
        ["export", str(path), "--tokens", "--out", str(path.parent / "t.jsonl")],
        ["replay", str(path), "--all"],
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output


def environment() -> dict[str, str]:
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def require_same(path: Path, whole: Path) -> None:
    found, expected = final_weights(path), final_weights(whole)
    for name, numbers in expected.items():
        np.testing.assert_array_equal(numbers, found[name])
    assert values(path) == values(whole)
    for stage in ("rl", "evaluation-before", "evaluation-rl"):
        assert said(path, stage) == said(whole, stage)


def test_a_killed_run_goes_on_to_the_same_and_asks_nothing_twice(run, tmp_path):
    whole, before = run
    with answered(plays) as (url, asked):
        path = killed_and_resumed(tmp_path / "killed", recipe=recipe(url), environment=environment())
    require_same(path, whole)
    sent = [json.dumps([body["messages"], body["seed"]]) for body in asked]
    assert sorted(sent) == sorted(json.dumps([body["messages"], body["seed"]]) for body in before)


def test_a_run_stops_when_its_budget_is_spent_and_goes_on_with_a_larger_one(run, tmp_path):
    with answered(plays) as (url, asked):
        file, path = tmp_path / "recipe.toml", tmp_path / "run"
        file.write_text(recipe(url, "token_budget = 2000"))
        done = sojourn(tmp_path, "train", str(file), "--out", str(path))
        assert done.returncode == 2
        assert "models.rival.endpoint.token_budget = 2000 is spent" in " ".join(f"{done.stdout} {done.stderr}".split())
        done = sojourn(tmp_path, "train", "--resume", str(path), "models.rival.endpoint.token_budget=20000")
        assert done.returncode == 0, done.stderr
    require_same(path, run[0])
    assert len(asked) == len(run[1])


def test_a_server_that_fails_is_a_failure_of_the_infrastructure(tmp_path):
    down = answered(lambda path, body: Raw(400, "down"))
    with down as (url, _), pytest.raises(InfrastructureError, match="answered 400, 'down'"):
        trained_run.train(tmp_path / "run", recipe=recipe(url))
    failed = episodes(tmp_path / "run", "evaluation-before")
    assert failed
    assert all("answered 400" in (one.episode.error or "") and not one.scores for one in failed)


def test_what_the_world_refuses_is_told_to_it(tmp_path):
    def stubborn(path: str, body: dict[str, Any]) -> Raw:
        return reply("defect" if "is no action here" in body["messages"][-1]["content"] else "I resign")

    with answered(stubborn) as (url, _):
        path = trained_run.train(tmp_path / "run", "stages.0.steps=1", recipe=recipe(url))
    [_, theirs] = episodes(path)[0].episode.trajectories
    assert [turn.info.get("malformed") for turn in theirs.turns] == [1.0, None] * 3
    assert [turn.message.text for turn in theirs.turns if turn.message] == ["I resign", "defect"] * 3


def test_branches_go_on_with_its_conversation(tmp_path):
    forks = "stages.0.groups={name='slots', width=2, size=2, branching={name='uniform', every=2, leaves=3}}"
    with answered(plays) as (url, _):
        path = trained_run.train(tmp_path / "run", forks, "stages.0.steps=2", recipe=recipe(url))
    branches = [one for one in episodes(path) if one.episode.branch is not None]
    assert branches
    whole = {one.episode.id: one for one in episodes(path)}
    for one in branches:
        branch = one.episode.branch
        assert branch is not None
        shared = branch.turns[1]
        theirs, origin = one.episode.trajectories[1], whole[branch.of].episode.trajectories[1]
        assert [turn.message for turn in theirs.turns[:shared]] == [turn.message for turn in origin.turns[:shared]]
        assert len(one.asked) == len(theirs.turns) - shared


def test_an_expert_takes_its_seat_too(tmp_path):
    shown = "stages.0={name='shown', steps=1, groups={name='experts', width=2, success_only=false}, "
    shown += "estimator={name='constant'}, losses=[{name='nll'}]}"
    world = "env={name='colorgrid', opponent='self', choices=true, turns=24}"
    with answered(lambda path, body: reply("stay")) as (url, _):
        path = trained_run.train(
            tmp_path / "run", shown, world, "seats.models={follower=['rival']}", recipe=recipe(url)
        )
    for one in episodes(path, "shown"):
        assert not one.asked
        assert all(len(turn.sample.tokens) for t in one.episode.trajectories for turn in t.turns)


def test_evaluations_alone_may_have_it(tmp_path):
    with answered(plays) as (url, asked):
        text = recipe(url).replace("seats = {", "evaluation.seats = {").replace("evaluation = { tasks = 2 }", "")
        path = trained_run.train(tmp_path / "run", "evaluation.tasks=2", recipe=text)
        count = len(asked)
        done = sojourn(tmp_path, "eval", str(path), f"models.rival.endpoint.base_url={url}")
    assert done.returncode == 0, done.stderr
    assert "models gave 6 answers: 660 tokens, cost 0.00072" in " ".join(done.stdout.split())
    assert (count, len(asked)) == (2 * 6, 3 * 6)
    assert all({t.model for t in one.episode.trajectories} == {"policy"} for one in episodes(path))


URL = "http://127.0.0.1:1/v1"
REFUSED = {
    "but MCTS tries actions in copies of plays": ["agent={name='mcts', base={name='plain', choices=true}}"],
    "but Dagger plays with samples of its own": [
        "stages.0.groups={name='dagger', width=2}", "stages.0.losses=[{name='nll'}]",
        "stages.0.estimator={name='constant'}",
    ],
    "stages.rl.learners.rival: the model is behind an endpoint": ["stages.0.learners={rival={}}"],
    "the world has the seats column, row": ["seats.models={nobody=['rival']}"],
    "cost_budget = 3 without prices": [
        "models.rival.endpoint.cost_budget=3.0", "models.rival.endpoint.prompt_price=0.0",
        "models.rival.endpoint.sampled_price=0.0",
    ],
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_work_is_refused_at_the_start(tmp_path, words):
    (tmp_path / "recipe.toml").write_text(recipe(URL))
    with pytest.raises(ConfigError) as caught:
        resolve(toml.read(tmp_path / "recipe.toml", REFUSED[words]))
    assert words in str(caught.value)


def test_runs_on_other_backends_may_have_them_too(tmp_path):
    (tmp_path / "recipe.toml").write_text(recipe(URL))
    found = resolve(toml.read(tmp_path / "recipe.toml", ["backend={name='ray'}"])).recipe
    assert (set(found.served_seats), found.players) == ({"rival"}, frozenset())
