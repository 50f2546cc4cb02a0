"""A model with the chat template of a hybrid thinker, as Qwen3's, trains with thoughts and without."""

import asyncio

import pytest
from typer.testing import CliRunner

from sojourn.backends.torch.models import loading, tiny
from sojourn.cli import app
from sojourn.config import toml
from sojourn.display import Display
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from tests.render.models_templates import HYBRID
from tests.trained_run import RECIPE


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with the weights of a tiny model and the tokenizer of a hybrid thinker."""
    folder = tmp_path_factory.mktemp("hybrid")
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = HYBRID
    tiny.build_model(tiny.read_size("tiny:layers=1,hidden=64"), tokenizer, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def recipe(model, tmp_path, *overrides):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("tiny:layers=1,hidden=64", str(model)))
    return path, resolve(toml.read(path, overrides))


@pytest.mark.parametrize("thinking", [False, True])
def test_it_trains_and_each_turn_whose_history_was_rewritten_is_a_context(model, tmp_path, thinking):
    _, resolved = recipe(model, tmp_path, "sampling.max_tokens=32", f"renderer.thinking={str(thinking).lower()}")
    with RunFolder.create(tmp_path / "run", toml.dump(resolved.table)) as folder:
        asyncio.run(run_recipe(resolved.recipe, folder, Display("hybrid")))
    measured = [line.values for line in metrics.read(tmp_path / "run" / "metrics.jsonl") if line.stage == "rl"]
    assert measured
    assert all(values["malformed"] == 0 for values in measured)
    with EpisodeStore(tmp_path / "run") as store:
        played = [episode for group in store.groups("rl") for episode in group.episodes]
    turns = [turn for episode in played for turn in episode.trajectories[0].turns]
    assert len(turns) > 6
    assert {turn.parent for turn in turns} == {-1}


def test_its_format_is_said_once_by_dry_and_kept_for_show(model, tmp_path):
    path, _ = recipe(model, tmp_path)
    done = CliRunner().invoke(app, ["train", "--dry", str(path)])
    assert done.exit_code == 0
    assert done.stderr.count("chat format: the model's own template; it changes what came before") == 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.weights=/nope", "model.weights = '/nope'"),
        ('record.sinks=[{name="trackio"}]', "needs trackio, which is not installed"),
        ("model.name=gemma3-270m renderer.name=template", "the tokenizer has no chat template"),
        ("model.name=/nope", "no model '/nope'"),
    ],
)
def test_dry_refuses_what_cannot_be_had(model, tmp_path, override, said):
    path, _ = recipe(model, tmp_path)
    if "gemma" in override:  # whose tokenizer is known once it is converted
        loading.ensure_folder(loading.resolve("gemma3-270m"))
    done = CliRunner().invoke(app, ["train", "--dry", str(path), *override.split(" ")])
    assert done.exit_code != 0
    assert said in str(done.exception) + done.stderr
