"""A worker process that ends, is stuck or was started anew loses none of its plays for good."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from ray_actors import start_anywhere
from remote_plays import PARAMS, TOY_WORDS, fragile, kill_all, pids, plain, remote, runner, say, scripted, trees
from remote_worlds import Fragile, Wandering
from walks import played

from sojourn.abilities import PartState
from sojourn.backends.ray.env_family import RemoteFamily
from sojourn.envs.toy import Toy
from sojourn.errors import ConfigError, LostPlayError
from sojourn.rollout.world import open_world


async def test_where_a_worker_has_ended_unnoticed_another_is_asked() -> None:
    async with remote(Fragile()) as family:
        workers = family.shared.workers
        os.kill((await pids(family))[0], signal.SIGKILL)
        assert workers.all[0].up, "nothing has looked yet"
        assert isinstance(workers.ask_now(None, "abilities", (), fragile()), frozenset)


async def test_a_killed_worker_loses_its_running_plays_alone_and_opens_its_world_again() -> None:
    async with remote(Fragile()) as family:
        envs = [family.make(fragile()) for _ in range(4)]
        await asyncio.gather(*(env.start() for env in envs))
        before, lost = await pids(family), envs[0]._place.worker
        os.kill(before[family.shared.workers.all.index(lost)], signal.SIGKILL)
        outcomes = await asyncio.gather(*(env.step("agent", say("go")) for env in envs), return_exceptions=True)
        for env, outcome in zip(envs, outcomes, strict=True):
            assert isinstance(outcome, LostPlayError) == (env._place.worker is lost)
        again = [family.make(fragile()) for _ in range(4)]
        await asyncio.gather(*(env.start() for env in again))  # which asserts that the world is open
        await family.shared.workers._until(lambda: all(worker.up for worker in family.shared.workers.all))
        assert len({*before, *await pids(family)}) == 3
        await asyncio.gather(*(env.close() for env in [*envs, *again]))


async def test_plays_wait_while_all_workers_are_down() -> None:
    async with remote(Fragile(open_s=2.0)) as family:
        await kill_all(family)
        group = await plain(runner(family, ["go", "end"]), fragile(), 4)
        assert [episode.error for episode in group.episodes] == [None] * 4


async def test_a_worker_that_is_stuck_is_started_again() -> None:
    async with remote(Fragile(), 1) as family:
        await family.shared.workers.close()
        family.shared.workers.stuck_s = 1.0
        await family.shared.workers.open()
        one = runner(family, retries=0)
        texts = scripted(["go", "block"], ["go", "go", "end"])
        group = await one.play_group(fragile(), 0, 2, PARAMS, "rl", sampler_for=texts)
        assert str(group.episodes[0].error).startswith("LostPlayError: the worker process that held this play ended")
        group = await one.play_group(fragile(), 0, 1, PARAMS, "rl", sampler_for=scripted(["go", "go", "end"]))
        assert group.episodes[0].error is None


async def test_workers_with_other_code_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sojourn.backends.ray.env_workers.code_digest", lambda: "0123")
    with pytest.raises(ConfigError, match=r"environment worker on .*: the nodes have another version .* expected 0123"):
        async with remote(Toy()):
            pass


async def test_plays_say_why_no_worker_can_open_the_world_again(tmp_path: Path) -> None:
    async with remote(Fragile(once=str(tmp_path)), 1) as family:
        await kill_all(family)
        with pytest.raises(ConfigError, match="no browser is left here"):
            await runner(family, ["go", "end"]).play_episode(fragile(), PARAMS, "x")


@pytest.mark.parametrize("seed", range(2))
async def test_episodes_are_the_same_whenever_workers_are_killed(seed: int) -> None:
    base, rng = Wandering(slow=0.05), random.Random(seed)
    task = base.tasks("train")[0]
    expected = [await play(runner(base), task, 4) for play in (plain, trees)]

    async def kill(family: RemoteFamily) -> None:
        while True:
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            workers = [worker for worker in family.shared.workers.all if worker.up]
            for worker in rng.sample(workers, min(len(workers), 1)):
                killed.append(await worker.actor.__ray_call__.remote(lambda self: os.getpid()))
                os.kill(killed[-1], signal.SIGKILL)

    killed: list[int] = []
    async with remote(base) as family:
        killing = asyncio.create_task(kill(family))
        groups = [await play(runner(family, retries=50), task, 4) for play in (plain, trees)]
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    assert killed
    assert [played(group) for group in groups] == [played(group) for group in expected]


async def test_a_process_in_which_the_world_is_not_open_yet_loses_one_attempt_alone() -> None:
    """As one does that was started in the place of another, before the driver knows of it."""
    family = RemoteFamily(Toy(), 1, start_anywhere(0.5))
    family.shared.workers.stuck_s = 6
    async with open_world(family):
        [worker] = family.shared.workers.all
        await worker.actor.__ray_call__.remote(lambda self: setattr(self, "_family", None))
        [part] = await family.part_loads()
        assert part.state is PartState.DOWN
        with pytest.raises(LostPlayError):
            family.shared.workers.ask_now(None, "abilities", (), Toy().tasks("train")[0])
        group = await runner(family, TOY_WORDS, retries=1).play_group(Toy().tasks("train")[0], 0, 2, PARAMS, "x")
    assert [episode.error for episode in group.episodes] == [None, None]


async def test_an_action_that_ends_its_worker_is_blamed_and_no_other_is() -> None:
    texts = [["go"], ["go", "die"], ["go", "go", "die"], ["go"], ["go", "go", "end"]]
    async with remote(Fragile()) as family:
        one = runner(family, retries=20)
        await one.play_group(fragile(), 0, 5, PARAMS, "before", sampler_for=scripted(*[["end"]] * 5))
        group = await one.play_group(fragile(), 0, 5, PARAMS, "rl", sampler_for=scripted(*texts))
    assert [episode.error for episode in group.episodes] == [None] * 5
    lost = [[turn.info.get("lost", 0.0) for turn in t.turns] for t in group.trajectories]
    assert lost == [[0.0] * 6, [0.0, 1.0], [0.0, 0.0, 1.0], [0.0] * 6, [0.0] * 3]
    assert [t.turns[-1].reward for t in group.trajectories] == [0.5, -1.0, -1.0, 0.5, 1.0]
