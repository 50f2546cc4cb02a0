"""Reward models: trained on recorded episodes, better than chance on held-out ones, and what a policy then learns from;
kept and resumed, trained beside the policy, and refused where they cannot work."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import numpy as np
import pytest
import trained_run
from safetensors.numpy import load_file
from trained_run import untimed

from sojourn.config import toml
from sojourn.errors import ConfigError, RecordError
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rewards.reward_cache import score_group
from sojourn.train.assemble import assemble
from sojourn.train.resolve import resolve
from sojourn.train.reward_models import check_reward_models_open
from sojourn.types import Group, Score

HEAD = """
name = "modelled"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
backend = { name = "torch", threads = 1 }
env = { name = "toy", rooms = 2, side_rooms = 1, doors = 0, decoys = 0, objects = 1, choices = true }
agent = { name = "plain", choices = true }
evaluation = { tasks = 2 }
sampling = { max_tokens = 8 }
rollout = { limits = { turns = 4 } }
record = { checkpoint_every = 1 }
"""
COLLECT = f"""{HEAD}
[[stages]]
name = "collect"
steps = 6
trains = false
groups = {{ name = "slots", width = 8, size = 4 }}
[[stages]]
name = "held_out"
steps = 6
trains = false
groups = {{ name = "slots", width = 8, size = 4 }}
[[stages]]
name = "rl"
steps = 1
groups = {{ name = "earlier", stage = "collect", width = 1 }}
losses = [{{ name = "ppo" }}]
"""
OUTCOMES = 'streams = [{ name = "success" }]\nlosses = [{ name = "binary_cross_entropy" }]'
TURNS = """streams = [{ name = "turn_success" }]
losses = [{ name = "binary_cross_entropy", stream = "turn_success", turns = "each" }]"""
PAIRS = 'streams = [{ name = "pairs" }, { name = "values" }]\nlosses = [{ name = "bradley_terry" }]'
POLICY = """
[[stages]]
name = "rl"
steps = 3
groups = { name = "slots", width = 2, size = 3 }
losses = [{ name = "ppo" }]
optim = { lr = 1e-2 }
"""
BESIDE = (
    POLICY.replace('losses = [{ name = "ppo" }]', 'losses = [{ name = "ppo" }, { name = "binary_cross_entropy" }]')
    + 'streams = [{ name = "success" }]\n'
)
OWN = '[critic]\nmodel = "tiny:layers=1,hidden=64"\noptim = { lr = 1e-2 }\n[reward]\nname = "reward_model"\n'


def learning(recorded: Path, what: str) -> str:
    return f"""{HEAD}
