"""A value model that learns first and is frozen then: the policy learns from it alone, without entering a world."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trained_run
from made_world import Odd
from safetensors.numpy import load_file

from sojourn.config.toml import Tables
from sojourn.errors import ConfigError
from sojourn.record import metrics
from sojourn.record.checkpoint import checkpoints
from sojourn.record.diagnosis import read_evidence
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.summary import Summary
from sojourn.sources.candidates import CandidateGroups
from sojourn.train.resolve import resolve

STREAM = '{ name = "utterance_advantage", features = "start", warmup = 0, updates = 5 }'
FROZEN = STREAM.replace(" }", ", frozen = true }")
HEAD = (
    trained_run.RECIPE.partition("[[stages]]")[0]
    .replace('name = "toy"\nrooms = 2\nchoices = true', 'name = "made_world:Odd"')
    .replace("choices = true", "")
)
RECIPE = f"""{HEAD}
[record]
keep_optimizer = true
[[stages]]
name = "collect"
steps = 1
trains = false
groups = {{ name = "slots", width = 3, size = 2 }}
[[stages]]
name = "value"
steps = 2
trains = false
groups = {{ name = "earlier", stage = "collect", width = 2 }}
streams = [{STREAM}]
[[stages]]
name = "policy"
steps = 3
groups = {{ name = "candidates", stage = "collect", width = 3, size = 3, recorded = false }}
streams = [{FROZEN}]
estimator = {{ name = "process", stream = "utterance_advantage", base = {{ name = "grpo" }} }}
losses = [{{ name = "ppo" }}]
optim = {{ lr = 1e-2 }}
"""


WITH_CRITIC = (  # whose value model is a critic of its own, trained by the loss of critics
    RECIPE.replace("[env]", '[critic]\nmodel = "tiny:layers=1,hidden=64"\noptim = { lr = 1e-2 }\n[env]')
    .replace('steps = 2\ntrains = false\ngroups = { name = "earlier"', 'steps = 2\ngroups = { name = "earlier"')
    .replace(
        f"streams = [{STREAM}]",
        """streams = [{ name = "values" }, { name = "next_values" }]
