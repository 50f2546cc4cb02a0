"""A vector from the records of a real run, and evaluations that are steered by it."""

import asyncio

import numpy as np
import pytest
from trained_run import train
from typer.testing import CliRunner

from sojourn.cli import app
from sojourn.config import toml
from sojourn.errors import ConfigError, ModelError, RecordError
from sojourn.ope.of_run import recorded_groups
from sojourn.steering.of_run import decisions_of_run
from sojourn.train.assemble import assemble
from sojourn.train.evaluate import evaluate
from sojourn.train.resolve import resolve
from sojourn.train.steered import SteeringVector

FREE_TEXT = ("agent.choices=false", "env.choices=false")
CHANGES = ("model.name=tiny:layers=2,hidden=64", "stages.rl.groups.size=4", "evaluation.tasks=3")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("steered") / "run", *CHANGES)


@pytest.fixture(scope="module")
def free_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("free") / "run", *CHANGES, *FREE_TEXT)


def command(*words):
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200"})


def recipe_of(run, *overrides):
    return resolve(toml.read(run, overrides)).recipe


async def played(recipe):
    async with assemble(recipe) as components:
        done = await evaluate(components, "test")
    return [turn.sample for group in done.groups for t in group.trajectories for turn in t.turns]


def same(one, other):
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.logprobs, b.logprobs) for a, b in pairs
    )


def test_a_vector_is_made_of_a_run_and_steers_its_evaluations(run, tmp_path):
    out = tmp_path / "east.safetensors"
    done = command("steer", f"{run}@rl", "--layer", 1, "--out", out, "--stage", "rl")
    assert done.exit_code == 0, done
    found = SteeringVector.load(out)
    assert (found.vector.shape, found.layer, found.model, found.method) == ((64,), 1, "tiny:layers=2,hidden=64", "east")
    assert "decisions of 4 plays, whose mean entropy is" in done.output
    assert found.vector.any()
    done = command("eval", f"{run}@rl", f"evaluation.steering.file={out}", "evaluation.steering.beta=2.0")
    assert done.exit_code == 0, done
    plain = asyncio.run(played(recipe_of(run)))
    key = f"evaluation.steering.file={out}"
    assert same(plain, asyncio.run(played(recipe_of(run, key, "evaluation.steering.beta=0.0"))))
    assert not same(plain, asyncio.run(played(recipe_of(run, key, "evaluation.steering.beta=-20.0"))))


def test_where_a_vector_cannot_be_written_is_said_before_the_work(run, tmp_path, monkeypatch):
    def worked(*_):
        raise AssertionError("the work began")

    monkeypatch.setattr("sojourn.ope.of_run.recorded_groups", worked)
    taken = tmp_path / "taken.safetensors"
    taken.write_text("mine")
    done = command("steer", f"{run}@rl", "--layer", 1, "--out", taken)
    assert isinstance(done.exception, RecordError), done
    assert str(done.exception).endswith("exists: give another name, or move the file away")
    assert taken.read_text() == "mine"
    done = command("steer", f"{run}@rl", "--layer", 1, "--out", tmp_path / "gone" / "x.safetensors")
    assert isinstance(done.exception, RecordError), done
    assert "there is no folder" in str(done.exception)


async def test_the_entropy_of_choices_is_at_most_that_of_what_was_allowed(run):
    recipe, records = recipe_of(run), recorded_groups(run, "rl", None)
    turns = [turn for record in records for t in record.group.trajectories for turn in t.turns]
    found = await decisions_of_run(recipe, None, records, 0, 2)
    assert sum(len(play.entropies) for play in found) == len(turns)
    ceilings = [sum(np.log(len(ids)) for ids in turn.sample.allowed or () if ids is not None) for turn in turns]
    entropies = np.concatenate([play.entropies for play in found])
    assert (entropies <= np.array(ceilings) + 1e-5).all()
    assert entropies.max() > 0.5


async def test_actions_in_free_text_are_sampled_again(free_run):
    records = recorded_groups(free_run, "rl", None)
    found = await decisions_of_run(recipe_of(free_run), None, records, 0, 5)
    again = await decisions_of_run(recipe_of(free_run), None, records, 0, 5)
    entropies = np.concatenate([play.entropies for play in found])
    assert entropies.max() <= np.log(5) + 1e-6  # of five completions
    assert entropies.max() > 0
    np.testing.assert_array_equal(entropies, np.concatenate([play.entropies for play in again]))


def vector(tmp_path, model="tiny:layers=2,hidden=64", layer=0, size=64):
    path = tmp_path / "vector.safetensors"
    SteeringVector(np.ones(size, dtype=np.float32), layer, model, "made").save(path)
    return f"evaluation.steering.file={path}"


def test_what_cannot_be_steered_is_refused_at_start_up(run, tmp_path):
    vllm = ("backend.name=ray", "backend.samplers.engine=vllm")
    with pytest.raises(ConfigError, match=r"only our own engine can: use backend\.name = 'torch'"):
        recipe_of(run, vector(tmp_path), *vllm)
    recipe_of(run, vector(tmp_path), "backend.name=ray")
    with pytest.raises(ConfigError, match="a vector of the model 'other', but the policy is 'tiny:layers=2,hidden=64'"):
        recipe_of(run, vector(tmp_path, model="other"))
    (tmp_path / "vector.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="not read as a steering vector"):
        recipe_of(run, f"evaluation.steering.file={tmp_path / 'vector.safetensors'}")
    with pytest.raises(ConfigError, match="not read as a steering vector"):
        recipe_of(run, f"evaluation.steering.file={tmp_path / 'nowhere'}")


def test_training_is_not_steered(run, tmp_path):
    """As the trainer adds no vector, what it computes would not be what was sampled."""
    with pytest.raises(ConfigError, match=r"sampling\.steering"):
        recipe_of(run, vector(tmp_path).replace("evaluation.", "sampling."))
    assert recipe_of(run, vector(tmp_path)).sampling.params().steering is None


async def test_a_layer_that_the_model_does_not_have_is_refused(run):
    with pytest.raises(ModelError, match="layer 2: expected one of the model's layers, 0 to 1"):
        await decisions_of_run(recipe_of(run), None, recorded_groups(run, "rl", None), 2, 2)