[critic]
optim = {{ lr = 3e-3 }}
[[stages]]
name = "learn"
steps = 12
groups = {{ name = "folder", path = "{recorded}", stage = "collect", width = 16 }}
estimator = {{ name = "constant" }}
optim = {{ lr = 3e-3 }}
{what}
"""


def rewarded(path: Path, more: str = "", stages: str = POLICY) -> str:
    return f'{HEAD}\n[models.rm]\nweights = "{path}"\n[reward]\nname = "reward_model"\nmodel = "rm"\n{more}\n{stages}'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run.train(tmp_path_factory.mktemp("recorded") / "run", recipe=COLLECT)


@pytest.fixture(scope="module")
def outcomes(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run.train(tmp_path_factory.mktemp("rm") / "run", recipe=learning(recorded, OUTCOMES))


def groups_of(run: Path, stage: str) -> list[Group]:
    with EpisodeStore(run) as store:
        return list(store.groups(stage))


def scored(recipe: str, groups: list[Group]) -> list[list[Score]]:
    """Returns the scores of groups by the reward of a recipe, as a run has it."""

    async def score() -> list[list[Score]]:
        async with assemble(built(recipe)) as components:
            return [await score_group(components.rewards.reward, group) for group in groups]

    return asyncio.run(score())


def built(recipe: str):
    return resolve(toml.Tables(tomllib.loads(recipe))).recipe


def successes(groups: list[Group]) -> np.ndarray:
    return np.array([one.success for group in groups for one in group.trajectories])


@pytest.mark.parametrize(("what", "output"), [(OUTCOMES, "probability"), (TURNS, "probability"), (PAIRS, "value")])
def test_a_trained_model_tells_held_out_successes_from_failures(recorded, what, output, tmp_path):
    run = trained_run.train(tmp_path / "rm", recipe=learning(recorded, what))
    held_out = groups_of(recorded, "held_out")
    scores = scored(rewarded(run, f'output = "{output}"'), held_out)
    rewards, won = np.array([one.total for of_group in scores for one in of_group]), successes(held_out)
    assert 10 < won.sum() < len(won) - 10
    assert (rewards[won][:, None] > rewards[~won][None]).mean() > 0.8  # the area under the ROC curve
    if what == OUTCOMES:
        assert ((rewards > 0.5) == won).mean() > max(won.mean(), 1 - won.mean())
    learned = [line.values for line in metrics.read(run / "metrics.jsonl") if "loss" in line.values]
    name = "bradley_terry_loss" if what == PAIRS else "bce"
    assert learned[0][name] == pytest.approx(np.log(2))  # as every value is 0 before training
    assert learned[-1][name] < (0.8 if what == TURNS else 0.5) * learned[0][name]


def test_the_reward_of_each_turn_or_its_change_adds_up(recorded, outcomes):
    groups = groups_of(recorded, "held_out")[:4]
    last, each, change = (
        [one for of_group in scored(rewarded(outcomes, f'turns = "{how}"'), groups) for one in of_group]
        for how in ("last", "each", "change")
    )
    for a, b, c in zip(last, each, change, strict=True):
        assert not np.any(a.turns[:-1])
        assert a.total == pytest.approx(b.turns[-1]) == pytest.approx(c.total, abs=1e-6)
        np.testing.assert_allclose(np.cumsum(c.turns), b.turns, atol=1e-6)
        assert a.parts["reward_model"] == b.parts["reward_model"] == c.parts["reward_model"]
    beside = scored(rewarded(outcomes, 'base = { name = "native" }\ncoef = 0.5'), groups)
    for score, alone, trajectory in zip(
        [one for of_group in beside for one in of_group], last, [t for g in groups for t in g.trajectories], strict=True
    ):
        assert score.total == pytest.approx(0.5 * alone.total + trajectory.reward, abs=1e-6)
        assert score.result == pytest.approx(score.total)


def test_a_policy_is_rewarded_by_it_and_a_resumed_run_ends_as_one_that_was_not_killed(outcomes, tmp_path):
    recipe = rewarded(outcomes)
    whole = trained_run.train(tmp_path / "whole", recipe=recipe)
    resumed = trained_run.killed_and_resumed(tmp_path / "resumed", recipe=recipe)
    assert trained_run.weight_bytes(whole) == trained_run.weight_bytes(resumed)
    again = scored(recipe, groups_of(whole, "rl"))
    with EpisodeStore(whole) as store:
        found = {r.episode.id: r.scores[0].total for r in map(store.read, store.query(stage="rl"))}
    expected = {
        episode.id: one.total
        for group, of_group in zip(groups_of(whole, "rl"), again, strict=True)
        for episode, one in zip(group.episodes, of_group, strict=True)
    }
    assert found == pytest.approx(expected, abs=1e-5)
    assert all(0 < reward < 1 for reward in found.values())
    rows = [line.values for line in metrics.read(whole / "metrics.jsonl")]
    assert any("part_reward_model" in values for values in rows)
    assert rows_of(whole) == rows_of(resumed)


def rows_of(run: Path) -> list[dict[str, float]]:
    return [untimed(line.values) for line in metrics.read(run / "metrics.jsonl")]


def test_it_learns_beside_the_policy_from_what_the_world_says(tmp_path):
    recipe = f"{HEAD}\n{OWN}\n{BESIDE}"
    whole = trained_run.train(tmp_path / "whole", recipe=recipe)
    resumed = trained_run.killed_and_resumed(tmp_path / "resumed", recipe=recipe)
    assert trained_run.weight_bytes(whole) == trained_run.weight_bytes(resumed)
    critics = [critic_of(run) for run in (whole, resumed)]
    assert critics[0] == critics[1]
    rows = rows_of(whole)
    assert rows == rows_of(resumed)
    assert rows[0]["bce"] == pytest.approx(np.log(2))
    assert rows[0]["part_reward_model"] == pytest.approx(0.5)  # of an untrained model
    assert rows[-1]["part_reward_model"] != pytest.approx(0.5, abs=0.01)


def critic_of(run: Path) -> dict[str, bytes]:
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    return {name: value.tobytes() for name, value in load_file(found.weights / "critic.safetensors").items()}


def test_other_weights_of_the_reward_model_do_not_resume(recorded, outcomes, tmp_path):
    rm = tmp_path / "rm"
    trained_run.train(rm, recipe=learning(recorded, OUTCOMES))
    run = trained_run.train(tmp_path / "run", recipe=rewarded(rm))
    from sojourn.record.run import RunFolder
    from sojourn.train.weights import check_models

    check_models(built(rewarded(rm)), RunFolder.read(run))
    with pytest.raises(RecordError, match=r"began with the models\.rm model"):
        check_models(built(rewarded(recorded)), RunFolder.read(run))


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (rewarded(Path("x")).replace('model = "rm"', 'model = "rn"'), "reads the model 'rn', but there are critic, rm"),
        (rewarded(Path("x")).replace('weights = "x"', 'name = "tiny"'), r"models\.rm, which has no `weights`"),
        (
            rewarded(Path("x")).replace('model = "rm"', 'model = "critic"').replace('[models.rm]\nweights = "x"', ""),
            "RewardModel needs a critic: add a table",
        ),
        (f"{HEAD}\n{OWN}\n{POLICY}", "RewardModel reads a critic that nothing trains"),
        (
            f"{HEAD}\n{OWN}\n{BESIDE}".replace('size = 3 }', "size = 3, max_lag = 1 }"),
            r"max_lag = 1 with plays that ask the critic, or are scored by it",
        ),
        (
            f"{HEAD}\n{OWN}\n{BESIDE}".replace('{ name = "binary_cross_entropy" }', '{ name = "value" }')
            .replace('streams = [{ name = "success" }]', 'streams = [{ name = "values" }, { name = "next_values" }]')
            + 'estimator = { name = "gae" }\n',
            "Value trains the critic to predict returns, but the reward reads it",
        ),
        (f'{HEAD}\n[models.rm]\nweights = "x"\n{POLICY}', r"models\.rm: nothing asks this model"),
        (
            f"{HEAD}\n[critic]\n{POLICY}".replace('[{ name = "ppo" }]', '[{ name = "bradley_terry" }]')
            + 'streams = [{ name = "pairs" }, { name = "values" }]\nminibatches = 2\n',
            "BradleyTerry compares the trajectories of a step with each other",
        ),
        (f"{HEAD}\n[critic]\n{BESIDE}".replace('streams = [{ name = "success" }]', ""), "needs the stream 'success'"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(recipe: str, sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        built(recipe)


def test_weights_without_a_value_head_are_refused_before_anything_is_opened(recorded):
    with pytest.raises(RecordError, match="these weights have no value head"):
        check_reward_models_open(built(rewarded(recorded)))
