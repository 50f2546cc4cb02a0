"""Replayed groups: which are chosen, that they are what was played, and that a run with them resumes; mixed sources."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import spawned
from made_world import Odd, components, stage_of
from trained_run import train

import sojourn
from sojourn.errors import ConfigError, RecordError
from sojourn.record import checkpoint
from sojourn.record.episodes.origins import reused_in
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import RewardCache
from sojourn.sources.failure_restarts import FailureRestarts
from sojourn.sources.mixed import Mixed
from sojourn.sources.recorded import recorded_group
from sojourn.sources.replay import ENTRY, Replay, ReplayBuffer
from sojourn.sources.semi_online import SemiOnline
from sojourn.sources.slots import Slots
from sojourn.types import Group, Score

RUN = """
name = "replays"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[backend]
name = "torch"
threads = 1
kernel = false
[env]
name = "toy"
rooms = 3
side_rooms = 0
doors = 0
choices = true
[agent]
name = "plain"
choices = true
[rollout]
concurrency = 1
[rollout.limits]
turns = 5
[evaluation]
tasks = 2
[record]
checkpoint_every = 1
keep = 100
[[stages]]
name = "rl"
steps = 5
losses = [{ name = "ppo" }]
optim = { lr = 3e-4 }
"""
LIVE = 'stages.rl.groups={name="slots", width=2, size=4}'
MIXED = 'stages.rl.groups={{name="mixed", parts=[{{name="slots", width=2, size=4}}, {{name="replay", width={}{}}}]}}'


def mixed(width: int, options: str = "") -> str:
    return MIXED.format(width, options)


@dataclass(frozen=True)
class Stops:
    """A sink that ends the run at a step."""

    at: ClassVar[int | None] = None

    def bind(self, folder: Path, config: Any) -> Stops:
        return self

    def write(self, step: int, stage: str, values: Any) -> None:
        if step == Stops.at:
            raise RuntimeError("stopped")

    def close(self) -> None: ...


@contextmanager
def stopping_at(step: int):
    Stops.at = step
    try:
        yield
    finally:
        Stops.at = None


def weights(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    found = checkpoint.latest(path / "checkpoints")
    assert found is not None
    return load_file(found.weights / "weights.safetensors")


def metrics(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def buffer(tmp_path: Path, config: Replay, steps: int = 4) -> ReplayBuffer:
    """A buffer whose groups were recorded under steps 0 to `steps` - 1: two in each, of which one has a winner."""
    made = components(Odd())
    made.episodes = EpisodeStore(tmp_path, write=True)
    source, slots = config.bind(made, "rl", steps), Slots(width=2, size=2).bind(made, "rl", steps)

    async def play() -> None:
        for step in range(steps):
            await source.take(step)
            groups = await slots.take(step)
            scores = await made.rewards(groups)
            played = made.rewards.pop(groups, below=2 * (step + 1))
            source.observe([one.group for one in played], [one.scores for one in played])
            made.episodes.append("rl", step, groups, scores)
        await slots.close()

    asyncio.run(play())
    return source


def test_a_step_without_replayed_groups_is_a_step_of_live_groups(tmp_path: Path):
    """The law of mixed sources: one part alone is that source, bit for bit."""
    alone, beside = train(tmp_path / "alone", LIVE, recipe=RUN), train(tmp_path / "beside", mixed(0), recipe=RUN)
    one, other = weights(alone), weights(beside)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    with EpisodeStore(alone) as first, EpisodeStore(beside) as second:
        assert [row.id for row in first.query()] == [row.id for row in second.query()]


def test_replayed_groups_change_what_is_trained_and_nothing_that_is_counted_as_played(tmp_path: Path):
    run = train(tmp_path / "run", mixed(1, ", signal_only=false"), recipe=RUN)
    lines = metrics(run)
    assert [line["replayed"] for line in lines] == [0, 0, 1, 1, 1]
    assert [line["lag_max"] >= 2 for line in lines] == [False, False, True, True, True]
    assert {line["episodes"] for line in lines} == {8}
    assert [(line["groups_of_policy"], line["groups_of_replay"]) for line in lines] == [(2, 0)] * 2 + [(2, 1)] * 3
    with EpisodeStore(run) as store:
        ids = [row.id for row in store.query(stage="rl")]
        reused = [reused_in(store, "rl", step) for step in range(5)]
    assert len(ids) == len(set(ids)) == 40
    assert [[(group.origin, group.age) for group in groups] for groups in reused] == [
        [("replay", line["replay_age"])] if line["replayed"] else [] for line in lines
    ]
    live = train(tmp_path / "live", LIVE, recipe=RUN)
    assert not any(name.startswith("groups_of") for name in metrics(live)[0])
    assert any(not np.array_equal(weights(run)[name], value) for name, value in weights(live).items())


def test_a_run_that_replays_resumes_with_the_same_groups(tmp_path: Path):
    """Stopped in the fourth of five steps: the same weights and replays as without an interruption."""
    options = (mixed(2, ', signal_only=false, priority="signal"'), "record.sinks=[{name='test_replayed_groups:Stops'}]")
    whole = train(tmp_path / "whole", *options, recipe=RUN)
    with pytest.raises(RuntimeError, match="stopped"), stopping_at(3):
        train(tmp_path / "stopped", *options, recipe=RUN)
    sojourn.train(tmp_path / "stopped", resume=True, progress=False)
    one, other = weights(whole), weights(tmp_path / "stopped")
    assert all(np.array_equal(one[name], other[name]) for name in one)
    replays = [
        [(line["replayed"], line.get("replay_age")) for line in metrics(r)] for r in (whole, tmp_path / "stopped")
    ]
    assert replays[0] == replays[1]
    with EpisodeStore(whole) as first, EpisodeStore(tmp_path / "stopped") as second:
        reused = [[reused_in(store, "rl", step) for step in range(5)] for store in (first, second)]
    assert reused[0] == reused[1]
    assert sum(count for count, _ in replays[0][3:]) > 0


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {paths}
import sojourn.train.run as run
from test_replayed_groups import RUN, mixed
from trained_run import train

record = run.StageRun._record
async def dies(self, step, result):
    await record(self, step, result)
    if step == {step}:
        os.kill(os.getpid(), signal.SIGKILL)  # while the step is being written
run.StageRun._record = dies
train(Path({path!r}), *{options}, recipe=RUN)
"""


