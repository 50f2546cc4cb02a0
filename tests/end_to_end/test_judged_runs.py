"""Runs whose rewards ask models: recorded, shown, within budgets, killed and resumed, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import trained_run
from judge_server import by_content, judging, reply
from spawned import sojourn
from trained_run import final_weights, killed_and_resumed, untimed
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.models.answers import FILE
from sojourn.record import metrics
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.resolve import resolve
from sojourn.view.server import application
from tests.envs.loopback import Raw

TESTS = Path(__file__).parents[1]
HEAD = """
name = "judged"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "toy", rooms = 2, choices = true }
agent = { name = "plain", choices = true }
evaluation = { tasks = 2 }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 4 } }
record = { checkpoint_every = 1 }
"""
STAGES = """
[[stages]]
name = "rl"
steps = 3
groups = { name = "slots", width = 2, size = 3 }
losses = [{ name = "ppo" }]
optim = { lr = 1e-3 }
"""


def recipe(url: str, endpoint: str = "", reward: str = "") -> str:
    return f"""{HEAD}
[reward]
name = "judge"
model = "referee"
{reward}
[models.referee.endpoint]
base_url = "{url}"
model = "big"
prompt_price = 1.0
sampled_price = 2.0
{endpoint}
{STAGES}"""


def local(model: str, tables: str = "", name: str = "asking_reward:Marks") -> str:
    return f'{HEAD}\n{tables}\n[reward]\nname = "{name}"\nmodel = "{model}"\n{STAGES}'


def episodes(path: Path, stage: str = "rl") -> list[Record]:
    with EpisodeStore(path) as store:
        return [store.read(row) for row in store.query(stage=stage)]


def values(path: Path) -> list[dict[str, float]]:
    return [untimed(line.values) for line in metrics.read(path / "metrics.jsonl")]


def asked_of(path: Path, stage: str = "rl") -> dict[str, list[tuple[object, ...]]]:
    """Returns what was asked about each episode, without what the machine and a restart decide."""
    return {
        one.episode.id: [(x.model, x.purpose, x.about, x.question, x.answer, x.cost, x.seed) for x in one.asked]
        for one in episodes(path, stage)
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, list[dict[str, object]]]:
    """A run, and what its judge was asked."""
    with judging() as (url, asked):
        path = trained_run.train(tmp_path_factory.mktemp("judged") / "run", recipe=recipe(url))
    return path, asked


def test_the_verdicts_are_the_rewards_and_what_was_asked_is_recorded(run):
    path, asked = run
    for stage in ("rl", "evaluation-before", "evaluation-rl"):
        for one in episodes(path, stage):
            [exchange] = one.asked
            assert json.loads(exchange.answer.partition("\n")[2])["score"] / 10 == pytest.approx(one.scores[0].total)
            assert (exchange.model, exchange.about) == ("referee", (one.episode.id,))
            assert exchange.cost in (0.0, pytest.approx(100e-6 + 20e-6))
    sent = {json.dumps([m["content"] for m in body["messages"]]) for body in asked}
    recorded = {
        json.dumps([m.text for m in exchange.question])
        for stage in ("rl", "evaluation-before", "evaluation-rl")
        for one in episodes(path, stage)
        for exchange in one.asked
    }
    assert recorded == sent
    assert len(sent) == len(asked)  # nothing was asked twice
    for number, step in enumerate(values(path)):
        of_step = [x for one in episodes(path) for x in one.asked if one.episode.id.startswith(f"rl/{2 * number}")]
        of_step += [x for one in episodes(path) for x in one.asked if one.episode.id.startswith(f"rl/{2 * number + 1}")]
        assert (step["asked"], step["asked_tokens"]) == (6, 660)
        assert step["asked_cost"] == pytest.approx(sum(x.cost for x in of_step))


def test_what_was_asked_is_shown_with_its_cost(run):
    path, _ = run
    shown = CliRunner().invoke(app, ["show", str(path), "rl:0/0/0"]).output
    assert "1 answer of models about it: 110 tokens, cost 0.00012" in shown
    assert "referee: judge, score, answer 1" in shown
    assert "You judge how well agents did their tasks." in shown
    assert "Because." in shown
    testclient = pytest.importorskip("starlette.testclient")
    with testclient.TestClient(application([path.parent]), base_url="http://127.0.0.1") as client:
        page = client.get(f"/runs/{path.name}/episodes/rl/0/0/0").text
    assert "1 answer of models about it: 110 tokens, cost 0.00012" in page
    assert "You judge how well agents did their tasks." in page
    exported = json.loads(CliRunner().invoke(app, ["show", str(path), "rl:0/0/0", "--json"]).output)
    assert exported["asked"][0]["model"] == "referee"


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
    }


def require_same(path: Path, whole: Path) -> None:
    found, expected = final_weights(path), final_weights(whole)
    for name, numbers in expected.items():
        np.testing.assert_array_equal(numbers, found[name])
    assert values(path) == values(whole)
    for stage in ("rl", "evaluation-before", "evaluation-rl"):
        assert asked_of(path, stage) == asked_of(whole, stage)


def test_a_killed_run_goes_on_to_the_same_and_asks_nothing_twice(run, tmp_path):
    with judging() as (url, asked):
        path = killed_and_resumed(tmp_path / "killed", recipe=recipe(url), environment=environment())
    require_same(path, run[0])
    assert len(asked) == len(run[1])


@pytest.mark.parametrize("reward", ["mode = 'pairwise'", "mode = 'ranking'\nsamples = 2\ntemperature = 1.0"])
def test_groups_are_compared(tmp_path, reward):
    def says(body) -> Mapping[str, object]:
        made = by_content(body)
        return {"better": ["first", "second", "tie"][made["better"] % 3]} if "better" in made else made

    with judging(says) as (url, _):
        path = trained_run.train(tmp_path / "run", recipe=recipe(url, reward=reward))
    asked = [one.asked for one in episodes(path)]
    assert all(len(one) > 0 for one in asked)
    assert all(0 <= one.scores[0].parts["judge"] <= 1 for one in episodes(path))
    assert all(step["asked_tokens"] == 110 * step["asked"] > 0 for step in values(path))


def test_a_run_stops_when_its_budget_is_spent_and_goes_on_with_a_larger_one(run, tmp_path):
    with judging() as (url, asked):
        file, path = tmp_path / "recipe.toml", tmp_path / "run"
        file.write_text(recipe(url, "cost_budget = 1e-3"))
        done = sojourn(tmp_path, "train", str(file), "--out", str(path))
        assert done.returncode == 2
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        assert "models.referee.endpoint.cost_budget = 0.001 is spent" in said
        before = len(asked)
        assert 9 <= before < len(run[1])
        change = "models.referee.endpoint.cost_budget=1.0"
        done = sojourn(tmp_path, "train", "--resume", str(path), change)
        assert done.returncode == 0, done.stderr
    require_same(path, run[0])
    assert len(asked) == len(run[1])


def test_answers_that_were_paid_for_before_the_first_step_are_kept(tmp_path):
    """The budget is spent in the first evaluation, of which nothing is recorded yet."""
    with judging() as (url, asked):
        file, path = tmp_path / "recipe.toml", tmp_path / "run"
        file.write_text(recipe(url, "token_budget = 600").replace("tasks = 2", "tasks = 20"))
        assert sojourn(tmp_path, "train", str(file), "--out", str(path)).returncode == 2
        assert (paid := len(asked)) > 0
        done = sojourn(tmp_path, "train", "--resume", str(path), "models.referee.endpoint.token_budget=0")
        assert done.returncode == 0, done.stderr
    assert len({json.dumps(body) for body in asked}) == len(asked) > paid  # nothing is asked again


def test_a_run_is_played_again_without_the_server(run, tmp_path):
    again = trained_run.train(
        tmp_path / "again", recipe=recipe("http://127.0.0.1:1/v1", f"answers = '{run[0]}'", reward="")
    )
    found, expected = final_weights(again), final_weights(run[0])
    for name, numbers in expected.items():
        np.testing.assert_array_equal(numbers, found[name])
    assert all(step["asked_cost"] == 0 for step in values(again))


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    from sojourn.models import endpoint
    from sojourn.rewards import reward_cache

    monkeypatch.setattr(reward_cache, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(endpoint, "FIRST_WAIT_S", 0.0)


def fails_after(count: int, failure: Raw):
    """A judge that answers so many questions, and then fails."""
    left = [count]

    def says(body):
        left[0] -= 1
        return by_content(body) if left[0] >= 0 else failure

    return says


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Raw(400, "down"), "answered 400, 'down'"),
        (reply("I had rather not say."), "gave no verdict for task"),
    ],
)
@pytest.mark.usefixtures("no_pauses")
def test_a_judge_that_fails_gives_no_reward(tmp_path, failure, words):
    """The episodes that it did not judge have failed: they are recorded, with what it said, and not trained on."""
    with judging(fails_after(6, failure)) as (url, _), pytest.raises(InfrastructureError, match=words):
        trained_run.train(tmp_path / "run", recipe=recipe(url))
    failed = [one for one in episodes(tmp_path / "run") if one.episode.error is not None]
    assert failed
    assert all(words in (one.episode.error or "") and not one.scores for one in failed)
    if "verdict" in words:
        assert any(x.answer == "I had rather not say." for one in failed for x in one.asked)


def test_the_key_is_in_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "correct-horse-7")
    with judging(lambda body: "correct-horse-7 is your key") as (url, asked):
        path = tmp_path / "run"
        with pytest.raises(InfrastructureError):
            trained_run.train(path, recipe=recipe(url, 'key = "JUDGE_KEY"', "retries = 0"))
    assert asked[0]["authorization"] == "Bearer correct-horse-7"
    assert (path / FILE).exists()
    with EpisodeStore(path) as store:
        [one, *_] = [store.read(row) for row in store.query()]
    assert one.asked[0].answer == "<masked> is your key"
    files = [file for file in path.rglob("*") if file.is_file()]
    assert [file for file in files if b"correct-horse-7" in file.read_bytes()] == []


RIVAL = '[models.rival]\nname = "tiny:layers=2,hidden=64"\ndtype = "fp32"'


LIKELY = 'judge"\nverdict = "likelihood'


@pytest.mark.parametrize(("model", "name"), [("policy", "asking_reward:Marks"), ("rival", LIKELY)])
def test_models_that_are_here_are_asked_too_and_a_killed_run_goes_on_to_the_same(tmp_path, model, name, monkeypatch):
    text = local(model, RIVAL if model == "rival" else "", name)
    whole = trained_run.train(tmp_path / "whole", recipe=text)
    answers = {x.answer for one in episodes(whole) for x in one.asked}
    assert name != LIKELY or all(answer.startswith("P(No) = ") for answer in answers)
    assert len(answers) > 3
    assert all(step["asked"] == 6 and step["asked_cost"] == 0 for step in values(whole))
    assert not (whole / FILE).exists()
    require_same(killed_and_resumed(tmp_path / "killed", recipe=text, environment=environment()), whole)


def test_the_policy_and_another_model_answer_each_in_its_own_way(tmp_path):
    both = [
        trained_run.train(tmp_path / name, "stages.0.steps=1", recipe=local(name, RIVAL if name == "rival" else ""))
        for name in ("policy", "rival")
    ]
    ours, theirs = ([x.answer for one in episodes(path, "evaluation-before") for x in one.asked] for path in both)
    assert len(ours) == len(theirs) == 2
    assert ours != theirs


def test_eval_asks_the_judge_too(run, tmp_path):
    with judging() as (url, asked):
        done = sojourn(tmp_path, "eval", str(run[0]), f"models.referee.endpoint.base_url={url}")
    assert done.returncode == 0, done.stderr
    assert asked
    said = " ".join(done.stdout.split())
    assert "models gave 2 answers: 220 tokens, cost 0.000" in said


WRAPPED = """[reward]
name = "overlong"
[reward.base]
name = "judge"
model = "referee"
"""


def test_a_judge_inside_another_reward_is_asked_as_well(tmp_path):
    with judging() as (url, asked):
        text = recipe(url).replace('[reward]\nname = "judge"\nmodel = "referee"\n', WRAPPED)
        path = trained_run.train(tmp_path / "run", recipe=text)
    assert asked
    assert all("judge" in one.scores[0].parts and one.asked for one in episodes(path))


REFUSED = {
    "asks the model 'stranger', but there are policy": local("stranger", name="judge"),
    "which is a pool of snapshots: these take seats": local("past", "[models.past.snapshots]", "judge"),
    "models.rival: nothing asks this model": local("policy", RIVAL, "judge"),
    "Judge reads 'answer' in the data of each task": local(
        "policy", name="judge\"\nmode = \"reference\"\nreference = \"answer"
    ),
    "reads how probable the model 'referee' finds each verdict": recipe("http://x/v1", "", 'verdict = "likelihood"'),
    "agent.reward: Judge asks a model": local("policy", name="native").replace('model = "policy"\n', "").replace(
        'agent = { name = "plain", choices = true }',
        'agent = { name = "best_of_n", reward = { name = "judge" }, base = { name = "plain", choices = true } }',
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_asked_is_refused_at_the_start(tmp_path, words):
    (tmp_path / "recipe.toml").write_text(REFUSED[words])
    done = sojourn(tmp_path, "train", "recipe.toml", "--dry")
    assert done.returncode == 2
    assert words in " ".join(f"{done.stdout} {done.stderr}".split())


def test_a_run_on_other_backends_may_ask_endpoints():
    text = recipe("http://127.0.0.1:1/v1").replace('"torch", threads = 1', '"ray"')
    tables = toml.Tables()
    tables.merge(toml.parsed(text), "here")
    assert resolve(tables).recipe.asked_for_text == {"referee"}
    tables.set("models", {})
    with pytest.raises(ConfigError, match="there are policy"):
        resolve(tables)
