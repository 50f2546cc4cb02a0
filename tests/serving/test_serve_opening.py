"""Which model a name stands for, and that what is opened has its weights."""

import asyncio

import exported_run
import numpy as np
import pytest
import trained_run

from sojourn.errors import ConfigError, SojournError
from sojourn.serving.opening import find, open_model
from sojourn.types import Prompt


def scores(found):
    async def score():
        served = open_model(found)
        try:
            return await served.engine.score(Prompt(exported_run.TOKENS))
        finally:
            await served.engine.close()

    return asyncio.run(score())


@pytest.fixture
def run(tmp_path):
    return exported_run.run(tmp_path / "mine")


KINDS = {"all weights": (), "adapters": ("model.lora={rank=4}",), "bf16": ("model.lora={rank=4}", "model.dtype=bf16")}


@pytest.mark.parametrize("overrides", KINDS.values(), ids=KINDS)
def test_a_run_is_served_with_its_weights(tmp_path, overrides):
    run, _, expected = exported_run.run(tmp_path / "mine", *overrides)
    found = find(str(run))
    assert found.name == "mine@warmup"
    assert str(run) in found.description
    assert found.description.endswith("after 1 steps")
    np.testing.assert_allclose(scores(found), expected, atol=1e-5)
    served = open_model(found)
    assert not [name for name in served.engine._runner._shapes if "lora" in name], "adapters are part of the weights"
    asyncio.run(served.engine.close())
    before = find(f"{run}@before")
    assert (before.name, before.weights) == ("mine@before", None)
    assert np.abs(scores(before) - expected).max() > 0.01
    assert find(f"{run}@1").name == find(f"{run}@last").name == "mine@warmup"


def test_a_recipe_that_begins_with_a_runs_weights_has_these(tmp_path):
    run, _, expected = exported_run.run(tmp_path / "mine")
    recipe = tmp_path / "next.toml"
    recipe.write_text(trained_run.RECIPE.replace('dtype = "fp32"', f'dtype = "fp32"\nweights = "{run}"'))
    np.testing.assert_allclose(scores(find(str(recipe))), expected, atol=1e-5)


def test_recipes_folders_and_names_are_models(tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(trained_run.RECIPE)
    folder = exported_run.base(tmp_path / "a-model", "llama")
    names = [find(str(what)).name for what in (recipe, folder, "tiny", "tiny:layers=1")]
    assert names == ["tiny:layers=1,hidden=64", "a-model", "tiny", "tiny:layers=1"]
    assert find(str(folder), ["backend.max_context=99"]).recipe.backend.max_context == 99


def test_it_samples_as_the_evaluations_of_the_run(tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        trained_run.RECIPE.replace("\ntasks = 2", "\ntasks = 2\ntemperature = 0.3\ntop_p = 0.8").replace(
            "max_tokens = 8", 'max_tokens = 8\nstop_strings = ["END"]'
        )
    )
    params = find(str(recipe)).params
    assert (params.temperature, params.top_p, params.stop_strings) == (0.3, 0.8, ("END",))


def test_what_is_no_model_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "weightless").mkdir()
    (tmp_path / "weightless" / "config.json").write_text("{}")
    for what, told in (
        ("runs/absent", "there is no such run"),
        ("absent@120", "there is no such run"),
        ("empty", "neither a run folder"),
        ("weightless", "has no .safetensors"),
        ("absent.toml", "no config file"),
        ("absent.gguf", "no such file"),
        ("smollm3", "no model 'smollm3'"),
    ):
        with pytest.raises(SojournError, match=told) as failure:
            find(what)
        assert "\n" not in str(failure.value)
    with pytest.raises(ConfigError, match=r"override 'env.rooms=4': of a recipe, a served model has seed, model"):
        find("tiny", ["env.rooms=4"])
    with pytest.raises(ConfigError, match="did you mean 'max_context'"):
        find("tiny", ["backend.max_contxt=4"])


def test_a_run_without_that_checkpoint_says_which_it_has(run):
    with pytest.raises(SojournError, match="no such weights; it has before, warmup"):
        find(f"{run[0]}@77")