@pytest.mark.parametrize("step", [2, 4])
def test_a_killed_run_resumes_with_the_same_buffer(tmp_path: Path, step: int):
    """SIGKILL while a step that replayed is written: resumed, it has the buffer and the weights of a run without it."""
    options = [mixed(2, ', signal_only=false, priority="signal", by_world=true')]
    whole, killed = train(tmp_path / "whole", *options, recipe=RUN), tmp_path / "killed"
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    code = KILLED.format(paths=paths, step=step, path=str(killed), options=options)
    spawned.killed(code, tmp_path)
    sojourn.train(killed, resume=True, progress=False)
    one, other = weights(whole), weights(killed)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    buffers = [saved_buffer(run, step) for run in (whole, killed)]
    assert buffers[0].keys() == buffers[1].keys() == set(ENTRY.names or ())
    assert all(np.array_equal(buffers[0][name], buffers[1][name]) for name in buffers[0])
    with EpisodeStore(whole) as first, EpisodeStore(killed) as second:
        assert [(row.id, row.step) for row in first.query()] == [(row.id, row.step) for row in second.query()]


def saved_buffer(run: Path, step: int) -> dict[str, np.ndarray]:
    """The state of the replay buffer in the last checkpoint."""
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    return found.state()["parts"]["groups"]["1"]


async def test_a_replayed_group_is_the_group_that_was_played(tmp_path: Path):
    source = await in_thread(buffer, tmp_path, Replay(width=2, signal_only=False))
    groups = await source.take(4)
    assert len(groups) == 2
    for group in groups:
        assert group.origin == "replay"
        [recorded] = [g for g in source.context.episodes.groups("rl") if g.episodes[0].id == group.episodes[0].id]
        assert [e.id for e in recorded.episodes] == [e.id for e in group.episodes]
        for turn, same in zip(_turns(group), _turns(recorded), strict=True):
            assert np.array_equal(turn.sample.tokens, same.sample.tokens)
            assert np.array_equal(turn.sample.logprobs, same.sample.logprobs)


async def test_of_two_groups_of_a_slot_the_one_that_was_noted_is_replayed(tmp_path: Path):
    """A slot that is drawn again may draw the same task; what is trained is recorded first."""
    source = await in_thread(buffer, tmp_path, Replay(width=2, signal_only=False), 1)
    [first, _] = source.context.episodes.groups("rl")
    again = replace(first, episodes=tuple(replace(e, id=e.id.replace("rl/0/", "rl/0/1/")) for e in first.episodes))
    scores = [Score(np.ones(1, np.float32)) for _ in first.trajectories]
    source.observe([first, again], [scores, scores])
    await in_thread(source.context.episodes.append, "rl", 1, [first, again], [scores, scores])
    for group, entry in zip((first, again), source.entries[-2:], strict=True):
        record = recorded_group(source.context.episodes, "rl", 1, entry)
        assert [e.id for e in record.group.episodes] == [e.id for e in group.episodes]


