"""Control groups of sandboxes: on folders that look like the kernel's, and on the kernel's own where some are delegated
(`systemd-run --user --scope -p Delegate=yes python -m pytest tests/envs/test_sandbox_groups.py`)."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sojourn.envs.sandbox import End, Limits, LostError, Sandbox
from sojourn.envs.sandbox.groups import Group, delegated, memory_limit, sandbox_parent
from sojourn.envs.sandbox.risks import risks

SECOND = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
FIRST = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
SCOPE = "sys/fs/cgroup/user.slice/run.scope"
FILES = {f"{SCOPE}/cgroup.controllers": "cpu memory pids\n", f"{SCOPE}/cgroup.subtree_control": "\n"}
MEMBER = "0::/user.slice/run.scope\n"
LIMITS = Limits(memory_bytes=2**27, disk_bytes=2**24)

is_delegated = pytest.mark.skipif(
    sandbox_parent() is None or shutil.which("bwrap") is None, reason="no control group is delegated to this process"
)


def machine(root: Path, mounts: str, member: str, files: dict[str, str]) -> Path:
    for path, text in {"proc/self/mountinfo": mounts, "proc/self/cgroup": member, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture
def delegate(monkeypatch):
    """Gives a folder the attribute that systemd gives: not every file system of today's can keep it."""
    given = {}

    def get(path, name):
        if (path, name) not in given:
            raise OSError
        return given[path, name]

    monkeypatch.setattr(os, "getxattr", get)
    return lambda path, value=b"1": given.update({(path, "user.delegate"): value})


def test_the_least_limit_above_a_process_holds(tmp_path):
    files = {f"{SCOPE}/memory.max": "max\n", "sys/fs/cgroup/user.slice/memory.max": "1000\n"}
    assert memory_limit(machine(tmp_path, SECOND, MEMBER, files)) == 1000
    (tmp_path / SCOPE / "memory.max").write_text("500\n")
    assert memory_limit(tmp_path) == 500


def test_the_first_version_writes_no_limit_as_a_number(tmp_path):
    file = "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes"
    root = machine(tmp_path, FIRST + SECOND, "4:memory:/a/b\n9:name=systemd:/\n0::/\n", {file: f"{2**63 - 4096}\n"})
    assert memory_limit(root) is None
    (root / file).write_text("4096\n")
    assert memory_limit(root) == 4096


def test_a_group_that_is_itself_what_is_mounted(tmp_path):
    mounts = SECOND.replace(" / /sys", " /docker/x /sys")
    assert memory_limit(machine(tmp_path, mounts, "0::/docker/x\n", {"sys/fs/cgroup/memory.max": "70\n"})) == 70


def test_a_machine_without_groups_has_no_limit(tmp_path):
    assert memory_limit(tmp_path) is None
    assert memory_limit(machine(tmp_path, "", "", {})) is None


