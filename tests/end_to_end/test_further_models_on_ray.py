"""Runs with further models on Ray: the same as in one process to the bit, killed and resumed, and when actors die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import trained_run
from killed_actors import actors_of, kill_newest
from safetensors.numpy import load_file
from trained_run import killed_and_resumed, untimed

import sojourn
from sojourn.abilities import PlacesModels
from sojourn.commands.train import run_to_end
from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import ConfigError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.parts import PARTS, read
from sojourn.record.run import RunFolder
from sojourn.train.further_models import further_models
from sojourn.train.resolve import resolve
from sojourn.types import Episode

HEAD = """
name = "further"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1, max_context = 1024, memory_gb = 0.05 }
env = { name = "matrix", opponent = "self", rounds = 2, choices = true }
agent = { name = "plain", choices = true }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 8 } }
evaluation = { tasks = 2 }
record = { checkpoint_every = 1 }
"""
STAGE = """
[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 2, size = 2 }
estimator = { name = "reinforce", baseline = "none" }
losses = [{ name = "ppo" }]
optim = { lr = 1e-3 }
"""
RIVAL = '[models.rival]\nname = "tiny:layers=2,hidden=64"\ndtype = "fp32"\n'
SEATED = '[seats]\nopponents = ["rival"]\n'
PAST = '[models.past.snapshots]\nevery = 1\nkeep = 1\n[seats]\nopponents = ["past"]\n'
JUDGE = '[reward]\nname = "asking_reward:Marks"\nmodel = "rival"\n'
READ = '[models.rm]\nweights = "{0}"\n[reward]\nname = "reward_model"\nmodel = "rm"\n'
LEARNS = "learners = { rival = { optim = { lr = 5e-4 } } }\n"
CRITIC = f"""{HEAD}
[critic]
hidden = 4
{STAGE}
streams = [{{ name = "success" }}]
""".replace('{ name = "ppo" }', '{ name = "ppo" }, { name = "binary_cross_entropy" }')
RECIPES = {
    "frozen": HEAD + RIVAL + SEATED + STAGE,
    "stored": HEAD + '[models.rival]\nweights = "{0}"\n' + SEATED + STAGE,
    "snapshots": HEAD + PAST + STAGE,
    "asked": HEAD + RIVAL + JUDGE + STAGE,
    "reward_model": HEAD + READ + STAGE,
    "learners": HEAD + RIVAL + SEATED + STAGE + LEARNS,
    "snapshots_of_adapters": HEAD.replace('fp32" }', 'fp32", lora = { rank = 2 } }')
    + PAST
    + STAGE.replace("1e-3", "5e-2"),
    "adapters_learn": HEAD + RIVAL + "lora = { rank = 2 }\n" + SEATED + STAGE + LEARNS,
    "adapters_in_bf16": HEAD.replace('fp32" }', 'bf16", lora = { rank = 2 } }')
    + RIVAL.replace("fp32", "bf16")
    + "lora = { rank = 2 }\n"
    + SEATED
    + STAGE
    + LEARNS,
    "stored_in_bf16": HEAD + '[models.rival]\nweights = "{0}"\ndtype = "bf16"\n' + SEATED + STAGE,
}
POLICYS = {"driver", "trainer rank 0", "sampler 0"}
BESIDE = {*POLICYS, "sampler 0 of rival"}
PARTS_OF = dict.fromkeys(("frozen", "stored", "stored_in_bf16", "asked"), BESIDE)
PARTS_OF |= {name: {*BESIDE, "trainer rank 0 of rival"} for name in ("learners", "adapters_learn", "adapters_in_bf16")}
PARTS_OF |= {"snapshots": {*POLICYS, "sampler 0 of past"}, "reward_model": {*POLICYS, "trainer rank 0 of rm"}}
RAY = ("backend.name=ray", "backend.samplers.cpus=0.25", "backend.trainer.cpus=0.25")


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    """One Ray for all runs, which join it."""
    pytest.importorskip("ray")
    from ray_actors import started

    with started(4) as ray:
        yield ray


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A run that trained adapters and a value head."""
    return trained_run.train(tmp_path_factory.mktemp("other") / "run", "model.lora={rank=2}", recipe=CRITIC)


@pytest.fixture(scope="module")
def plain(other, tmp_path_factory):
    """Returns the run of a recipe in one process."""
    folder, done = tmp_path_factory.mktemp("plain"), dict[str, Path]()

    def run(name: str) -> Path:
        if name not in done:
            done[name] = trained_run.train(folder / name, recipe=recipe_of(name, other))
        return done[name]

    return run


def recipe_of(name: str, other: Path) -> str:
    return RECIPES[name].replace("{0}", str(other))


class Turns(NamedTuple):
    """Holds what was sampled in an episode, and by which weights."""

    episode: str
    model: str
    tokens: list[list[int]]
    logprobs: list[bytes]
    versions: list[tuple[int, ...]]


