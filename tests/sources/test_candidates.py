"""Actions sampled anew at recorded states: which states, by whom, and training on the best of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from made_world import Says, components, stage_of
from trained_run import RECIPE, train

from sojourn.envs.toy import Toy
from sojourn.errors import ConfigError
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.sources.candidates import Candidates
from sojourn.types import Ending

FREE = ("agent.choices=false", "env.choices=false", "evaluation.tasks=1", "stages.rl.groups.width=3")
OFFLINE = (
    RECIPE[: RECIPE.index("[[stages]]")]
    + """
[[stages]]
name = "offline"
steps = 3
losses = [{ name = "nll" }]
streams = [{ name = "utterance_advantage", warmup = 0, updates = 5 }]
optim = { lr = 0.01 }
[stages.groups]
name = "mixed"
parts = [{ name = "folder", path = "PATH", stage = "rl", width = 2 },
         { name = "candidates", path = "PATH", stage = "rl", width = 3, size = 4 }]
[stages.estimator]
name = "by_origin"
base = { name = "best_of_n", margin = -10.0 }
of = { folder = { name = "constant", value = 0.0 } }
"""
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("candidates") / "run", *FREE)


def source(path: Path, **keys):
    made = components(Toy(), Says("go north"))
    return made, Candidates(path=str(path), stage="rl", **keys).bind(made, "again", 3)


async def test_a_group_is_one_recorded_state_with_several_actions(recorded: Path):
    with EpisodeStore(recorded) as store:
        known = {
            (group.task.id, *t.prompt(n).tolist(), *t.turns[n].sample.tokens.tolist())
            for group in store.groups("rl")
            for t in group.trajectories
            for n in range(len(t.turns))
        }
    made, groups = source(recorded, width=5, size=4)
    taken = await groups.take(0)
    assert len(taken) == 5
    for group in taken:
        assert group.origin == "candidates"
        [prompt] = {tuple(t.prompt(0).tolist()) for t in group.trajectories}
        first, *others = group.trajectories
        assert (group.task.id, *prompt, *first.turns[0].sample.tokens.tolist()) in known
        assert [t.turns[0].message.text for t in others] == ["go north"] * 3
        assert {t.ending for t in group.trajectories} == {Ending.TURNS}
        assert [t.turns[0].info["recorded"] for t in group.trajectories] == [1, 0, 0, 0]
        assert [score.turns.tolist() for score in await made.rewards.score(group)] == [[0.0]] * 4
    assert made.rewards.pop(taken, below=0) == []  # nothing was played


async def test_states_are_drawn_anew_and_alike_in_every_run(recorded: Path):
    def prompts(groups):
        return [group.trajectories[0].prompt(0).tolist() for group in groups]

    (_, one), (_, other) = source(recorded, width=4), source(recorded, width=4)
    first, second = await one.take(0), await one.take(1)
    assert prompts(first) != prompts(second)
    assert prompts(await other.take(1)) == prompts(second)
    assert len({str(prompt) for prompt in prompts(first)}) > 1


async def test_each_action_has_a_seed_of_its_own_and_the_recorded_one_can_be_left_out(recorded: Path):
    made, groups = source(recorded, width=3, size=4, recorded=False)
    taken = await groups.take(0)
    assert all(t.turns[0].message.text == "go north" for group in taken for t in group.trajectories)
    assert len({params.seed for params in made.sampler.asked}) == len(made.sampler.asked) == 12


def test_states_of_an_earlier_stage_have_to_come_before():
    stage = stage_of(components(Toy()), "again")
    with pytest.raises(ConfigError, match="expected a stage that comes before it, which are: none"):
        asyncio.run(Candidates(stage="rl").check(stage))


def test_constrained_actions_are_refused(tmp_path: Path):
    run = train(tmp_path / "run", "evaluation.tasks=1")
    with pytest.raises(ConfigError, match="were chosen from a list, which is not recorded"):
        asyncio.run(Candidates(path=str(run), stage="rl").check(stage_of(components(Toy()), "again")))


def test_the_best_of_n_is_learnt_by_a_critic_of_what_was_recorded(recorded: Path, tmp_path: Path):
    run = train(tmp_path / "offline", recipe=OFFLINE.replace("PATH", str(recorded)).replace("choices = true", ""))
    lines = [line.values for line in metrics.read(run / "metrics.jsonl") if line.stage == "offline"]
    assert len(lines) == 3
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert any(line["loss"] > 0 for line in lines)
    with EpisodeStore(run) as store:
        learnt = [row for row in store.query(stage="offline") if "candidates" in row.id and row.advantage]
    assert len(learnt) == 3 * 3  # the best of each group, which can be looked at
