"""Whoever stops a cell of a notebook stops what Sojourn does there, in the threads where it does it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from sojourn.api import _Loop, _wait


class Work:
    """Goes on for ever, and notes how it ended."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), ""

    async def go_on(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # as the end of a run takes a while
            self.ended = "cancelled"
            raise

    def interrupt(self) -> None:
        """Sends this process what a notebook sends, once the work goes on."""
        self.begun.wait()
        time.sleep(0.5)  # until it is waited for
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def work() -> Iterator[Work]:
    made, before = Work(), signal.signal(signal.SIGINT, signal.default_int_handler)  # as a notebook has it
    thread = threading.Thread(target=made.interrupt)
    thread.start()
    yield made
    thread.join()
    signal.signal(signal.SIGINT, before)


async def test_what_is_stopped_where_an_event_loop_runs_ends_first(work: Work) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the test's own event loop has set another
    with pytest.raises(KeyboardInterrupt):
        _wait(work.go_on())
    assert work.ended == "cancelled"


def test_a_policy_goes_on_with_nothing_that_was_stopped(work: Work) -> None:
    loop = _Loop()
    with pytest.raises(KeyboardInterrupt):
        loop.wait(work.go_on())
    loop.wait(asyncio.sleep(0.3))
    loop.close()
    assert work.ended == "cancelled"
