"""Which limits of a sandbox this machine is said not to enforce; control groups are ordinary folders here."""

from pathlib import Path

import pytest

from sojourn.envs.python import Python
from sojourn.envs.repo import Repo
from sojourn.envs.sandbox import risks as module
from sojourn.envs.sandbox.risks import memory_limit, risks
from sojourn.envs.terminal import Terminal

SECOND = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
FIRST = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"


def machine(root: Path, mounts: str, member: str, files: dict[str, str]) -> Path:
    for path, text in {"proc/self/mountinfo": mounts, "proc/self/cgroup": member, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_the_least_limit_above_a_process_holds(tmp_path):
    group = "sys/fs/cgroup/user.slice/run.scope"
    files = {f"{group}/memory.max": "max\n", "sys/fs/cgroup/user.slice/memory.max": "1000\n"}
    assert memory_limit(machine(tmp_path, SECOND, "0::/user.slice/run.scope\n", files)) == 1000
    (tmp_path / group / "memory.max").write_text("500\n")
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


@pytest.mark.parametrize(
    ("processor", "limit", "count"), [("x86_64", None, 1), ("riscv64", None, 2), ("aarch64", 5, 0)]
)
def test_what_does_not_hold_is_said_in_sentences(monkeypatch, processor, limit, count):
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr(module, "memory_limit", lambda: limit)
    risks.cache_clear()
    found = Terminal().risks()
    assert found == Python().risks() == Repo().risks()
    assert len(found) == count
    assert all(sentence[0].isupper() and " sandbox" in sentence for sentence in found)
    risks.cache_clear()
