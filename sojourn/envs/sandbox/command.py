"""Builds the command line that runs a program in a sandbox: bubblewrap, and setpriv where we are root."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sojourn.config import plugins
from sojourn.envs.about import require_program
from sojourn.errors import ConfigError
from sojourn.version import PACKAGE

UNPRIVILEGED = 20001  # the user id that root changes to; it belongs to nobody, so it owns no files
PASSWD = b"agent:x:1000:1000:agent:/task:/usr/bin/bash\nroot:x:0:0:root:/root:/usr/bin/bash\n"
GROUP = b"agent:x:1000:\nroot:x:0:\n"


def python() -> str:
    """Returns the path of the system's own Python, as a sandbox sees only /usr, and with a stranger's permissions."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path):
            return path
    raise ConfigError("a sandbox needs /usr/bin/python3: install it (Debian: apt-get install python3)")


def sandbox_command(
    argv: Sequence[str],
    *,
    disk_bytes: int,
    passwd: int,
    group: int,
    info: int | None = None,
    seccomp: int | None = None,
    binds: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns the command line that runs `argv` in namespaces of its own; the integers are file descriptors for
    bubblewrap: it writes to `info` and reads the others. `binds` are further files and folders that can be read inside,
    by their paths outside, each with its path inside."""
    require_sandbox("a sandbox")
    line = []
    if os.geteuid() == 0:  # root's processes are not limited, and it keeps its rights
        number = str(UNPRIVILEGED)
        line += ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--no-new-privs", "--"]
    line += ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns"]
    line += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--die-with-parent", "--new-session"]
    line += ["--as-pid-1", *(["--info-fd", str(info)] if info is not None else []), "--ro-bind", "/usr", "/usr"]
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):  # links into /usr, on most systems
        if path.is_symlink():
            line += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            line += ["--ro-bind", str(path), str(path)]
    line += ["--perms", "0755", "--dir", "/etc"]
    for name in ("/etc/alternatives", "/etc/ld.so.cache"):
        line += ["--ro-bind-try", name, name]
    line += ["--perms", "0444", "--ro-bind-data", str(passwd), "/etc/passwd"]
    line += ["--perms", "0444", "--ro-bind-data", str(group), "/etc/group"]
    line += ["--proc", "/proc", "--dev", "/dev"]
    line += ["--dev-bind", "/dev/full", "/dev/zero"]  # it reads the same, but cannot be mapped: see `seccomp`
    line += ["--remount-ro", "/dev"]
    for path in ("/tmp", "/task"):
        line += ["--perms", "0755", "--size", str(disk_bytes), "--tmpfs", path]
    binds = binds or {}
    for outside, inside in binds.items():  # also below these
        line += ["--ro-bind", outside, inside]
    for folder in (PACKAGE.resolve(), *plugins.folders()):
        if any(folder.is_relative_to(one) for one in ("/usr", *binds.values())):  # worlds hold tasks and answers
            hidden = ["--tmpfs", str(folder), "--remount-ro", str(folder)]
            line += ["--ro-bind", "/dev/null", str(folder)] if folder.is_file() else hidden
    line += ["--remount-ro", "/", "--chdir", "/task", "--clearenv"]
    variables = {
        "PATH": "/usr/bin:/bin:/usr/sbin:/usr/local/bin",
        "HOME": "/task",
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }
    for name, value in {**variables, "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}.items():
        line += ["--setenv", name, value]
    if seccomp is not None:
        line += ["--seccomp", str(seccomp)]
    return [*line, "--", *argv]


def require_sandbox(world: str) -> None:
    """Raises ConfigError, naming the world, where this machine cannot have sandboxes."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"{world} needs Linux, but this is {sys.platform}: run it in a Linux machine")
    require_program("bwrap", "bubblewrap", world)
    if os.geteuid() == 0:
        require_program("setpriv", "util-linux", world)
    python()


def memory_file(data: bytes) -> int:
    """Returns a descriptor from which a child process reads these bytes. It is no pipe, as the bytes may not fit into
    one."""
    fd = os.memfd_create("sojourn")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