async def test_replayed_groups_are_not_scored_again(tmp_path: Path):
    class Never:
        async def __call__(self, group: Group):
            raise AssertionError("scored again")

    source = await in_thread(buffer, tmp_path, Replay(width=2, signal_only=False))
    source.context.rewards = RewardCache(Never())
    groups = await source.take(4)
    scores = await source.context.rewards(groups)
    assert [s.total for judged in scores for s in judged] == [s.total for g in groups for s in await Native()(g)]
    assert source.context.rewards.pop(groups, below=99) == []


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        (Replay(width=9, signal_only=False), {(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)}),
        (Replay(width=9), {(0, 1), (1, 3), (2, 5)}),  # the plays of odd tasks differ
        (Replay(width=9, signal_only=False, success_only=True), {(0, 1), (1, 3), (2, 5)}),
        (Replay(width=9, signal_only=False, max_age=2), {(2, 4), (2, 5)}),
        (
            Replay(width=9, signal_only=False, capacity=4),
            {(2, 4), (2, 5)},
        ),  # of the last four, two are of the last step
        (Replay(width=9, signal_only=False, min_groups=9), set()),
        (Replay(width=9, signal_only=False, priority="success"), {(0, 1), (1, 3), (2, 5)}),
        (Replay(width=9, signal_only=False, priority="signal"), {(0, 1), (1, 3), (2, 5)}),
    ],
)
async def test_which_groups_may_be_replayed(tmp_path: Path, config: Replay, allowed: set[tuple[int, int]]):
    source = await in_thread(buffer, tmp_path, config)
    groups = await source.take(4)
    assert {(group.slot // 2, group.slot) for group in groups} == allowed
    assert len(groups) == len(allowed)


async def test_recent_groups_are_likelier(tmp_path: Path):
    source = await in_thread(buffer, tmp_path, Replay(width=1, signal_only=False, priority="recent", half_life=1.0))
    weights_of = source._weights
    await source.take(4)
    assert weights_of().tolist() == [1 / 16, 1 / 16, 1 / 8, 1 / 8, 1 / 4, 1 / 4, 0, 0]


async def test_worlds_are_replayed_alike(tmp_path: Path):
    """Three recorded groups of one world weigh as much together as the one of another that is rarely played."""
    source = await in_thread(buffer, tmp_path, Replay(width=1, signal_only=False, by_world=True))
    source.step = 4
    assert source._weights()[:6].tolist() == pytest.approx([1 / 6] * 6)
    source.entries["world"][2] += 1
    assert source._weights()[:6].tolist() == pytest.approx([1 / 5, 1 / 5, 1, 1 / 5, 1 / 5, 1 / 5])
    assert not source._weights()[6:].any()


async def test_groups_whose_record_is_gone_are_told_of(tmp_path: Path):
    source = await in_thread(buffer, tmp_path, Replay(width=1, signal_only=False))
    source.context.episodes.truncate("rl", 0)
    with pytest.raises(RecordError, match=r"is not in .* any more: replay needs the records of its run"):
        await source.take(4)


async def test_replay_alone_is_refused():
    stage = replace(stage_of(components(Odd()), "rl"), groups=Replay())
    with pytest.raises(ConfigError, match=r"stage 'rl': replay has nothing to give where the policy plays no groups"):
        await Replay().check(stage)
    await Replay().check(replace(stage, groups=Mixed(parts=(Slots(), Replay()))))
    for one in (Replay(), FailureRestarts()):
        with pytest.raises(ConfigError, match="the groups of this stage are of semi_online"):
            await one.check(replace(stage, groups=Mixed(parts=(SemiOnline(), one))))
        with pytest.raises(ConfigError, match=r"two parts of groups are .*, which would choose the same"):
            await one.check(replace(stage, groups=Mixed(parts=(Slots(), one, replace(one, width=3)))))


def test_sources_that_cannot_be_mixed_are_refused():
    with pytest.raises(ValueError, match="two sources whose groups the policy plays"):
        Mixed(parts=(Slots(), Slots()))
    with pytest.raises(ValueError, match="name at least one source"):
        Mixed(parts=())


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ([mixed(1), 'stages.rl.losses=[{name="reinforce"}]'], "Reinforce is valid only .* Replay gives other ones"),
        ([mixed(1), "stages.rl.estimator={name='constant'}"], ""),
        (
            ['stages.rl.groups={name="mixed", parts=[{name="slots"}, {name="experts"}]}'],
            "GRPO compares .* nothing from groups of 1: expected groups of at least 2 from Experts",
        ),
        (['stages.rl.groups={name="mixed", parts=[{name="slots"}, {name="slot"}]}'], "slots"),
    ],
)
def test_a_recipe_that_mixes_what_does_not_fit_is_refused(tmp_path: Path, overrides: list[str], sentence: str):
    from sojourn.config import toml
    from sojourn.train.resolve import resolve

    (tmp_path / "recipe.toml").write_text(RUN)
    if not sentence:
        resolve(toml.read(tmp_path / "recipe.toml", overrides))
        return
    with pytest.raises(ConfigError, match=sentence):
        resolve(toml.read(tmp_path / "recipe.toml", overrides))


async def in_thread(call, *values):
    return await asyncio.to_thread(call, *values)


def _turns(group: Group):
    return [turn for trajectory in group.trajectories for turn in trajectory.turns]
