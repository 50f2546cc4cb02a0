"""The training beside a live service: a process of its own, so that serving never waits for it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

NICER = 10  # the training gives way to serving, where both want the same core
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
ENDING_S = 60.0  # for a training that is told to end


@dataclass
class TrainerProcess:
    """Runs `sojourn train` with its output in a file."""

    process: asyncio.subprocess.Process
    output: IO[bytes]

    @classmethod
    async def start(cls, words: Sequence[str], log: Path) -> TrainerProcess:
        output = log.open("ab")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sojourn", "train", *words,
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=_give_way,
        )  # fmt: skip
        return cls(process, output)

    @property
    def code(self) -> int | None:
        """Returns the exit code; None while it runs."""
        return self.process.returncode

    async def end(self) -> int:
        """Ends it as Ctrl-C does, and returns its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGINT)
            try:
                async with asyncio.timeout(ENDING_S):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
        code = await self.process.wait()
        self.output.close()
        return code


def _give_way() -> None:
    """Prepares the new process, which is told to end when the service ends without telling it, as a killed one does."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGINT)
    os.nice(NICER)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored by what a shell starts in the background, and its children
