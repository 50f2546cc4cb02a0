"""Bounds each sandbox by a control group of its own (cgroup, version 2), where groups are delegated to this process.

    systemd-run --user --scope -p Delegate=yes sojourn train ...

The kernel bounds everything that a group holds together: the memory of its processes, of what the kernel keeps for
them, of sockets, and of the files in /task and /tmp. A group is delegated where systemd says so, in the attribute
`user.delegate` or `trusted.delegate` of its folder; nothing is ever written to other groups. A group holds either
processes or limited groups, so the processes of the delegated group first move into a group below it, `sojourn`. Groups
further up are left alone: that of a user's own systemd is delegated too, and holds all processes of that user.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sojourn.envs.sandbox.results import Limits

CONTROLLERS = ("memory", "pids")
OWN_BYTES, OWN_PROCESSES = 2**26, 8  # of process 1 and of bubblewrap
OURS, PREFIX = "sojourn", "sandbox-"  # names of groups below the delegated one
ENTER = 'echo 0 > "$0" && exec "$@"'
UNLIMITED = 2**60  # bytes; version 1 writes "no limit" as a number close to 2**63
_numbers = itertools.count()


@dataclass
class Group:
    """The control group of one sandbox."""

    path: Path
    kills: int = 0  # how many processes the kernel had killed for lack of memory when last asked

    @classmethod
    def make(cls, limits: Limits) -> Group | None:
        """Returns a group with the limits of a sandbox; None where none can be made here. Raises `OSError`."""
        parent = sandbox_parent()
        if parent is None:
            return None
        path = parent / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        path.mkdir()
        bounds = {
            "memory.max": limits.memory_bytes + 2 * limits.disk_bytes + OWN_BYTES,
            "memory.swap.max": 0,
            "pids.max": limits.processes + OWN_PROCESSES,
        }
        try:
            for name, bound in bounds.items():
                if name != "memory.swap.max" or (path / name).exists():  # which a kernel without swap does not have
                    (path / name).write_text(str(bound))
        except OSError:
            path.rmdir()
            raise
        return cls(path)

    def entered_by(self, argv: Sequence[str]) -> list[str]:
        """Returns the command line that enters the group and then becomes `argv`."""
        return ["/bin/sh", "-c", ENTER, str(self.path / "cgroup.procs"), *argv]

    def ran_out(self) -> bool:
        """Returns whether the kernel has killed a process of the group for lack of memory since the last call."""
        before, self.kills = self.kills, _numbers_in(self.path / "memory.events").get("oom_kill", self.kills)
        return self.kills > before

    def remove(self) -> None:
        """Removes the group, whose processes have ended."""
        for _ in range(10):
            with contextlib.suppress(FileNotFoundError):
                try:
                    self.path.rmdir()
                except OSError:  # the kernel still reaps a process
                    time.sleep(0.001)
                    continue
            return


@cache
def sandbox_parent(root: Path = Path("/")) -> Path | None:
    """Returns the delegated group, prepared to hold limited groups; None where there is none that can."""
    parent = delegated(root)
    if parent is None or not set(CONTROLLERS) <= _words(parent / "cgroup.controllers"):
        return None
    try:
        if not set(CONTROLLERS) <= _words(parent / "cgroup.subtree_control"):
            _move_down(parent)
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        _remove_stale(parent)
    except OSError:
        return None
    return parent


def delegated(root: Path = Path("/")) -> Path | None:
    """Returns the delegated group (version 2) that this process is in, or was in before it moved below it; else
    None."""
    own = [path for path, file in _groups(root) if file == "memory.max"][:2]
    for path in own if own and own[0].name == OURS else own[:1]:
        if os.access(path, os.W_OK) and _is_delegated(path):
            return path
    return None


def memory_limit(root: Path = Path("/")) -> int | None:
    """Returns the smallest of the memory limits (bytes) of the control groups that this process is in; None without
    one.

    Reads version 2 (`memory.max`) and version 1 (`memory.limit_in_bytes`), and changes nothing.
    """
    limits = []
    for path, file in _groups(root):
        try:
            text = (path / file).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < UNLIMITED:
            limits.append(int(text))
    return min(limits, default=None)


def _groups(root: Path) -> list[tuple[Path, str]]:
    """Returns the folders of this process's groups and of their parents, each with the name of its limit file."""
    try:
        mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
        member = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    groups = []
    for words in mounts:
        kind, options = words[words.index("-") + 1], words[-1].split(",")
        for _, controllers, path in member:
            second = kind == "cgroup2" and not controllers
            if not second and not (kind == "cgroup" and "memory" in options and "memory" in controllers.split(",")):
                continue
            seen = Path(path).relative_to(words[3]) if Path(path).is_relative_to(words[3]) else Path()
            mount = root / words[4].lstrip("/")
            places = [mount / seen, *(mount / parent for parent in seen.parents)]
            groups += [(folder, "memory.max" if second else "memory.limit_in_bytes") for folder in places]
    return groups


def _is_delegated(path: Path) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return False


def _move_down(parent: Path) -> None:
    """Moves all processes of a group, and those that they start meanwhile, into a group below it."""
    ours = parent / OURS
    ours.mkdir(exist_ok=True)
    for _ in range(100):
        numbers = _words(parent / "cgroup.procs")
        if not numbers:
            return
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                (ours / "cgroup.procs").write_text(number)


def _remove_stale(parent: Path) -> None:
    """Removes the groups of sandboxes whose process was killed."""
    for path in parent.glob(f"{PREFIX}*"):
        if not os.path.exists(f"/proc/{path.name.removeprefix(PREFIX).split('-')[0]}"):
            with contextlib.suppress(OSError):
                path.rmdir()


def _words(file: Path) -> set[str]:
    return set(file.read_text().split())


def _numbers_in(file: Path) -> dict[str, int]:
    try:
        pairs = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {name: int(number) for name, number in pairs}
