"""Says which of a sandbox's limits this machine does not enforce."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

from sojourn.envs.sandbox.seccomp import program

WATCHED = (
    "What a sandbox holds in memory is not bounded by the kernel but counted 20 times a second (its processes, their "
    "page tables, its sockets, its open files), so that it may pass its limit for some 50 ms: run this process in a "
    "control group with a limit on memory, which bounds all sandboxes together, as with systemd-run --user --scope "
    "-p MemoryMax=16G"
)
UNFILTERED = (
    "On this processor ({}) a sandbox has no filter of system calls: an agent's code may hold memory that no limit "
    "counts, and what it leaves stopped between two actions may go on by itself; use x86-64 or arm64"
)
MOST = 2**60  # bytes; version 1 writes "no limit" as a number close to 2**63


@cache
def risks() -> tuple[str, ...]:
    """Returns one sentence for each protection that does not hold here, with its remedy; empty where all hold."""
    found = [] if program() else [UNFILTERED.format(platform.machine())]
    if memory_limit() is None:
        found.append(WATCHED)
    return tuple(found)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Returns the least of the memory limits (bytes) of the control groups that this process is in; None without one.

    Reads version 2 (`memory.max`) and version 1 (`memory.limit_in_bytes`), and changes nothing.
    """
    limits = []
    for place, file in _groups(root):
        try:
            said = (place / file).read_text().strip()
        except OSError:
            continue
        if said.isdigit() and int(said) < MOST:
            limits.append(int(said))
    return min(limits, default=None)


def _groups(root: Path) -> list[tuple[Path, str]]:
    """The folders of this process's groups and of those that they lie in, each with its file of the limit."""
    try:
        mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
        member = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for words in mounts:
        kind, options = words[words.index("-") + 1], words[-1].split(",")
        for _, controllers, path in member:
            second = kind == "cgroup2" and not controllers
            if not second and not (kind == "cgroup" and "memory" in options and "memory" in controllers.split(",")):
                continue
            seen = Path(path).relative_to(words[3]) if Path(path).is_relative_to(words[3]) else Path()
            mount = root / words[4].lstrip("/")
            places = [mount / seen, *(mount / parent for parent in seen.parents)]
            found += [(place, "memory.max" if second else "memory.limit_in_bytes") for place in places]
    return found
