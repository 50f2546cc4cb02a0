"""Several models that learn in one run: each from its own trajectories, by its own components, to its own weights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import trained_run
from numpy.typing import NDArray
from safetensors.numpy import load_file
from trained_run import killed_and_resumed
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.train.group_checks import check_groups
from sojourn.train.resolve import resolve
from sojourn.types import Group
from sojourn.view.server import application

RECIPE = """
name = "both"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "matrix", opponent = "self", rounds = 3, choices = true }
agent = { name = "plain", choices = true }
evaluation = { tasks = 4 }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 12 } }
models = { rival = { name = "tiny:layers=2,hidden=64", dtype = "fp32" } }
seats = { opponents = ["rival"] }
record = { checkpoint_every = 1 }
[[stages]]
name = "rl"
steps = 3
groups = { name = "slots", width = 4, size = 3 }
estimator = { name = "rloo" }
losses = [{ name = "ppo" }]
optim = { lr = 1e-3 }
learners = { rival = { estimator = { name = "rae" }, losses = [{ name = "reinforce" }], optim = { lr = 5e-4 } } }
"""
Weights = dict[str, NDArray[np.float32]]


def weights_of(run: Path, model: str = "policy", step: int | None = None) -> Weights:
    found = checkpoint.checkpoints(run / "checkpoints")
    [*_, at] = [one for one in found if step is None or one.step == step]
    folder = at.weights if model == "policy" else at.weights / "models" / model
    return load_file(folder / "weights.safetensors")


def same(first: Weights, second: Weights) -> bool:
    return all(np.array_equal(values, second[name]) for name, values in first.items())


def groups_of(path: Path, stage: str = "rl") -> list[Group]:
    with EpisodeStore(path) as store:
        return sorted(store.groups(stage), key=lambda group: group.slot)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_run.train(tmp_path_factory.mktemp("both") / "run", "record.keep=9", recipe=RECIPE)


def test_both_models_learn(run):
    for line in metrics.read(run / "metrics.jsonl"):
        if line.values["zero_signal"] < 1:
            assert line.values["grad_norm"] > 0
        assert line.values["rival_grad_norm"] > 0


def one_step(path: Path, *changes: str, recipe: str = RECIPE) -> Path:
    return trained_run.train(path, "stages.0.steps=1", *changes, recipe=recipe)


def test_each_learns_from_its_own_trajectories_alone(run, tmp_path):
    """After a step, in which the same was played, the policy has the weights that it has beside a frozen rival; the
    rival has those that it has whatever the policy's losses are."""
    both = one_step(tmp_path / "both")
    frozen = one_step(tmp_path / "frozen", "stages.0.learners={}")
    assert same(weights_of(both), weights_of(frozen))
    other = one_step(tmp_path / "other", "stages.0.optim.lr=0.01", "stages.0.losses=[{name='reinforce'}]")
    assert same(weights_of(both, "rival"), weights_of(other, "rival"))
    assert not same(weights_of(both), weights_of(other))


def test_a_learner_has_its_own_components(tmp_path):
    alone = RECIPE.replace('losses = [{ name = "reinforce" }], ', "")
    both = one_step(tmp_path / "both", recipe=alone)
    alike = {
        "estimator": "stages.0.learners.rival.estimator={name='rloo'}",
        "losses": "stages.0.learners.rival.losses=[{name='nll'}]",
        "optim": "stages.0.learners.rival.optim={lr=0.01}",
        "aggregate": "stages.0.learners.rival.aggregate={by='sequence'}",
        "minibatches": "stages.0.learners.rival.minibatches=2",
    }
    for key, change in alike.items():
        changed = one_step(tmp_path / key, change, recipe=alone)
        assert same(weights_of(changed), weights_of(both)), key
        assert not same(weights_of(changed, "rival"), weights_of(both, "rival")), key