estimator = { name = "gae", lam = 1.0 }
losses = [{ name = "value" }]""",
    )
    .replace(FROZEN, '{ name = "action_values" }')
    .replace('stream = "utterance_advantage"', 'stream = "action_values"')
)
Ran = tuple[Path, list[int]]  # a run, and how many plays had begun at each step of the stage that plays nothing


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return train(tmp_path_factory.mktemp("value") / "run", RECIPE)


@pytest.fixture(scope="module")
def with_critic(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return train(tmp_path_factory.mktemp("critic") / "run", WITH_CRITIC)


@pytest.fixture
def run(ran: Ran) -> Path:
    return ran[0]


def train(path: Path, recipe: str) -> Ran:
    entered, count, make, take = list[int](), [0], Odd.make, CandidateGroups.take

    def counted(self: Odd, task: Any) -> Any:
        count[0] += 1
        return make(self, task)

    async def noted(self: CandidateGroups, step: int) -> Any:
        entered.append(count[0])
        return await take(self, step)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Odd, "make", counted)
        patched.setattr(CandidateGroups, "take", noted)
        return trained_run.train(path, recipe=recipe), entered


def weights(run: Path, whose: str = "weights") -> list[dict[str, bytes]]:
    """Returns the weights of the policy, or of the critic, at the end of each stage."""
    found = [load_file(c.weights / f"{whose}.safetensors") for c in checkpoints(run / "checkpoints")]
    return [{name: value.tobytes() for name, value in arrays.items()} for arrays in found]


def critics(run: Path, stage: int) -> Mapping[str, Any]:
    """Returns the state of the critics at the end of a stage, by its number."""
    [state] = [state for c in checkpoints(run / "checkpoints") if (state := c.state())["stage"] == stage]
    return state["parts"]["streams.utterance_advantage"]


def test_the_stage_of_values_trains_the_critics_alone(run: Path) -> None:
    collected, valued, improved = weights(run)
    assert collected == valued
    assert improved != valued
    lines = [line.values for line in metrics.read(run / "metrics.jsonl") if line.stage == "value"]
    assert len(lines) == 2
    assert all(line["utterance_advantage_error"] > 0 for line in lines)


def test_frozen_critics_stay_as_they_are(run: Path) -> None:
    learned, kept = critics(run, 1), critics(run, 2)
    assert learned["steps"] == kept["steps"] == 2
    assert learned["critics"]["weights"].keys() == kept["critics"]["weights"].keys() != set()
    for name, value in learned["critics"]["weights"].items():
        assert np.array_equal(value, kept["critics"]["weights"][name])
    lines = [line.values for line in metrics.read(run / "metrics.jsonl") if line.stage == "policy"]
    assert not any("utterance_advantage_error" in line for line in lines)


def test_a_critic_of_its_own_is_trained_alone_and_then_the_policy_alone(with_critic: Ran) -> None:
    collected, valued, improved = weights(with_critic[0])
    assert collected == valued
    assert improved != valued
    first, learned, kept = weights(with_critic[0], "critic")
    assert first != learned
    assert learned == kept


@pytest.mark.parametrize("kind", ["ran", "with_critic"])
def test_no_world_is_entered_while_the_policy_learns_from_its_values(kind: str, request: pytest.FixtureRequest) -> None:
    _, entered = request.getfixturevalue(kind)
    assert len(entered) == 3
    assert len(set(entered)) == 1
    assert entered[0] >= 6


@pytest.mark.parametrize("kind", ["ran", "with_critic"])
def test_an_advantage_is_what_the_values_of_an_action_are_above_those_of_its_state(
    kind: str, request: pytest.FixtureRequest
) -> None:
    run, _ = request.getfixturevalue(kind)
    with EpisodeStore(run) as store:
        groups = list(store.groups("policy"))
        rows = {row.id: row.advantage for row in store.query(stage="policy")}
    assert len(groups) == 9
    advantages = [[rows[episode.id] for episode in group.episodes] for group in groups]
    assert all(sum(some) == pytest.approx(0, abs=1e-4) for some in advantages)
    assert any(max(some) > 0.5 for some in advantages)


def refusal(old: str, new: str) -> str:
    assert old in RECIPE
    with pytest.raises(ConfigError) as error:
        resolve(Tables(tomllib.loads(RECIPE.replace(old, new))))
    return str(error.value)


def test_a_frozen_stream_needs_one_that_learned() -> None:
    assert "UtteranceAdvantage is frozen, but no equal stream" in refusal("updates = 5 }", "updates = 6 }")
    assert "UtteranceAdvantage is frozen, but no equal stream" in refusal(f"streams = [{STREAM}]\n", "")


def test_conservatism_needs_actions_that_nobody_took() -> None:
    assert "UtteranceAdvantage names the origin 'candidates'" in refusal(
        f"streams = [{STREAM}]", f"streams = [{STREAM.replace(' }', ', conservatism = 1.0 }')}]"
    )


def test_a_stage_that_does_not_train_has_no_streams_but_those_that_learn() -> None:
    assert "nothing uses the stream 'entropy'" in refusal(STREAM, f'{STREAM}, {{ name = "entropy" }}')
    more = f"streams = [{STREAM}]\n[[stages]]\nname = 'idle'\nsteps = 1\ntrains = false\nstreams = [{FROZEN}]\n"
    assert "stage 'idle': nothing uses the stream" in refusal(f"streams = [{STREAM}]\n", more)


LEARNS = """
name = "signals"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[critic]
model = "tiny:layers=1,hidden=64"
optim = { lr = 2e-3 }
[backend]
name = "torch"
threads = 1
[env]
name = "signals_world:Signals"
[sampling]
max_tokens = 4
[rollout]
concurrency = 64
[rollout.limits]
turns = 2
[evaluation]
tasks = 96
[record]
drift_groups = 0
[[stages]]
name = "warmup"
steps = 60
groups = { name = "experts", width = 24, distinct_tasks = 1440, success_only = false }
estimator = { name = "constant" }
losses = [{ name = "nll" }]
optim = { lr = 5e-3 }
[[stages]]
name = "collect"
steps = 4
trains = false
groups = { name = "slots", width = 16, size = 4 }
[[stages]]
name = "value"
steps = 40
groups = { name = "earlier", stage = "collect", width = 24 }
estimator = { name = "gae", discount = 0.0, lam = 1.0 }
streams = [{ name = "values" }, { name = "next_values" }]
losses = [{ name = "value" }]
[[stages]]
name = "policy"
steps = 15
groups = { name = "candidates", stage = "collect", width = 16, size = 8, recorded = false }
streams = [{ name = "action_values" }]
estimator = { name = "process", stream = "action_values", base = { name = "grpo", scale_by_std = false } }
losses = [{ name = "ppo" }]
optim = { lr = 1e-3 }
"""


def test_the_policy_learns_from_what_the_value_model_says_of_actions_that_nobody_played(tmp_path: Path) -> None:
    path = trained_run.train(tmp_path / "run", recipe=LEARNS)
    found = {e["name"]: Summary.from_json(e["summary"]).overall.success for e in RunFolder.read(path).evaluations()}
    assert found["value"].mean < 0.6
    assert found["policy"].low > found["value"].high
    assert found["policy"].mean > 0.8
    with EpisodeStore(path) as store:
        evidence = read_evidence(store, metrics.read(path / "metrics.jsonl"))
    assert evidence is not None
    assert [evaluation.name for evaluation in evidence.evaluations] == ["warmup", "collect"]  # no later ones