def played(run: Path) -> list[Turns]:
    """Returns all that was sampled, evaluations included."""
    with EpisodeStore(run) as store:
        episodes = [store.read(row).episode for row in store.query()]
    return [
        Turns(
            episode.id,
            one.model,
            [turn.sample.tokens.tolist() for turn in one.turns],
            [turn.sample.logprobs.tobytes() for turn in one.turns],
            [tuple(turn.sample.versions) for turn in one.turns],
        )
        for episode in sorted(episodes, key=lambda episode: episode.id)
        for one in episode.trajectories
    ]


def weights_of(run: Path) -> Mapping[str, bytes]:
    """Returns the bytes of the last weights of all models that learned."""
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    files = sorted(found.weights.rglob("weights.safetensors"))
    return {
        f"{file.relative_to(found.weights)}/{name}": np.ascontiguousarray(value).tobytes()
        for file in files
        for name, value in load_file(file).items()
    }


def require_same(run: Path, expected: Path) -> None:
    assert played(run) == played(expected)
    assert weights_of(run) == weights_of(expected)
    assert rows_of(run) == rows_of(expected)


def rows_of(run: Path) -> list[dict[str, float]]:
    """Returns the metrics of each step, without those of several samplers."""
    rows = [untimed(line.values) for line in metrics.read(run / "metrics.jsonl")]
    return [{name: value for name, value in row.items() if name != "samplers_up"} for row in rows]


def on_ray(path: Path, name: str, other: Path, *overrides: str) -> Path:
    return trained_run.train(path, *RAY, *overrides, recipe=recipe_of(name, other))


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_on_ray_is_the_run_in_one_process(name, plain, other, ray, tmp_path):
    with giving_all_back(ray):
        found = on_ray(tmp_path / "run", name, other)
    require_same(found, plain(name))
    assert parts_of(found) == PARTS_OF.get(name, POLICYS)
    if name not in ("reward_model", "asked"):
        assert len({one.model.partition("@")[0] for one in played(found)}) == 2


@contextmanager
def giving_all_back(ray: Any) -> Iterator[None]:
    """Waits, after what is done within it, until its actors have ended, and their places are free."""

    def held() -> tuple[float, set[int]]:
        actors = {process for kind in ("SamplerActor", "TrainerRank") for process in actors_of(kind)}
        return ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0), actors

    cpus, actors = held()  # the cluster may be another test's, whose actors are still there
    yield

    async def ended() -> None:
        async with asyncio.timeout(60):
            while held()[0] > cpus or held()[1] - actors:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    asyncio.run(ended())


def parts_of(run: Path) -> set[str]:
    """Returns the names of all that took part; a snapshot, which may be closed when its step is read, counts as its
    pool."""
    return {part.name.partition("@")[0] for reading in read(run / PARTS) for part in reading.parts}


def test_a_killed_run_goes_on_to_the_same(plain, other, ray, tmp_path):
    more = (*RAY, f"backend.address={ray.get_runtime_context().gcs_address}")
    again = killed_and_resumed(tmp_path / "run", *more, recipe=recipe_of("snapshots", other))
    require_same(again, plain("snapshots"))


def test_a_run_moves_to_ray_with_its_models(plain, other, tmp_path):
    (tmp_path / "run.toml").write_text(recipe_of("learners", other))
    half: dict[str, Any] = {"stages.rl.steps": 1}
    begun = sojourn.train(tmp_path / "run.toml", out=tmp_path / "run", progress=False, **half).path
    moved: dict[str, Any] = {
        "backend.name": "ray",
        "backend.samplers.cpus": 0.25,
        "backend.trainer.cpus": 0.25,
        "backend.models": {"rival": {"samplers": {"replicas": 2, "cpus": 0.25}}},
        "stages.rl.steps": 2,
    }
    path = sojourn.train(begun, resume=True, progress=False, **moved).path
    with EpisodeStore(path, write=True) as store:
        store.truncate("evaluation-rl-1", 0)  # of the end that it had
    require_same(path, plain("learners"))


class Killer(Display):
    """Kills the newest actor of a class, which is one of the further models', as the episodes of some numbers end."""

    def __init__(self, kind: str, numbers: frozenset[int]) -> None:
        super().__init__(live=False)
        self.kind, self.numbers = kind, numbers
        self.ended, self.messages = 0, list[str]()

    def episode(self, episode: Episode) -> None:
        super().episode(episode)
        self.ended += 1
        if self.ended in self.numbers:
            kill_newest(self.kind)

    def message(self, text: str) -> None:
        super().message(text)
        self.messages.append(text)


def killed_run(path: Path, recipe: str, killer: Killer) -> Path:
    file = path.with_name(f"{path.name}.toml")
    file.write_text(recipe)
    resolved = resolve(toml.read(file, RAY))
    with RunFolder.create(path, toml.dump(resolved.table)) as run, killer as display:
        asyncio.run(run_to_end(resolved.recipe, run, display))
    return path


