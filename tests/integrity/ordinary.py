"""Runs an async test in a child process: as the user that pytest runs as, or as an ordinary one.

A child of this process has imported all that the test needs, so that an ordinary user need not be able to read where
it lies. It has an event loop of its own: one that stands still is killed with the child, and the test fails.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401  (imported before the rights are given up)
import os
import select
import signal
import traceback
from collections.abc import Awaitable, Callable

from sojourn.envs.sandbox.groups import place

USER = 20002
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)
LIMIT_S = 200


def run_as(user: str, test: Callable[[], Awaitable[object]]) -> None:
    """Runs `test` as "root" or "ordinary"; what it raises is an assertion with its traceback as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = b""
        try:
            os.close(read)
            if user == "ordinary" and os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(USER, USER, USER)
                os.setresuid(USER, USER, USER)
                place.cache_clear()  # what may be divided is another user's
            asyncio.new_event_loop().run_until_complete(test())
        except BaseException:
            text = traceback.format_exc()[-20_000:].encode(errors="replace")
        finally:
            os.write(write, text)
            os._exit(1 if text else 0)
    os.close(write)
    ended = os.pidfd_open(child)
    stood_still = not select.select([ended], [], [], LIMIT_S)[0]
    if stood_still:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(ended)
    with os.fdopen(read, "rb") as file:
        text = file.read().decode()
    assert not stood_still, f"as {user}: it stood still for {LIMIT_S} s"
    assert code == 0, f"as {user}:\n{text}"
