"""Plays in worker processes are the plays that they are in one process, and a worker that ends loses none of them."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import chatml as renderer
from ray_actors import start_anywhere
from remote_worlds import Fragile, Unsendable, Wandering
from search_worlds import Game
from trained_run import train, weight_bytes
from walks import Dice, Walk, played

from sojourn.abilities import (
    HasBlobs,
    HasCapacity,
    HasNativeActions,
    HasSeats,
    HasWorlds,
    MakesTasks,
    PlaysElsewhere,
    Relabels,
    play_abilities,
)
from sojourn.agents.plain import Plain
from sojourn.backends.ray.cluster import code_digest
from sojourn.backends.ray.env_family import RemoteFamily
from sojourn.backends.ray.env_worker import EnvWorker, pickled_family
from sojourn.backends.ray.env_workers import Workers
from sojourn.backends.torch.backend import Torch
from sojourn.branching.trees import play_trees
from sojourn.branching.uniform import Uniform
from sojourn.checks.env import check_env
from sojourn.envs.mixed import Mixed
from sojourn.envs.toy import Toy
from sojourn.errors import ActionError, BudgetError, ConfigError, InfrastructureError, LostPlayError, WorldError
from sojourn.protocols import EnvFamily
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.rollout.world import open_world
from sojourn.searchers.best_of_n import BestOfN
from sojourn.sources.experts import expert_sampler
from sojourn.types import Group, Message, Prompt, Role, Sample, SamplingParams, Stop, Task, Versions
from sojourn.verdict import Outcome

PARAMS = SamplingParams(32)
TOY_WORDS = ("go north", "go south", "go east", "go west", "take red key", "open red door", "take treasure")


@asynccontextmanager
async def remote(base: Any, count: int = 2) -> AsyncIterator[RemoteFamily]:
    family = RemoteFamily(base, count, start_anywhere(0.5))
    async with open_world(family):
        yield family
    assert family.left == 0  # plays that were open at the end


def runner(family: Any, texts: Sequence[str] = ("left", "right"), agent: Any = None, **rollout: Any) -> Runner:
    config = Rollout(limits=Limits(turns=6), **({"retries": 2, "max_error_rate": 1.0} | rollout))
    return Runner(config, family, agent or Plain(), renderer(), Dice(tuple(texts)), 4096, 0)


@dataclass
class Script:
    """Says the texts of the play that it is made for, one after another."""

    texts: Sequence[str]
    said: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        text = self.texts[min(self.said, len(self.texts) - 1)]
        self.said += 1
        tokens = np.array([*renderer().codec.control(text), renderer().stops[0]])
        return Sample(tokens, np.full(len(tokens), -1.0, np.float32), Versions(0, 0), Stop.END)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...


def scripted(*texts: Sequence[str]) -> Any:
    """A sampler for each play of a group, by its number, the same whenever the play is tried again."""
    return lambda env, label: Script(texts[int(label.rpartition("/")[2])])


def fragile(kind: str = "bare") -> Task:
    return next(task for task in Fragile().tasks("train") if task.data["kind"] == kind)


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def pids(family: RemoteFamily) -> list[int]:
    return [await worker.actor.__ray_call__.remote(lambda self: os.getpid()) for worker in family.shared.workers.all]


async def kill_all(family: RemoteFamily) -> None:
    """Kills all workers, and waits until that is known."""
    workers = family.shared.workers
    for pid in await pids(family):
        os.kill(pid, signal.SIGKILL)
    await workers._until(lambda: not any(worker.up for worker in workers.all))


MIXED = Mixed(worlds=(Toy(rooms=2, side_rooms=0, doors=0, decoys=0, objects=0), Toy(side_rooms=1)), levels=True)


async def trees(one: Runner, task: Task, size: int) -> Group:
    return await play_trees(one, Uniform(every=1, width=2, depth=2, leaves=6), task, 5, size, PARAMS, "rl/5/0")


async def plain(one: Runner, task: Task, size: int) -> Group:
    return await one.play_group(task, 5, size, PARAMS, "rl/5/0")


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


async def test_where_a_worker_has_ended_unnoticed_another_is_asked() -> None:
    async with remote(Fragile()) as family:
        workers = family.shared.workers
        os.kill((await pids(family))[0], signal.SIGKILL)
        assert workers.all[0].up, "nothing has looked yet"
        assert isinstance(workers.ask_now(None, "abilities", (), fragile()), frozenset)


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
