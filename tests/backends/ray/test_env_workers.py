"""Plays in worker processes are the plays that they are in one process, and a worker that ends loses none of them."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ray_actors import start_anywhere
from remote_plays import PARAMS, TOY_WORDS, fragile, plain, remote, runner, say, trees
from remote_worlds import Fragile, Unsendable, Wandering
from search_worlds import Game
from trained_run import train, weight_bytes
from walks import Walk, played

from sojourn.abilities import (
    HasBlobs,
    HasCapacity,
    HasNativeActions,
    HasSeats,
    HasWorlds,
    MakesTasks,
    PlaysElsewhere,
    Proposes,
    Relabels,
    play_abilities,
)
from sojourn.backends.ray import env_workers
from sojourn.backends.ray.cluster import code_digest
from sojourn.backends.ray.env_family import RemoteFamily
from sojourn.backends.ray.env_worker import EnvWorker, pickled_family
from sojourn.backends.ray.env_workers import Worker, Workers
from sojourn.backends.torch.backend import Torch
from sojourn.checks.env import check_env
from sojourn.envs.mixed import Mixed
from sojourn.envs.proposing import Proposing
from sojourn.envs.toy import Toy
from sojourn.errors import ActionError, BudgetError, ConfigError, InfrastructureError, WorldError
from sojourn.protocols import EnvFamily
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rollout.limits import Limits, call_env
from sojourn.rollout.runner import Runner
from sojourn.rollout.world import open_world
from sojourn.searchers.best_of_n import BestOfN
from sojourn.sources.experts import expert_sampler
from sojourn.timeline import Timeline
from sojourn.types import Group, Task
from sojourn.verdict import Outcome

MIXED = Mixed(worlds=(Toy(rooms=2, side_rooms=0, doors=0, decoys=0, objects=0), Toy(side_rooms=1)), levels=True)


async def expert(one: Runner, task: Task, size: int) -> Group:
    sampler = expert_sampler(one.renderer, one.agent)
    return await one.play_group(task, 5, size, PARAMS, "rl/5/0", sampler_for=sampler, blame=False)


CASES = {
    "toy": (Toy(), plain, {"texts": TOY_WORDS}),
    "the expert": (Toy(), expert, {}),
    "mixed worlds": (MIXED, plain, {"texts": TOY_WORDS}),
    "several seats": (Game(), plain, {"texts": "012345678"}),
    "images": (Fragile(), plain, {"texts": ("go", "back", "end")}),
    "refusals and failures": (Wandering(), plain, {"texts": ("left", "right", "up")}),
    "forks": (Wandering(), trees, {}),
    "forks of the toy": (Toy(), trees, {"texts": TOY_WORDS}),
    "forks by replay": (Wandering(Walk), trees, {}),
    "search": (Wandering(), plain, {"agent": BestOfN(copies=3)}),
    "search by replay": (Wandering(Walk), plain, {"agent": BestOfN(copies=3)}),
}


@pytest.mark.parametrize("case", CASES)
async def test_groups_are_those_of_one_process_bit_for_bit(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, play, options = CASES[case]
    monkeypatch.setattr(Workers, "ask_now", None)  # nothing waits for a worker where it stands
    async with remote(base) as family:
        for task in [fragile("blobs")] if isinstance(base, Fragile) else family.tasks("train")[:2]:
            blobs: list[dict[str, bytes]] = [{}, {}]
            runners = [runner(base, **options), runner(family, **options)]
            for one, seen in zip(runners, blobs, strict=True):
                one.on_blobs = seen.update
            async with open_world(base):
                here, there = [await play(one, task, 3) for one in runners]
            assert played(there) == played(here)
            assert blobs[0] == blobs[1]
            assert bool(blobs[0]) == (case == "images")
            assert all(episode.error is None for episode in there.episodes)


async def test_a_play_can_do_what_it_can_do_in_one_process_before_it_starts_and_after() -> None:
    base = Fragile(pids=[0])
    async with remote(Fragile()) as family:
        for task in base.tasks("train"):
            here, there = base.make(task), family.make(task)
            for when in ("before", "after"):
                asked = [
                    (play_abilities(p), isinstance(p, HasBlobs), isinstance(p, HasNativeActions)) for p in (here, there)
                ]
                assert asked[0] == asked[1], (task, when)
                await asyncio.gather(here.start(), there.start()) if when == "before" else None
            await there.close()


async def test_tasks_are_proposed_in_other_processes() -> None:
    base = Proposing(world=Toy())
    task = base.proposal(base.tasks("train")[0], ["rooms 3"], 1)
    async with remote(base) as family:
        assert isinstance(family, Proposes)
        assert family.proposal(base.tasks("train")[0], ["rooms 3"], 1) == task
        good = base.written(base.tasks("train")[0])
        group = await runner(family, [good]).play_group(task, 0, 2, replace(PARAMS, max_tokens=128), "rl/0/0")
        made = [family.proposed(episode) for episode in group.episodes]
        assert made[0] is not None
        assert made[0] == made[1] == base.proposed(group.episodes[0])
        solved = await runner(family, TOY_WORDS).play_group(made[0], 1, 2, PARAMS, "rl/1/0")
        assert all(episode.error is None for episode in solved.episodes)


async def test_families_offer_what_their_base_does() -> None:
    async with remote(MIXED) as family:
        assert isinstance(family, HasWorlds)
        assert isinstance(family, PlaysElsewhere)
        assert not isinstance(family, HasSeats | HasCapacity)
        task = family.tasks("train")[1]
        assert [world.base for world in family.worlds] == [*MIXED.worlds]
        assert family.world_of(task) is family.worlds[1]
        assert isinstance(family, MakesTasks)
        assert family.bounds(task) == MIXED.bounds(task)
        assert isinstance(family.worlds[0], Relabels)
        for world in family.worlds:  # whose own tasks have no tag of a level
            play = world.make(world.tasks("train")[0])
            assert await play.start() == await world.base.make(world.tasks("train")[0]).start()
            await play.close()
    assert RemoteFamily(Game(), 3, start_anywhere(0)).seats == ("X", "O")
    limited = RemoteFamily(Fragile(room=2), 3, start_anywhere(0))
    assert isinstance(limited, HasCapacity)
    assert limited.capacity == 6


ERRORS = {
    "refused": (ActionError, "not here"),
    "oddly refused": (ActionError, "1 and 2"),
    "spent": (BudgetError, "no room"),
    "misconfigured": (ConfigError, "no such page"),
    "wrong": (WorldError, "no number"),
    "broken": (ZeroDivisionError, "by nothing"),
    "odd": (InfrastructureError, "OddError: 1 and 2"),
    "cancelled": (asyncio.CancelledError, ""),
    "exit": (SystemExit, "3"),
    "unsendable": (WorldError, "cannot be sent to another process"),
}


async def test_errors_come_as_they_were_raised_and_harm_no_other_play() -> None:
    async with remote(Fragile(), 1) as family:
        other = family.make(fragile())
        await other.start()
        for text, (kind, words) in ERRORS.items():
            env = family.make(fragile("state_key"))
            await env.start()
            await env.step("agent", say("go"))
            with pytest.raises(BaseException) as raised:
                await env.step("agent", say(text))
            assert (type(raised.value), words in str(raised.value)) == (kind, True), text
            assert env.state_key() == "go"
            if kind not in (ActionError, BudgetError, asyncio.CancelledError) and text != "unsendable":
                assert "remote_worlds.py" in "".join(raised.value.__notes__)
            await env.close()
        await other.step("agent", say("go"))
        await other.close()


async def test_a_cancelled_call_is_cancelled_there_and_its_play_closed() -> None:
    async with remote(Fragile(room=2), 1) as family:
        for _ in range(4):  # more than there are places
            env = family.make(fragile("fork"))
            await env.start()
            waits = asyncio.create_task(env.step("agent", say("wait")))
            await asyncio.sleep(0.1)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            await asyncio.wait_for(env.close(), 3)
            with pytest.raises(InfrastructureError, match="closed"):
                await env.step("agent", say("go"))
        env = family.make(fragile("fork"))
        await env.start()
        forks = [asyncio.create_task(env.fork()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for fork in forks:
            fork.cancel()
        await asyncio.gather(*forks, return_exceptions=True)
        await env.close()


async def test_a_play_that_is_closed_before_it_came_never_begins() -> None:
    """Ray may give an actor two calls in another order than they were made."""
    worker = EnvWorker(pickled_family(Fragile()), [])
    await worker.ready(code_digest())
    await worker.start(0, (), fragile("fork"))
    for number, early in ((1, worker.fork(0, 1)), (2, worker.start(2, (), fragile()))):
        await worker.close(number)
        with pytest.raises(InfrastructureError, match="closed before it began"):
            pickle.loads(await early).get()
    await worker.fork(0, 3)
    assert pickle.loads(await worker.end()).get() == 2  # the plays 0 and 3


async def test_a_run_that_is_cancelled_leaves_no_play_open() -> None:
    async with remote(Fragile()) as family:
        one = runner(family, ["go", "wait"])
        playing = asyncio.create_task(plain(one, fragile(), 8))
        await asyncio.sleep(1.0)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def test_plays_go_where_the_fewest_are_and_forks_stay() -> None:
    async with remote(Fragile(room=2), 2) as family:
        first, second = family.shared.workers.all
        envs = [family.make(fragile("fork")) for _ in range(5)]
        for env in envs[:2]:
            await env.start()
        assert [worker.placed for worker in (first, second)] == [1, 1]
        copy = await envs[0].fork()
        assert copy._place.worker is envs[0]._place.worker
        await envs[2].start()
        assert envs[2]._place.worker is envs[1]._place.worker  # the other has no room
        waiting = asyncio.create_task(envs[3].start())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await copy.close()
        await waiting
        assert envs[3]._place.worker is envs[0]._place.worker
        await asyncio.gather(*(env.close() for env in envs))
        assert [(worker.placed, worker.open.total()) for worker in (first, second)] == [(0, 0)] * 2


async def test_what_a_play_waits_for_a_free_worker_is_no_stall_of_its_world() -> None:
    async with remote(Fragile(), 1) as family:
        first, second = (family.make_alone(fragile("fork")) for _ in range(2))
        await first.start()
        waiting = asyncio.create_task(call_env(second.start, Limits(stall_s=2.0), Timeline()))
        await asyncio.sleep(2.5)
        await first.close()
        await waiting
        await second.close()


async def test_workers_that_do_not_come_up_are_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_workers, "OPEN_TIMEOUT_S", 0.2)
    workers = Workers(lambda: None, 1, all=[Worker(None)])
    with pytest.raises(InfrastructureError, match="none of 1 environment workers was up for"):
        await workers.place((), 1.0)


async def test_a_world_that_cannot_be_opened_or_sent_says_so() -> None:
    with pytest.raises(ConfigError, match="Unsendable cannot be sent to worker processes"):
        async with remote(Unsendable()):
            pass
    with pytest.raises(ConfigError, match="Unsendable cannot be sent"):
        async with remote(Mixed(worlds=(Toy(), Unsendable()))):
            pass


async def test_the_toy_in_workers_keeps_the_promises_of_an_environment() -> None:
    report = await check_env(RemoteFamily(Toy(rooms=2, side_rooms=0), 2, start_anywhere(0.5)), episodes=2)
    assert report.failed == ()
    asked = ("it is deterministic", "forks are equal and independent", "it can be cancelled", "the family closes")
    assert [report[promise].outcome for promise in asked] == [Outcome.PASSED] * 4


PLACED: list[EnvFamily] = []


@dataclass(frozen=True, kw_only=True)
class Placing(Torch):
    """The torch backend, whose worlds are in workers."""

    def place(self, family: EnvFamily) -> EnvFamily:
        PLACED.append(family)
        return RemoteFamily(family, 2, start_anywhere(0.5))


def test_a_run_whose_plays_are_elsewhere_is_the_run(tmp_path: Path) -> None:
    """With experts, an evaluation, and checks of its first turns, which the driver could not play: its world is not
    open."""
    world = 'env.name = "remote_worlds:OpenedToy"'
    here = train(tmp_path / "here", world)
    there = train(tmp_path / "there", world, 'backend.name = "test_env_workers:Placing"')
    assert [family.is_open for family in PLACED] == [[]]
    assert weight_bytes(there) == weight_bytes(here)
    assert episodes(there) == episodes(here)


def episodes(run: Path) -> Any:
    with EpisodeStore(run) as store:
        found = [store.load(row.id) for row in store.query()]
    return [
        (one.id, [(t.sample.tokens.tolist(), t.sample.logprobs.tolist(), t.observed, t.reward, t.state) for t in turns])
        for one in found
        for turns in [one.trajectories[0].turns]
    ]
