"""The training beside a service does not outlive it, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SERVICE = """
import asyncio, os, sys
from pathlib import Path
from sojourn.serving import trainer_process

async def serve():
    trainer_process.sys.executable = sys.argv[1]
    trainer = await trainer_process.TrainerProcess.start([], Path("log"))
    print(trainer.process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(serve())
"""
TRAINING = """#!/bin/sh
echo begun
exec sleep 60
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells no process that its parent has ended")
def test_the_training_ends_with_a_service_that_is_killed(tmp_path: Path) -> None:
    training = tmp_path / "python"
    training.write_text(TRAINING)
    training.chmod(0o755)
    words = [sys.executable, "-c", SERVICE, str(training)]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        trained = psutil.Process(int(service.stdout.readline()))
        try:
            _until(lambda: (tmp_path / "log").read_text() == "begun\n")
            os.kill(service.pid, signal.SIGKILL)
            service.wait()
            _until(lambda: not trained.is_running() or trained.status() == psutil.STATUS_ZOMBIE)
        finally:
            if trained.is_running():
                trained.kill()


def _until(reached) -> None:
    ends = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.05)
