"""Recorded runs, as a tiny real model made them: what a run folder holds, and training from one."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import chatml
from made_world import Odd, components, sampled, seeds, stage_of

from sojourn.checks import synthetic
from sojourn.checks.synthetic import Shape
from sojourn.config import toml
from sojourn.credit.constant import Constant
from sojourn.display import Display
from sojourn.errors import ConfigError
from sojourn.losses.nll import NLL
from sojourn.record import metrics
from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.sources.folder import Folder, RecordedGroups
from sojourn.sources.recorded import number_in_group, played_groups, read_played
from sojourn.train.group_checks import check_groups
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from sojourn.types import Group, Message, Score

HEAD = """
name = "recorded"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env.name = "made_world:Odd"
sampling = { max_tokens = 2 }
evaluation = { tasks = 1 }
"""
RECORDED = f"""{HEAD}
[[stages]]
name = "warmup"
steps = 2
groups = {{ name = "experts", width = 4, distinct_tasks = 6 }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
[[stages]]
name = "rl"
steps = 2
groups = {{ name = "slots", width = 3, size = 2, zero_signal = "drop" }}
losses = [{{ name = "ppo" }}]
"""
AGAIN = f"""{HEAD}
[[stages]]
name = "again"
steps = 3
groups = {{ name = "folder", path = "%s", stage = "rl", width = 4, success_only = true }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
optim = {{ lr = 1e-3 }}
"""
BOTH = f"""{HEAD}
[[stages]]
name = "rl"
steps = 2
losses = [{{ name = "ppo" }}]
optim = {{ lr = 1e-2 }}
[stages.groups]
name = "mixed"
parts = [
    {{ name = "slots", width = 3, size = 2 }},
    {{ name = "folder", path = "%s", stage = "rl", width = 3 }},
]
"""
NOTHING = f"""{HEAD}
env.paying = false
[[stages]]
name = "rl"
steps = 2
groups = {{ name = "slots", width = 2, size = 2, zero_signal = "drop" }}
losses = [{{ name = "ppo" }}]
"""


STAGE = f"""{HEAD}
[[stages]]
name = "again"
groups = %s
"""
EXPERTS = '{ name = "experts" }'


def check(folder: Path, text: str) -> None:
    """Checks a recipe as a run does before it begins."""
    (folder / "recipe.toml").write_text(text)
    asyncio.run(check_groups(resolve(toml.read(folder / "recipe.toml")).recipe))


def run(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    resolved = resolve(toml.read(path))
    with RunFolder.create(folder / "run", toml.dump(resolved.table)) as made, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, made, display))
    return folder / "run"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("recorded"), RECORDED)


def test_stages_draw_disjoint_tasks(recorded: Path):
    with EpisodeStore(recorded) as store:
        played = {stage: {entry.seed for entry in store.query(stage=stage)} for stage in ("warmup", "rl")}
    assert played == {"warmup": {1, 3, 5}, "rl": {6, 7, 8, 9, 10, 11}}  # the experts fail on 0, 2 and 4


def test_a_run_carries_the_words_of_its_tokens(recorded: Path):
    words = vocabulary.read(recorded)
    assert words is not None
    with EpisodeStore(recorded) as store:
        turns = [turn for group in store.groups("warmup") for turn in group.trajectories[0].turns]
    assert all(
        turn.message is not None and words.text(turn.sample.tokens) == f"{turn.message.text}<|im_end|>"
        for turn in turns
    )


def test_dropped_groups_are_recorded_without_credit(recorded: Path):
    with EpisodeStore(recorded) as store:
        records = {record.group.task.seed: record for record in store.records("rl")}
    assert {seed: record.step for seed, record in records.items()} == {6: 0, 7: 0, 8: 0, 9: 1, 10: 1, 11: 1}
    assert {seed for seed, record in records.items() if record.credits} == {7, 9, 11}
    assert all(len(record.scores) == 2 for record in records.values())
    lines = [line.values for line in metrics.read(recorded / "metrics.jsonl") if line.stage == "rl"]
    assert [line["episodes"] for line in lines] == [6, 6]
    assert [line["zero_signal"] for line in lines] == pytest.approx([2 / 3, 1 / 3])


async def test_a_folder_gives_the_recorded_groups_in_order_over_and_over(recorded: Path):
    with EpisodeStore(recorded) as store:
        groups = list(store.groups("rl"))
    source = Folder(path=str(recorded), stage="rl", width=4).bind(components(Odd()), "again", 3)
    taken = [await source.take(step) for step in range(3)]
    order = [g.task.seed for g in groups]
    assert [seeds(step) for step in taken] == [order[:4], order[4:] + order[:2], order[2:]]
    for found, original in zip(taken[0], groups[:4], strict=True):
        for one, other in zip(found.trajectories, original.trajectories, strict=True):
            assert sampled(one) == sampled(other)
            np.testing.assert_array_equal(one.prompt(0), other.prompt(0))
    await source.close()


async def test_experts_of_a_folder_can_be_imitated(recorded: Path):
    source = Folder(path=str(recorded), stage="warmup", width=100).bind(components(Odd()), "again", 1)
    assert seeds(await source.take(0)) == seeds(await source.take(7)) == [1, 3, 5]
    assert Folder(path=str(recorded), stage="warmup").tasks(9) == 0


async def test_groups_without_any_success_are_left_out_when_asked(recorded: Path):
    source = Folder(path=str(recorded), stage="rl", width=9, success_only=True).bind(components(Odd()), "again", 1)
    groups = await source.take(0)
    assert sorted(seeds(groups)) == [7, 9, 11]
    assert all(sorted(t.success for t in group.trajectories) == [False, True] for group in groups)


async def test_a_run_whose_index_is_lost_is_read(recorded: Path, tmp_path: Path):
    shutil.copytree(recorded, run := tmp_path / "copy")
    for path in run.glob("episodes.sqlite*"):
        path.unlink()
    folder = Folder(path=str(run), stage="rl")
    await folder.check(stage_of(components(Odd()), "again"))
    assert len(folder.read()) == len(Folder(path=str(recorded), stage="rl").read())


async def test_what_is_not_there_is_said(recorded: Path, tmp_path: Path):
    folder = Folder(path=str(tmp_path / "nowhere"), stage="rl")
    with pytest.raises(ConfigError, match=r"groups\.path = '.*nowhere': no recorded episodes there; give a run folder"):
        await folder.check(stage_of(components(Odd()), "again"))
    unknown = dataclasses.replace(folder, path=str(recorded), stage="warmpu")
    with pytest.raises(ConfigError, match=r"groups\.stage = 'warmpu': .* it holds .*evaluation-before.*, rl, warmup$"):
        unknown.bind(components(Odd()), "again", 1)
    with pytest.raises(
        ConfigError, match=r"groups\.stage = 'evaluation-before': .* has no groups of it with a successful"
    ):
        dataclasses.replace(unknown, stage="evaluation-before", success_only=True).bind(components(Odd()), "again", 1)


def test_a_run_trains_from_a_folder_and_records_each_group_once(recorded: Path, tmp_path: Path):
    path = run(tmp_path, AGAIN % recorded)
    with EpisodeStore(path) as store:
        assert sorted(seeds(store.groups("again"))) == [7, 9, 11]
        assert {e.step for e in store.query(stage="again")} == {0}
    lines = [line.values for line in metrics.read(path / "metrics.jsonl") if line.stage == "again"]
    assert len(lines) == 3
    assert all(line["groups"] == 3 and np.isfinite(line["loss"]) for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_a_step_whose_groups_were_all_dropped_changes_nothing_and_the_run_goes_on(tmp_path: Path):
    path = run(tmp_path, NOTHING)
    with EpisodeStore(path) as store:
        assert len(list(store.groups("rl"))) == 4
    assert [line.values["zero_signal"] for line in metrics.read(path / "metrics.jsonl")] == [1, 1]


UNSAMPLED = "needs the sampler's log-probabilities"


@pytest.mark.parametrize("stage", ["experts", "warmup"])
@pytest.mark.parametrize(
    ("learning", "name"),
    [
        ('losses = [{ name = "ppo" }]', "PPO"),
        ('losses = [{ name = "nll" }, { name = "gspo" }]', "GSPO"),
        (
            'losses = [{ name = "importance", base = { name = "nll" } }]\nstreams = [{ name = "policy_logprobs" }]',
            "Importance",
        ),
        (
            'losses = [{ name = "nll" }]\nstreams = [{ name = "ref_logprobs" }]\n'
            'estimator = { name = "reinforce_pp", kl_coef = 0.1 }',
            "ReinforcePP",
        ),
    ],
)
def test_demonstrations_are_refused_where_log_probabilities_are_needed(
    recorded: Path, tmp_path: Path, stage: str, learning: str, name: str
):
    """Nothing sampled them, so a ratio to the sampler's probability would be the probability itself."""
    groups = EXPERTS if stage == "experts" else f"{{ name = 'folder', path = '{recorded}', stage = '{stage}' }}"
    credit = "" if "estimator" in learning else '\nestimator = { name = "constant" }'
    with pytest.raises(ConfigError, match=f"stage 'again': {name} {UNSAMPLED}, which "):
        check(tmp_path, STAGE % groups + learning + credit)


def test_demonstrations_are_imitated_and_recorded_samples_trained_again_with_a_ratio(recorded: Path, tmp_path: Path):
    nll = 'estimator = { name = "constant" }\nlosses = [{ name = "nll" }, { name = "entropy" }]\n'
    ppo = 'losses = [{ name = "ppo" }]\n'
    folder = f"{{ name = 'folder', path = '{recorded}', stage = '%s' }}"
    for groups, learning in ((EXPERTS, nll), (folder % "warmup", nll), (folder % "rl", nll), (folder % "rl", ppo)):
        check(tmp_path, STAGE % groups + learning)


@pytest.mark.parametrize("name", ["folder", "imported"])
def test_recorded_samples_are_refused_where_the_loss_is_right_for_the_present_weights_alone(
    recorded: Path, tmp_path: Path, name: str
):
    groups = f"{{ name = 'folder', path = '{recorded}', stage = 'rl' }}"
    groups = groups if name == "folder" else "{ name = 'imported', files = ['x.jsonl'] }"
    said = rf"'again': Reinforce is valid only for samples of the current weights, but {name.capitalize()} gives "
    with pytest.raises(ConfigError, match=said):
        check(tmp_path, STAGE % groups + 'losses = [{ name = "reinforce" }]\n')


def test_a_folder_without_groups_to_use_is_refused_before_the_run_begins(recorded: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"groups\.stage = 'warmpu': .* it holds .*, rl, warmup$"):
        check(tmp_path, (AGAIN % recorded).replace('stage = "rl"', 'stage = "warmpu"'))


@dataclasses.dataclass(frozen=True)
class Half:
    """Keeps the first episode of each group."""

    def __call__(self, group: Group, scores: Sequence[Sequence[Score]]) -> list[int]:
        return [0]


def test_recorded_episodes_that_a_filter_leaves_out_are_recorded_once(recorded: Path, tmp_path: Path):
    path = run(tmp_path, AGAIN % recorded + f'filters = [{{ name = "{__name__}:Half" }}]')
    with EpisodeStore(path) as store:
        assert len([row.id for row in store.query(stage="again")]) == 6
        records = list(store.records("again"))
    assert sorted(record.group.task.seed for record in records if record.credits) == [7, 9, 11]


async def test_groups_that_a_filter_parted_are_whole_again(recorded: Path, tmp_path: Path):
    """What it left out is recorded in a place of its own."""
    text = RECORDED.replace(
        'steps = 2\ngroups = { name = "slots"',
        f'filters = [{{ name = "{__name__}:Half" }}]\nsteps = 2\ngroups = {{ name = "slots"',
    )
    path = await asyncio.to_thread(run, tmp_path, text)
    for width, groups in (
        (2, Folder(path=str(path), stage="rl").read()),
        (2, Folder(path=str(recorded), stage="rl").read()),
    ):
        assert {len(group.episodes) for group in groups} == {width}
        assert [group.owners for group in groups] == [(0, 1)] * len(groups)
    with EpisodeStore(path) as store:
        assert {len(record.group.episodes) for record in store.records("rl")} == {1, 2}  # some were dropped whole
        places = [(one.step, one.places) for one in played_groups(store.query(stage="rl"))]
        assert max(len(places) for _, places in places) == 2
        read = read_played(store, played_groups(store.query(stage="rl")))
    for one in read:
        assert one is not None
        assert [number_in_group(episode.id) for episode in one.group.episodes] == [0, 1]


def test_groups_of_another_run_of_the_same_seed_keep_their_own_scores(tmp_path: Path):
    """Both runs call their groups alike; nothing is paid in the other one."""
    (tmp_path / "other").mkdir()
    other = run(tmp_path / "other", NOTHING.replace("steps = 2", "steps = 3").replace(', zero_signal = "drop"', ""))
    path = run(tmp_path, BOTH % other)
    with EpisodeStore(path) as store:
        records = list(store.records("rl"))
        ids = [episode.id for record in records for episode in record.group.episodes]
    assert len(ids) == len(set(ids))
    assert {record.group.origin for record in records} == {"policy", "folder"}
    for record in records:
        assert [score.total for score in record.scores] == [t.reward for t in record.group.trajectories]


class OtherWords:
    """The format of a model whose vocabulary is shifted by one token."""

    def parse(self, tokens: Sequence[int]) -> Message:
        return chatml().parse([token + 1 for token in tokens])


async def test_a_run_of_another_model_is_refused_before_anything_is_trained(recorded: Path):
    stage = dataclasses.replace(stage_of(components(Odd()), "again"), losses=(NLL(),), estimator=Constant())
    source = Folder(path=str(recorded), stage="rl")
    await source.check(dataclasses.replace(stage, renderer=chatml()))
    other: Any = OtherWords()
    with pytest.raises(
        ConfigError, match=r"stage 'again': groups.path = .* so another model sampled them: use the model"
    ):
        await source.check(dataclasses.replace(stage, renderer=other))


async def test_long_ones_are_drawn_more_often():
    """Of groups of 1, 2 and 7 turns, a draw of one takes each a tenth, a fifth and seven tenths of the time."""
    rng = np.random.default_rng(0)
    groups = [synthetic.group(n, [synthetic.trajectory(rng, Shape(turns=n))]) for n in (1, 2, 7)]
    source = RecordedGroups(1, groups, 1.0, seed=3)
    drawn = Counter([group.slot for step in range(1000) for group in await source.take(step)])
    assert [drawn[n] / 1000 for n in (1, 2, 7)] == pytest.approx([0.1, 0.2, 0.7], abs=0.04)
    assert [g.slot for g in await source.take(5)] == [g.slot for g in await source.take(5)]
    whole = await RecordedGroups(3, groups, 1.0).take(0)
    assert sorted(group.slot for group in whole) == [1, 2, 7]
    cycled = RecordedGroups(1, groups)
    assert [group.slot for step in range(4) for group in await cycled.take(step)] == [1, 2, 7, 1]


async def test_the_source_draws_by_length_with_the_seed_of_its_run(recorded: Path):
    parts = components(Odd())
    parts.runner.seed = 7
    source = Folder(path=str(recorded), stage="rl", width=2, long_horizon=0.5).bind(parts, "again", 3)
    assert (source.width, source.long_horizon, source.seed) == (2, 0.5, 7)
