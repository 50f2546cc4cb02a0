"""Runs an async test in a child process: as the user that pytest runs as, or as an ordinary one.

A child of this process has imported all that the test needs, so that an ordinary user need not be able to read where
it lies. Programs that the test starts need the interpreter: where it lies in a folder that is closed to others, as
root's home is, the child sees another folder in its place, with the interpreter in it. The child has an event loop of
its own: one that stands still is killed with it, and the test fails.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401  (imported before the rights are given up)
import ctypes
import os
import select
import signal
import stat
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sojourn.envs.sandbox.groups import sandbox_parent

USER = 20002
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)
LIMIT_S = 200
UNREACHABLE = 77  # how a child ends whose user cannot execute the interpreter
NEW_MOUNTS, PRIVATE, BIND = 0x20000, 0x44000, 0x5000


def run_as(user: str, test: Callable[[], Awaitable[object]]) -> None:
    """Runs `test` as "root" or "ordinary"; what it raises is an assertion with its traceback as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = b""
        try:
            os.close(read)
            if user == "ordinary" and os.geteuid() == 0:
                _open_way()
                os.setgroups([])
                os.setresgid(USER, USER, USER)
                os.setresuid(USER, USER, USER)
                if not os.access(sys.executable, os.X_OK):
                    os._exit(UNREACHABLE)
                sandbox_parent.cache_clear()  # what may be divided is another user's
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
    if code == UNREACHABLE:
        pytest.skip(f"an ordinary user cannot execute {sys.executable}, nor may root show it elsewhere")
    assert not stood_still, f"as {user}: it stood still for {LIMIT_S} s"
    assert code == 0, f"as {user}:\n{text}"


def _open_way() -> None:
    """Shows this process, and those that it starts, the interpreter in open folders, where it lies in a closed one."""
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve()]
    closed = [parent for path in needed for parent in path.parents if not parent.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return
    outermost = min(closed, key=lambda path: len(path.parts))
    libc = ctypes.CDLL(None)
    if libc.unshare(NEW_MOUNTS) or libc.mount(None, b"/", None, PRIVATE, None):
        return  # root may not: a container's
    held = {path: os.open(path, os.O_PATH) for path in needed if path.is_relative_to(outermost)}
    libc.mount(b"tmpfs", os.fsencode(outermost), b"tmpfs", 0, b"mode=755")
    for path, fd in held.items():
        path.mkdir(parents=True, exist_ok=True)
        libc.mount(b"/proc/self/fd/%d" % fd, os.fsencode(path), None, BIND, None)
        os.close(fd)
