"""What a run on Ray takes is known before there is a cluster."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from sojourn.abilities import FurtherModel
from sojourn.backends.ray import cluster
from sojourn.backends.ray.backend import Ray
from sojourn.backends.ray.plan import size_of
from sojourn.backends.ray.processes import EnvWorkers, ModelProcesses, TrainerRanks
from sojourn.backends.ray.sampler_engines import Samplers
from sojourn.backends.torch.models import loading
from sojourn.config.registry import build
from sojourn.errors import ConfigError
from sojourn.models.spec import Lora, Model

MODEL = Model(name="tiny:layers=2,hidden=64", dtype="bf16")
BACKEND = Ray(
    samplers=Samplers(replicas=3, cpus=2, gpus=1), trainer=TrainerRanks(ranks=4), envs=EnvWorkers(workers=2, cpus=0.5)
)


def test_parameters_are_counted_without_weights():
    built = loading.load(MODEL.name).model
    count = sum(parameter.numel() for parameter in built.parameters())
    assert size_of(MODEL, "cpu") == (count, count, 2)
    assert size_of(replace(MODEL, dtype="fp32"), "cpu") == (count, count, 4)
    adapters = size_of(replace(MODEL, lora=Lora(rank=2)), "cpu")
    assert adapters is not None
    assert adapters.parameters == count
    assert 0 < adapters.trained < count / 4


def test_a_plan_says_places_memory_and_what_moves():
    places, sampler, rank, gradients, weights = BACKEND.plan(MODEL)
    assert places == (
        "a cluster, started on this machine, holds 3 samplers of 2 CPUs and 1 GPU each, 4 trainer ranks of 1 CPU each, "
        "2 environment workers of 0.5 CPUs each: 11 CPUs and 3 GPUs together"
    )
    count = size_of(MODEL, "cpu").parameters  # type: ignore[union-attr]
    assert sampler == f"each sampler holds {2 * count / 1e6:.1f} MB of weights and at most 2 GB of cache"
    assert rank.startswith(f"each trainer rank holds {16 * count / 1e6:.1f} MB of weights, gradients and moments")
    assert gradients == f"at each update the ranks add up {4 * count / 1e6:.1f} MB of gradients"
    assert weights == f"after each step {2 * count / 1e6:.1f} MB of weights go to each of 3 samplers"


def test_shards_and_a_running_cluster():
    sharded = replace(BACKEND, trainer=TrainerRanks(ranks=4, shard=True), address="10.0.0.1:6379")
    places, _, rank, *_ = sharded.plan(MODEL)
    assert places.startswith("the cluster at 10.0.0.1:6379 holds 3 samplers")
    count = size_of(MODEL, "cpu").parameters  # type: ignore[union-attr]
    assert rank.startswith(f"each trainer rank holds {4 * count / 1e6:.1f} MB")


def test_ranks_that_share_sequences_say_so_and_must_divide_all():
    shared = replace(BACKEND, trainer=TrainerRanks(ranks=4, context_parallel=2), token_budget=1000)
    assert shared.plan(MODEL)[3] == "2 ranks share each sequence, and compute up to 2,000 tokens at once"
    with pytest.raises(ValueError, match=r"^context_parallel = 3 does not divide ranks = 4"):
        TrainerRanks(ranks=4, context_parallel=3)


def test_gpus_that_would_be_idle_are_refused(monkeypatch):
    monkeypatch.setattr("sojourn.backends.torch.backend.Torch.check", lambda *_: None)
    with pytest.raises(ConfigError, match=r"^backend\.samplers\.gpus = 2: our engine works on one GPU"):
        replace(BACKEND, samplers=Samplers(gpus=2)).check(MODEL)
    further = {"rival": ModelProcesses(samplers=Samplers(gpus=2))}
    with pytest.raises(ConfigError, match=r"^backend\.models\.rival\.samplers\.gpus = 2: our engine works on one GPU"):
        replace(BACKEND, models=further).check(MODEL)
    BACKEND.check(MODEL)
    with pytest.raises(ConfigError, match=r"backend\.trainer\.gpus = 2"):
        build("backend", {"name": "ray", "trainer": {"gpus": 2}})


def test_gpus_that_this_machine_does_not_have_are_refused_before_a_cluster_is_started(monkeypatch):
    BACKEND.check(MODEL)  # the cluster of these tests is there, so it is asked when places are reserved
    further = {"rival": FurtherModel(samplers=2, trainers=0, model=MODEL)}
    monkeypatch.setattr(cluster, "imported", lambda: SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"^backend 'ray' needs 3 GPUs \(3 x 1 for samplers\), but a cluster that is"):
        BACKEND.check(MODEL)
    two = replace(BACKEND, samplers=Samplers(replicas=2, gpus=1))
    two.check(MODEL)
    with pytest.raises(ConfigError, match=r"needs 4 GPUs \(2 x 1 for samplers, 2 x 1 for samplers of models.rival\)"):
        two.plan_models(further)
    on_paper = replace(BACKEND, address="10.0.0.1:6379")
    on_paper.check(MODEL)
    assert on_paper.plan_models(further)


def test_a_model_that_is_not_here_has_no_size_yet(tmp_path):
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF")
    _, unknown = BACKEND.plan(Model(name=str(path)))
    assert unknown == f"what '{path}' takes is known once it is on this machine"
