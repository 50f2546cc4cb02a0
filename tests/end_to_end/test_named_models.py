"""Further models of a recipe: strict keys, where each value came from, and a run that another run teaches."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trained_run import RECIPE, train
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ConfigError, RecordError, SojournError
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.train.named_models import check_models_open, check_names, find_models, model_identities
from sojourn.train.resolve import load
from sojourn.train.weights import check_models

TAUGHT = RECIPE.replace('losses = [{ name = "ppo" }]', 'losses = [{ name = "reinforce" }]').replace(
    "size = 2 }\n",
    'size = 2 }\nestimator = { name = "teacher_kl" }\nstreams = [{ name = "teacher", model = "expert" }]\n',
)
NAMED = f'{TAUGHT}\n[models.expert]\nname = "tiny:layers=2,hidden=64"\ndtype = "fp32"\n'


def refused(tmp_path: Path, text: str, *overrides: str) -> str:
    """What is said of a recipe that cannot be built."""
    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(SojournError) as told:
        check_models_open(load(file, overrides).recipe)
    return str(told.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("models.expert.nmae='x'", "unknown key 'models.expert.nmae': did you mean 'name'?"),
        ("models.expert=3", "models.expert = 3: expected a table with the keys of FrozenModel"),
        ("models.expert.weights='runs/x'", "models.expert: name = 'tiny:layers=2,hidden=64' with weights = 'runs/x'"),
        ("models.expert.name=''", "expected exactly one of them, the name of a model or a run"),
        ("models.policy={name='tiny'}", "models.policy: 'policy' is the run's own model"),
        ("models.spare={name='tiny'}", "models.spare: nothing asks this model"),
        ("stages.rl.streams=[{name='teacher',model='exprt'}]", "but there are expert, policy, reference: add a table"),
        ("record.streams=[{name='teacher',model='expert'}]", "Teacher learns, reads a critic or asks a model"),
        (
            "stages.rl.losses=[{name='distill'},{name='distill',top_k=4}]",
            "two losses compare distributions by reverse_kl, each in its own way",
        ),
        ("models.expert.name='nowhere'", "no model 'nowhere': expected"),
        ("models.expert.revision='main'", "have one: leave it out"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused(tmp_path, override, sentence):
    assert sentence in refused(tmp_path, NAMED, override)


def test_a_run_that_is_not_there_is_refused(tmp_path):
    weights = NAMED.replace('name = "tiny:layers=2,hidden=64"', f'weights = "{tmp_path}/none@3"')
    assert "models.expert.weights = " in (told := refused(tmp_path, weights))
    assert "there is no run at this path" in told


def test_a_dry_run_shows_each_value_and_where_it_came_from(tmp_path):
    file = tmp_path / "r.toml"
    file.write_text(NAMED)
    done = CliRunner().invoke(app, ["train", str(file), "models.expert.dtype=bf16", "--dry"])
    assert done.exit_code == 0, done.output
    lines = [re.sub(r"\s+", " ", line) for line in done.output.splitlines()]
    assert f"models.expert.name = 'tiny:layers=2,hidden=64' {file}" in lines
    assert "models.expert.dtype = 'bf16' command line" in lines
    assert "models.expert.weights = '' default" in lines


def test_a_config_that_was_written_down_makes_the_same_models(tmp_path):
    file, again = tmp_path / "r.toml", tmp_path / "again.toml"
    file.write_text(NAMED)
    again.write_text(toml.dump(load(file).table))
    assert load(again).recipe.models == load(file).recipe.models


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[Path, Path]:
    """A run with adapters, and another that it teaches."""
    folder = tmp_path_factory.mktemp("runs")
    first = train(folder / "first", "model.lora={rank=2}", "seed=3")
    models = {"expert": {"weights": f"{first}@warmup", "dtype": "fp32"}}
    return first, train(folder / "second", recipe=f"{TAUGHT}\n{toml.dump({'models': models})}")


def test_a_run_is_taught_by_the_weights_of_another(taught):
    first, second = taught
    recipe = load(second).recipe
    [found] = find_models(recipe).values()
    assert (found.model.name, found.model.lora.rank, found.seed) == ("tiny:layers=1,hidden=64", 2, 3)
    assert found.weights == first / "checkpoints" / "step-000001" / "weights"
    with EpisodeStore(second) as store:
        rows = store.query(stage="rl")
        records = [store.read(row) for row in rows]
    assert len(records) == 2
    moved = 0.0
    for record in records:
        [trajectory], [credit] = record.episode.trajectories, record.credits
        for turn, advantage, teacher in zip(trajectory.turns, credit.tokens, record.streams["teacher"][0], strict=True):
            np.testing.assert_allclose(advantage, teacher - turn.sample.logprobs, atol=1e-5)
            moved = max(moved, float(np.abs(advantage).max()))
    assert moved > 1e-3
    recorded = json.loads((second / "models.json").read_text())
    assert recorded.keys() == {"policy", "models.expert"}
    assert recorded["models.expert"].startswith("built by sojourn")
    assert "weights crc32" in recorded["models.expert"]


def test_a_run_goes_on_with_the_models_that_it_began_with_only(taught, tmp_path):
    first, second = taught
    text = (second / "config.toml").read_text()
    check_models(load(second).recipe, RunFolder.read(second))
    (tmp_path / "r.toml").write_text(text.replace("@warmup", "@rl"))
    other = load(tmp_path / "r.toml").recipe
    assert model_identities(other) != model_identities(load(second).recipe)
    with pytest.raises(RecordError, match=rf"began with the models.expert model '{first}@rl' as "):
        check_models(other, RunFolder.read(second))


def test_initial_weights_have_no_run(taught, tmp_path):
    first, _ = taught
    weights = NAMED.replace('name = "tiny:layers=2,hidden=64"', f'weights = "{first}@before"')
    assert "names the weights that the run began with: set models.expert.name" in refused(tmp_path, weights)


def test_a_teacher_of_another_vocabulary_is_refused(tmp_path, monkeypatch):
    from sojourn.backends.torch.models import loading

    real = loading.tokenizer

    def of_name(name: str, revision: str = ""):
        made = real(name, revision)
        if name == "tiny:layers=2,hidden=64":
            made.add_tokens(["another"])
        return made

    monkeypatch.setattr(loading, "tokenizer", of_name)
    assert "models.expert = 'tiny:layers=2,hidden=64' has not the policy's vocabulary (they have" in refused(
        tmp_path, NAMED
    )


def test_a_backend_that_opens_no_models_is_refused(tmp_path):
    (tmp_path / "r.toml").write_text(NAMED)
    recipe = load(tmp_path / "r.toml").recipe
    with pytest.raises(ConfigError, match="models: object opens no models beside the policy: use backend"):
        check_names(replace(recipe, backend=object()))
