"""The service of `live.py`: the command `sojourn live`, as people on this machine would start it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bakeoff import HERE

from sojourn.live.store import LiveStore

BACKLOG = 72  # sessions that wait for training, beyond which nobody begins another: three steps
POLL_S = 0.05
ENDING_S = 120.0


@dataclass
class Service:
    """A service that runs."""

    base_url: str
    run: Path
    process: subprocess.Popen[str]
    store: LiveStore

    async def ready(self) -> None:
        """Waits until training has few sessions left to take."""
        while self.waiting() > BACKLOG:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    def waiting(self) -> int:
        """Returns how many sessions training may take that it has not taken."""
        return sum(one.ended is not None and one.consent and one.step is None for one in self.store.sessions(500))

    def trainer(self) -> int:
        """Returns the number of the process that trains."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = [int(one) for one in children if b"\0train\0" in Path(f"/proc/{one}/cmdline").read_bytes()]
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} processes train beside the service: expected one")
        return found[0]


@contextmanager
def serving(recipe: Path, run: Path) -> Iterator[Service]:
    """Starts a service, and ends it as Ctrl-C does. Raises `RuntimeError` where it does not begin, or fails."""
    words = [sys.executable, "-m", "sojourn", "live", str(recipe), "--out", str(run), "--port", "0"]
    alone = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
    env = {**os.environ, **alone, "PYTHONPATH": f"{HERE.parent}:{HERE.parent / 'worlds'}"}
    with (
        (run.parent / "service.log").open("w") as errors,
        subprocess.Popen(words, cwd=HERE.parent, env=env, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            lines = (line for line in process.stdout if line.startswith("OpenAI base URL"))
            if (line := next(lines, None)) is None:
                raise RuntimeError(f"the service did not begin: {(run.parent / 'service.log').read_text()[-2000:]}")
            store = LiveStore(run / "live")
            yield Service(line.split()[3].removesuffix("/v1"), run, process, store)
            store.close()
            process.send_signal(signal.SIGINT)
            if code := process.wait(ENDING_S):
                log = (run.parent / "service.log").read_text()[-2000:]
                raise RuntimeError(f"the service ended with exit code {code}: {log}")
        finally:
            process.kill()
