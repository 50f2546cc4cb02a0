"""Says which of a sandbox's limits this machine does not enforce."""

from __future__ import annotations

import platform
from functools import cache

from sojourn.envs.sandbox.groups import memory_limit, sandbox_parent
from sojourn.envs.sandbox.seccomp import program

WATCHED = (
    "What a sandbox holds in memory is not bounded by the kernel but counted 20 times a second (its processes, their "
    "page tables, its sockets, its open files), so that it may pass its limit for some 50 ms: run this process in a "
    "control group that it may divide, so that each sandbox has one of its own, as with systemd-run --user --scope "
    "-p Delegate=yes, or at least in one with a limit on memory, which bounds all sandboxes together"
)
UNFILTERED = (
    "On this processor ({}) a sandbox has no filter of system calls: an agent's code may hold memory that no limit "
    "counts, and what it leaves stopped between two actions may go on by itself; use x86-64 or arm64"
)


@cache
def risks() -> tuple[str, ...]:
    """Returns one sentence for each protection that does not hold here, with its remedy; empty where all hold."""
    risks_here = [] if program() else [UNFILTERED.format(platform.machine())]
    if sandbox_parent() is None and memory_limit() is None:
        risks_here.append(WATCHED)
    return tuple(risks_here)
