"""Plays beside the event loop: others go on meanwhile, each stays in its thread, and nothing is lost or left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial

import pytest

from sojourn.abilities import play_abilities
from sojourn.envs.env_threads import ALL_CALLS, EnvThreads
from sojourn.errors import ActionError
from sojourn.types import Message, Observation, Role, Step

PATIENCE_S = 20.0
SEEN = Observation((Message(Role.USER, "go on"),))


class Slow:
    """Every step waits until `go` is set; `places` is where it was called, `closed` how often it was closed."""

    def __init__(self, go, places, closed):
        self.go, self.places, self.closed, self.steps = go, places, closed, 0
        places.append(threading.current_thread().name)

    async def start(self):
        self.places.append(threading.current_thread().name)
        return SEEN

    async def step(self, agent, action):
        self.places.append(threading.current_thread().name)
        if action.text == "wrong":
            raise ActionError("not so")
        assert self.go.wait(PATIENCE_S)
        self.steps += 1
        return Step(SEEN, {agent: 0.0})

    async def fork(self):
        self.places.append(threading.current_thread().name)
        assert self.go.wait(PATIENCE_S)
        twin = Slow(self.go, self.places, self.closed)
        twin.steps = self.steps
        return twin

    async def expert(self):
        self.places.append(threading.current_thread().name)
        return "right"

    def state_key(self):
        return str(self.steps)

    async def close(self):
        self.places.append(threading.current_thread().name)
        self.closed.append(self.steps)


class Tidy(Slow):
    """A step waits for ever, and tidies up when it is given up."""

    async def step(self, agent, action):
        self.places.append(threading.current_thread().name)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            self.steps += 1


class World:
    def __init__(self, count=1, kind=Slow, **more):
        self.kind = kind
        self.go, self.places, self.closed = threading.Event(), [], []
        self.threads = EnvThreads(count, "slow")
        self.more = more

    def make(self):
        made = partial(self.kind, self.go, self.places, self.closed)
        return self.threads.make(made, play_abilities(Slow), **self.more)


def say(text):
    return Message(Role.ASSISTANT, text)


async def until(true):
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110  (a thread brings it about)
            await asyncio.sleep(0.001)


async def gone():
    """When no thread of the worlds is left."""
    await until(lambda: not any(thread.name.startswith("slow") for thread in threading.enumerate()))


async def test_others_go_on_while_a_step_is_slow_and_refusals_come_back():
    world = World()
    env = world.make()
    assert (await env.start(), env.state_key()) == (SEEN, "0")
    with pytest.raises(ActionError, match="not so"):
        await env.step("agent", say("wrong"))

    async def other():
        world.go.set()

    step, _ = await asyncio.gather(env.step("agent", say("right")), other())
    assert step.observation == SEEN
    assert (await env.expert(), env.state_key(), env.steps) == ("right", "1", 1)
    await env.close()
    await env.close()
    assert world.closed == [1]
    await gone()
    assert set(world.places) == {"slow-0"}


async def test_each_play_and_its_forks_stay_in_a_thread():
    world = World(2)
    world.go.set()
    plays = [world.make() for _ in range(2)]
    where = []
    for env in plays:
        await env.start()
    for env in plays:
        world.places.clear()
        twin = await env.fork()
        await twin.step("agent", say("right"))
        assert (env.state_key(), twin.state_key()) == ("0", "1")
        await env.close()
        await twin.step("agent", say("right"))  # the thread stays as long as there is one
        await twin.close()
        [place] = set(world.places)
        where.append(place)
    assert where == ["slow-0", "slow-1"]
    assert world.closed == [0, 2, 0, 2]
    await gone()


async def test_a_step_that_is_given_up_ends_before_the_close_which_is_made_even_if_that_is_given_up():
    world = World()
    env = world.make()
    await env.start()
    step = asyncio.ensure_future(env.step("agent", say("right")))
    await until(lambda: len(world.places) == 3)
    step.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await step
    closing = asyncio.ensure_future(env.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert world.closed == []
    world.go.set()
    await gone()
    assert world.closed == [1]


async def test_a_step_that_is_given_up_while_it_waits_tidies_up_before_the_close():
    world = World(kind=Tidy)
    env = world.make()
    await env.start()
    step = asyncio.ensure_future(env.step("agent", say("right")))
    await until(lambda: len(world.places) == 3)
    step.cancel()
    await asyncio.wait({step})
    closing = asyncio.ensure_future(env.close())
    await asyncio.sleep(0.01)
    closing.cancel()  # in vain
    await asyncio.wait({closing})
    await gone()
    assert world.closed == [1]


async def test_a_step_that_is_given_up_before_it_began_is_never_made():
    world = World()
    busy, env = world.make(), world.make()
    for play in (busy, env):
        await play.start()
    first = asyncio.ensure_future(busy.step("agent", say("right")))
    await until(lambda: len(world.places) == 5)
    step = asyncio.ensure_future(env.step("agent", say("right")))
    await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    world.go.set()
    await first
    for play in (env, busy):
        await play.close()
    assert world.closed == [0, 1]
    await gone()


async def test_a_fork_that_is_given_up_is_closed():
    world = World()
    env = world.make()
    await env.start()
    fork = asyncio.ensure_future(env.fork())
    await until(lambda: len(world.places) == 3)  # before it has begun, it would never be made
    fork.cancel()
    await asyncio.sleep(0)
    world.go.set()
    with pytest.raises(asyncio.CancelledError):
        await fork
    assert world.closed == [0]
    await env.close()
    assert world.closed == [0, 0]
    await gone()


async def test_what_is_quick_stays_where_it_is():
    world = World(slow={"expert"})
    env = world.make()
    here = threading.current_thread().name
    await env.start()
    assert world.places == [here, here]
    await env.expert()
    assert world.places.pop() == "slow-0"
    await env.close()
    await gone()
    assert {"start", "step"} <= ALL_CALLS


async def test_a_play_that_never_began_makes_nothing_and_offers_what_it_would():
    world = World()
    env = world.make()
    assert all(hasattr(env, name) for name in ("fork", "expert", "state_key"))
    assert not hasattr(env, "steps")
    assert not hasattr(world.threads.make(env.make, ()), "fork")
    await env.close()
    assert (world.places, world.closed) == ([], [])
    await gone()


async def test_a_world_that_is_open_keeps_its_event_loop():
    world = World()
    world.go.set()
    world.threads.enter()
    loops = []
    for _ in range(2):
        env = world.make()
        await env.start()
        loops.append(env.thread.loop)
        await env.close()
    assert loops[0] is loops[1] is not None
    world.threads.leave()
    await gone()
