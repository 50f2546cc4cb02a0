"""What a call of a world may take, and that what it waits for its turn does not count."""

import asyncio

import pytest

from sojourn.errors import InfrastructureError
from sojourn.event_loop import contained, off_the_clock
from sojourn.rollout.limits import Limits, call_env
from sojourn.timeline import Timeline

LIMITS = Limits(stall_s=0.2)


async def waits_for_its_turn(then_s: float = 0.0) -> str:
    with off_the_clock():
        await asyncio.sleep(0.7)  # also longer than the time in which a cancelled call must end
    await asyncio.sleep(then_s)
    return "done"


async def test_what_a_call_waits_for_its_turn_does_not_count():
    assert await contained(call_env(waits_for_its_turn, LIMITS, Timeline())) == "done"
    assert await call_env(waits_for_its_turn, LIMITS, Timeline()) == "done"
    assert await waits_for_its_turn() == "done"


async def test_what_it_takes_beside_that_does():
    with pytest.raises(InfrastructureError, match=r"did not answer within 0\.2 s"):
        await contained(call_env(waits_for_its_turn, LIMITS, Timeline(), 60.0))


async def test_a_call_that_is_cancelled_while_it_waits_ends():
    waiting = asyncio.create_task(contained(call_env(waits_for_its_turn, LIMITS, Timeline())))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_call_that_ignores_its_cancellation_is_given_up_after_it_has_waited():
    ended = asyncio.Event()

    async def deaf() -> None:
        with off_the_clock():
            await asyncio.sleep(0.3)
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(InfrastructureError, match="ignores its cancellation"):
        await contained(call_env(deaf, LIMITS, Timeline()))
    ended.set()
    await asyncio.sleep(0)