def test_learners_share_no_state(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    changes = ["stages.0.estimator={name='rae'}", "stages.0.learners.rival={}"]
    stages = resolve(toml.read(tmp_path / "recipe.toml", changes)).recipe.stages[0].of_models()
    assert stages["rival"].estimator == stages["policy"].estimator
    assert stages["rival"].estimator is not stages["policy"].estimator


def test_what_a_learner_does_not_say_is_as_the_stage_has_it(tmp_path):
    said = one_step(
        tmp_path / "said",
        "stages.0.learners={rival={estimator={name='rloo'}, losses=[{name='ppo'}], optim={lr=0.001}}}",
    )
    left = one_step(tmp_path / "left", "stages.0.learners={rival={}}")
    assert same(weights_of(said, "rival"), weights_of(left, "rival"))


def test_trajectories_are_recorded_with_what_each_model_was_trained_by(run):
    with EpisodeStore(run) as store:
        for row in store.query(stage="rl"):
            record = store.read(row)
            assert [one.trainable for one in record.episode.trajectories] == [True, True]
            assert len(record.scores) == len(record.credits) == len(record.streams["weight"]) == 2
            for trajectory, credit, weight in zip(
                record.episode.trajectories, record.credits, record.streams["weight"], strict=True
            ):
                assert trajectory.model in {"policy", "rival"}
                assert sum(len(part) for part in credit.tokens) == sum(
                    len(turn.sample.tokens) for turn in trajectory.turns
                )
                assert all((part > 0).all() for part in weight)


def test_metrics_and_evaluations_tell_of_each(run):
    lines = [line.values for line in metrics.read(run / "metrics.jsonl")]
    for values in lines:
        assert {"loss", "rival_loss", "lr", "rival_lr", "success", "rival_success", "grad_norm"} <= values.keys()
        assert values["lr"] == pytest.approx(1e-3)
        assert values["rival_lr"] == pytest.approx(5e-4)
        assert values["version"] == values["rival_version"]
        assert values["lag_max"] == values["rival_lag_max"] == 0
    [first, *_] = json.loads((run / "evaluations.json").read_text())
    plays = [one for g in groups_of(run, "evaluation-before") for e in g.episodes for one in e.trajectories]
    policy, rival = (np.mean([one.reward for one in plays if one.model == model]) for model in ("policy", "rival"))
    assert policy != rival
    assert first["summary"]["overall"]["reward"]["mean"] == pytest.approx(policy)
    assert first["summary"]["measures"]["rival_reward"] == pytest.approx(rival)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_killed_run_goes_on_to_the_same_weights_of_both(lag, tmp_path):
    changes = ["stages.0.groups.max_lag=1", "stages.0.learners.rival={}"] if lag else []
    whole = trained_run.train(tmp_path / "whole", *changes, recipe=RECIPE)
    path = killed_and_resumed(tmp_path / "killed", *changes, recipe=RECIPE)
    if lag:  # which weights a token has then depends on timing
        assert weights_of(path, "rival").keys() == weights_of(whole, "rival").keys()
        return
    for model in ("policy", "rival"):
        assert same(weights_of(path, model), weights_of(whole, model))


def test_a_model_may_learn_in_one_stage_and_sit_still_in_the_next(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(
        RECIPE + '[[stages]]\nname = "more"\nsteps = 2\ngroups = { name = "slots", width = 2, size = 2 }\n'
        'estimator = { name = "constant" }\nlosses = [{ name = "nll" }]\n'
    )
    run = trained_run.train(tmp_path / "run", recipe=path.read_text())
    assert same(weights_of(run, "rival", 3), weights_of(run, "rival", 5))
    assert not same(weights_of(run, "policy", 3), weights_of(run, "policy", 5))


def test_adapters_may_learn_beside_the_policy(tmp_path):
    path = one_step(tmp_path / "run", "models.rival.lora={rank=2}")
    assert all("lora" in name for name in weights_of(path, "rival"))
    assert not any("lora" in name for name in weights_of(path))


def test_each_is_exported_as_a_model(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    layers = {}
    for model in ("policy", "rival"):
        out = tmp_path / model
        words = ["export", str(run), "--format", "hf", "--out", str(out)]
        done = CliRunner().invoke(app, [*words, *(["--model", model] if model == "rival" else [])])
        assert done.exit_code == 0, done.output
        loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
        layers[model] = loaded.config.num_hidden_layers
        own = {name: value.numpy() for name, value in loaded.state_dict().items()}
        for name, values in weights_of(run, model).items():
            np.testing.assert_allclose(own[name], values)
    assert layers == {"policy": 1, "rival": 2}
    assert "It is the model 'rival'" in (tmp_path / "rival" / "README.md").read_text()
    for words, why in ((["--model", "rivl"], "rival"), (["--model", "rival"], "did not learn")):
        source = str(run) if why == "rival" else f"{run}@before"
        done = CliRunner().invoke(app, ["export", source, "--format", "hf", "--out", str(tmp_path / "x"), *words])
        assert done.exit_code != 0
        assert isinstance(done.exception, ConfigError)
        assert why in str(done.exception)


def test_the_terminal_tells_of_each(run, tmp_path):
    shown = " ".join(CliRunner().invoke(app, ["show", str(run)]).output.split())
    assert "also learning: rival" in shown
    assert "rival in the last step: success" in shown
    (tmp_path / "recipe.toml").write_text(RECIPE)
    done = CliRunner().invoke(app, ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0
    assert "rival success" in done.output


def test_an_evaluation_alone_has_the_weights_of_both(run):
    done = CliRunner().invoke(app, ["eval", f"{run}@last"])
    assert done.exit_code == 0, done.output
    assert "rival_reward" in done.output


REFUSED = {
    "takes no seat in training": ["seats={}", "evaluation.seats={opponents=['rival']}"],
    "'policy' is the run's own model": ["stages.0.learners.policy={}"],
    "needs a critic, which only the policy has": [
        "stages.0.learners.rival.losses=[{name='ppo'},{name='value'}]", 
    ],
    "stage 'rl, learner rival': Reinforce is valid only for": ["stages.0.learners.rival.minibatches=2"],
    "models.rival.lora: no stage trains": ["stages.0.learners={}", "models.rival.lora={rank=2}"],
    "lora without a name": ["models.rival={weights='runs/x', lora={rank=2}}"],
    "minibatches = 13, but a step has 12": [
        "stages.0.learners.rival.minibatches=13", "stages.0.learners.rival.losses=[{name='ppo'}]",
    ],
    "snapshots are earlier versions": ["models.rival={snapshots={every=1}}"],
    "learner rival': HindsightHint reads a text 'hint' of each turn, which no reward writes": [
        "stages.0.learners.rival.streams=[{name='hindsight_hint'}]",
        "stages.0.learners.rival.estimator={name='teacher_kl', stream='hindsight_hint'}",
    ],
    "learners has no effect with trains = false": [
        "stages.0.trains=false", "stages.0.losses=[]", "stages.0.optim={}",
    ],
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_learn_is_refused(words, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(ConfigError) as caught:
        resolve(toml.read(tmp_path / "recipe.toml", REFUSED[words]))
    assert words in str(caught.value)


def test_what_a_learner_needs_of_the_world_is_asked_of_it(tmp_path, monkeypatch):
    """Where no state is known, all turns would count as one state."""
    monkeypatch.setattr("sojourn.sources.play_abilities.play_abilities", lambda env: frozenset())
    (tmp_path / "recipe.toml").write_text(RECIPE)
    change = ["stages.0.learners.rival.estimator={name='gigpo'}"]
    with pytest.raises(ConfigError, match=r"learner rival': GiGPO needs environments with state_key\(\)"):
        asyncio.run(check_groups(resolve(toml.read(tmp_path / "recipe.toml", change)).recipe))


def test_a_stream_that_only_one_of_them_reads_is_not_known_of_the_other(tmp_path):
    """It is shown and exported as such."""
    path = one_step(
        tmp_path / "run", "stages.0.streams=[{name='ref_logprobs'}]", "stages.0.losses=[{name='ppo'},{name='kl'}]",
        "stages.0.learners.rival.streams=[]",
    )  # fmt: skip
    with EpisodeStore(path) as store:
        for row in store.query(stage="rl"):
            record = store.read(row)
            for trajectory, values in zip(record.episode.trajectories, record.streams["ref_logprobs"], strict=True):
                known = np.isfinite(np.concatenate(values))
                assert known.all() if trajectory.model == "policy" else not known.any()
    shown = CliRunner().invoke(app, ["show", str(path), "rl:0/0/0"])
    assert shown.exit_code == 0, shown.output
    words = ["export", str(path), "--where", "stage:rl", "--tokens", "--out", str(tmp_path / "exported.jsonl")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for line in (tmp_path / "exported.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    testclient = pytest.importorskip("starlette.testclient")
    with testclient.TestClient(application([path.parent]), base_url="http://127.0.0.1") as client:
        page = client.get(f"/runs/{path.name}/episodes/rl/0/0/0")
        assert page.status_code == 200


def test_a_killed_run_goes_on_where_a_model_that_has_learned_sits_still(tmp_path):
    first, later = RECIPE.replace('name = "rl"', 'name = "both-learn"').replace("steps = 3", "steps = 2"), RECIPE
    later = later[later.index("[[stages]]") : later.index("learners")]
    whole = trained_run.train(tmp_path / "whole", recipe=first + later)
    path = killed_and_resumed(tmp_path / "killed", recipe=first + later)
    for model in ("policy", "rival"):
        assert same(weights_of(path, model), weights_of(whole, model))
    versions = [
        {turn.sample.versions for e in group.episodes for one in e.trajectories for turn in one.turns}
        for run in (whole, path)
        for group in groups_of(run)
    ]
    assert versions[: len(versions) // 2] == versions[len(versions) // 2 :]