def test_only_a_group_that_is_said_to_be_delegated_is_changed(tmp_path, delegate):
    root = machine(tmp_path, SECOND, MEMBER, {**FILES, f"{SCOPE}/cgroup.procs": "", f"{SCOPE}/memory.max": "max\n"})
    assert delegated(root) is None
    assert sandbox_parent(root) is None
    assert (root / SCOPE / "cgroup.subtree_control").read_text() == "\n"
    assert not (root / SCOPE / "sojourn").exists()
    sandbox_parent.cache_clear()
    delegate(root / SCOPE, b"0")
    assert delegated(root) is None
    delegate(root / SCOPE)
    assert delegated(root) == sandbox_parent(root) == root / SCOPE
    assert (root / SCOPE / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_process_below_a_delegated_group_finds_it(tmp_path, delegate):
    root = machine(
        tmp_path, SECOND, "0::/user.slice/run.scope/sojourn\n", {f"{SCOPE}/sojourn/cgroup.procs": "", **FILES}
    )
    delegate(root / SCOPE)
    assert delegated(root) == root / SCOPE


def test_what_is_delegated_to_who_started_this_process_is_left_alone(tmp_path, delegate):
    """A user's systemd has a delegated group with all of the user's programs below it."""
    files = {f"{SCOPE}/app.slice/terminal.scope/cgroup.procs": "", **FILES}
    root = machine(tmp_path, SECOND, "0::/user.slice/run.scope/app.slice/terminal.scope\n", files)
    delegate(root / SCOPE)
    assert delegated(root) is None
    assert sandbox_parent(root) is None


def test_a_group_whose_controllers_are_kept_back_is_left_alone(tmp_path, delegate):
    files = {**FILES, f"{SCOPE}/cgroup.controllers": "cpu pids\n", f"{SCOPE}/cgroup.procs": ""}
    root = machine(tmp_path, SECOND, MEMBER, files)
    delegate(root / SCOPE)
    assert sandbox_parent(root) is None
    assert (root / SCOPE / "cgroup.subtree_control").read_text() == "\n"


def test_a_group_is_entered_before_the_program_begins(tmp_path):
    line = Group(tmp_path).entered_by(["cat", f"{tmp_path}/cgroup.procs", "-"])
    done = subprocess.run(line, input="own input", capture_output=True, text=True, check=True)
    assert done.stdout == "0\nown input"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_a_kill_for_want_of_memory_is_said(tmp_path, monkeypatch):
    """The group's folder is an ordinary one, in which this test writes what the kernel would."""
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom_kill 0\n")
    monkeypatch.setattr(Group, "make", classmethod(lambda cls, limits: Group(tmp_path)))
    async with Sandbox() as sandbox:
        assert (tmp_path / "cgroup.procs").read_text() == "0\n"
        assert (await sandbox.run("kill -9 $$")).end is End.ENDED
        events.write_text("low 0\noom_kill 1\n")
        assert (await sandbox.run("true")).end is End.ENDED
        events.write_text("low 0\noom_kill 2\n")
        killed = await sandbox.run("kill -9 $$")
        assert killed.end is End.MEMORY
        assert killed.note == "stopped: it used too much memory"
        assert (await sandbox.run("kill -9 $$")).end is End.ENDED


@is_delegated
async def test_a_sandbox_has_a_group_of_its_own_and_leaves_none():
    parent = sandbox_parent()
    assert parent is not None
    assert not risks()
    async with Sandbox(LIMITS) as one, Sandbox(LIMITS):
        groups = sorted(parent.glob("sandbox-*"))
        assert len(groups) == 2
        assert int((groups[0] / "memory.max").read_text()) == 2**27 + 2**25 + 2**26
        running = asyncio.ensure_future(one.run("sleep 2"))
        await asyncio.sleep(1)
        assert len((groups[0] / "cgroup.procs").read_text().split()) >= 4  # bubblewrap, process 1, bash, sleep
        await running
    assert not list(parent.glob("sandbox-*"))


@is_delegated
@pytest.mark.parametrize(
    "command",
    [
        "python3 -c 'b = b\"x\" * 2**28'",
        "for n in {1..6}; do head -c 15000000 /dev/zero > /task/$n; head -c 15000000 /dev/zero > /tmp/$n; done",
    ],
    ids=["memory in one go", "files"],
)
async def test_the_kernel_bounds_what_a_sandbox_holds(command):
    """The limit that is looked at is far off, so that only the group's is left."""
    parent = sandbox_parent()
    assert parent is not None
    async with Sandbox(Limits(memory_bytes=2**31, disk_bytes=2**27)) as sandbox:
        (group,) = parent.glob("sandbox-*")
        (group / "memory.max").write_text(str(2**27))
        with contextlib.suppress(LostError):  # where the kernel chooses process 1
            assert (await sandbox.run(command)).end is End.MEMORY
        assert 2**26 < int((group / "memory.peak").read_text()) <= 2**27
    assert not list(parent.glob("sandbox-*"))
