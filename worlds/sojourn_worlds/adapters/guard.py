"""Runs a program that ends with its starter, and takes all processes that it has started along.

    python -I -S guard.py PID FOLDER PROGRAM [ARGUMENT ...]

PID is the process that must live on, FOLDER is deleted at the end (empty: none). The program gets our input and output.
It is run in a process group of its own; the group is killed when the program ends, when we are told to end (SIGTERM,
SIGINT, SIGHUP), and when PID dies, by SIGKILL too: on Linux the kernel tells us. Standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
GRACE_S = 1.0  # from SIGTERM to SIGKILL
ENDINGS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def die_with_parent(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def main(parent: int, folder: str, program: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS | {signal.SIGCHLD})
    die_with_parent(signal.SIGTERM)
    try:
        if os.getppid() != parent:  # it died before we could ask to be told
            return 1
        child = subprocess.Popen(program, preexec_fn=_prepare)
        _wait(child.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        return abs(child.wait())
    except OSError as error:
        print(f"{program[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _prepare() -> None:
    """Runs in the child: gives it a group of its own, blocks no signal, and has it killed if we are."""
    os.setpgid(0, 0)
    die_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _wait(child: int) -> None:
    """Waits until the child has ended, or we are told to end it; it stays a zombie, so that its group keeps its
    number."""
    while signal.sigwait(ENDINGS | {signal.SIGCHLD}) == signal.SIGCHLD:
        if _ended(child):
            return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and not _ended(child):
        time.sleep(0.01)


def _ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