@pytest.mark.parametrize("name", ["stored", "snapshots", "snapshots_of_adapters"])
def test_a_sampler_that_is_killed_loses_no_turn(name, plain, other, tmp_path, caplog):
    run = killed_run(tmp_path / "run", recipe_of(name, other), Killer("SamplerActor", frozenset({1, 4})))
    assert "sampler 0 is lost" in caplog.text
    assert played(run) == played(plain(name))
    assert weights_of(run) == weights_of(plain(name))
    with EpisodeStore(run) as store:
        assert not [row.id for row in store.query() if row.error]


@pytest.mark.parametrize(("name", "model"), [("learners", "rival"), ("reward_model", "rm")])
def test_a_rank_that_is_killed_sends_the_run_back_to_its_last_checkpoint(name, model, plain, other, tmp_path):
    killer = Killer("TrainerRank", frozenset({7}))
    run = killed_run(tmp_path / "run", recipe_of(name, other), killer)
    lost = [message for message in killer.messages if "goes on from its last checkpoint" in message]
    assert [message.partition(" (")[0] for message in lost] == [f"trainer rank 0 of 1 of models.{model}"]
    assert played(run) == played(plain(name))
    assert weights_of(run) == weights_of(plain(name))


def test_snapshots_have_room_where_plays_begin_early(other, tmp_path):
    """With a lag, more of them are open at once than a pool keeps."""
    run = on_ray(tmp_path / "run", "snapshots", other, "stages.0.groups.max_lag=2", "stages.0.steps=5")
    assert [0 <= row["lag_max"] <= 2 for row in rows_of(run)] == [True] * 5


def test_a_further_model_has_the_processes_that_it_is_given(other, plain, ray, tmp_path):
    more = ("backend.models.rival={samplers={replicas=2,cpus=0.25}, trainer={ranks=2,cpus=0.25}}",)
    run = on_ray(tmp_path / "run", "learners", other, *more)
    further = {"trainer rank 0 of rival", "trainer rank 1 of rival", "sampler 0 of rival", "sampler 1 of rival"}
    assert parts_of(run) == {*POLICYS, *further}
    ours, theirs = weights_of(run), weights_of(plain("learners"))
    for name, value in ours.items():
        near = 0 if not name.startswith("models") else 2e-4
        np.testing.assert_allclose(np.frombuffer(value, "f4"), np.frombuffer(theirs[name], "f4"), atol=near)


REFUSED = [
    ("frozen", "nobody={}", r"backend\.models\.nobody: the further models whose weights are here are rival: name one"),
    ("frozen", "rival={trainer={ranks=2}}", r"models\.rival has no trainer, as it does not learn"),
    ("asked", "rival={trainer={}}", r"models\.rival has no trainer, as it does not learn"),
    ("reward_model", "rm={samplers={}}", r"models\.rm has no samplers, as nothing samples it"),
    ("snapshots_of_adapters", "past={samplers={}}", r"or those of the policy sample its adapters"),
    ("learners", "rival={trainer={restarts=1}}", r"unknown key 'backend\.models\.rival\.trainer\.restarts'"),
    ("learners", "rival={trainer={ranks=3,context_parallel=2}}", r"models\.rival\.trainer: context_parallel = 2 does"),
]


@pytest.mark.parametrize(("name", "models", "words"), REFUSED)
def test_processes_that_no_model_has_are_refused(name, models, words, other, tmp_path):
    (tmp_path / "recipe.toml").write_text(recipe_of(name, other))
    with pytest.raises(ConfigError, match=words):
        resolve(toml.read(tmp_path / "recipe.toml", [*RAY, f"backend.models={{{models}}}"]))


def test_a_cluster_without_room_for_further_models_is_told(other, ray, tmp_path):
    cpus = int(ray.cluster_resources()["CPU"]) + 1
    with giving_all_back(ray), pytest.raises(ConfigError, match=rf"1 x {cpus} for samplers of models\.rival"):
        on_ray(tmp_path / "run", "frozen", other, f"backend.models={{rival={{samplers={{cpus={cpus}}}}}}}")


def test_a_plan_tells_of_further_models(other, tmp_path):
    (tmp_path / "recipe.toml").write_text(recipe_of("snapshots", other))
    recipe = resolve(toml.read(tmp_path / "recipe.toml", [*RAY, "backend.samplers.replicas=3"])).recipe
    assert isinstance(recipe.backend, PlacesModels)
    places, sampler = recipe.backend.plan_models(further_models(recipe))
    assert places == ("for further models it also holds 2 samplers of models.past of 0.25 CPUs each: 0.5 CPUs together")
    assert sampler.startswith("each sampler of models.past holds ")
    (tmp_path / "recipe.toml").write_text(recipe_of("learners", other))
    recipe = resolve(toml.read(tmp_path / "recipe.toml", [*RAY, "backend.trainer.ranks=2"])).recipe
    assert isinstance(recipe.backend, PlacesModels)
    places, *others = recipe.backend.plan_models(further_models(recipe))
    assert "1 samplers of models.rival of 0.25 CPUs each, 2 trainer ranks of models.rival" in places
    assert len(others) == 2
