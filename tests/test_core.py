"""The size of what a newcomer reads to understand a step: `python tests/test_core.py` prints it, the tests hold it.

The core are the files that say what a GRPO step is: facts, roles, the loop, the rollout, an agent, the batch, an
estimator and a loss. The path are the files that one comes through, as with a debugger, from the command to each of the
step's landmarks, from a sample to the optimizer's step: the files of all functions that are on the stack there, also of
those that started the task or the thread. It ends at two roles, the sampler's and the environment's, whose own files
are not counted, and at the layers of the model. It is found by running a step. Printed, too, is how many files have any
function that is entered on the way: helpers, config, records, sampler, world and format included.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from spawned import PYTHON, variables_of

ROOT = Path(__file__).parent.parent / "sojourn"
HOME = f"{ROOT}/"
CORE = [
    "types.py", "protocols.py", "train/loop.py", "rollout", "agents/plain.py", "batch",
    "credit/grpo.py", "credit/relative.py", "losses/ppo.py", "losses/ratios.py",
]  # fmt: skip
LANDMARKS = {  # the last function of each part of a step
    ("backends/torch/sampler/engine.py", "sample"), ("envs/toy.py", "step"), ("rewards/native.py", "_score"),
    ("credit/relative.py", "standardised"), ("batch/flatten.py", "flatten"), ("batch/weigh.py", "weigh"),
    ("backends/torch/trainer/decoder.py", "__call__"), ("losses/ratios.py", "log_ratio"),
    ("backends/torch/trainer/head.py", "score"), ("backends/torch/trainer/optimizer.py", "update"),
}  # fmt: skip
ENDS = {"backends/torch/sampler/engine.py", "envs/toy.py"}  # roles at which the path ends
MAX_LINES = 2200
MAX_FILES = 25
RECIPE = """
name = "path"
seed = 0
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env = { name = "toy", rooms = 2, side_rooms = 0, doors = 0, decoys = 0, choices = true }
agent = { name = "plain", choices = true }
backend = { name = "torch", threads = 1, kernel = false }
evaluation = { tasks = 1 }
record = { drift_groups = 0 }
rollout = { limits = { turns = 16 } }

[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 8, size = 8 }
estimator = { name = "grpo" }
losses = [{ name = "ppo" }]
"""


def core() -> dict[str, int]:
    """Returns the lines of each file of the core, blank ones and docstrings included."""
    files = [file for name in CORE for file in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]]
    return {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}


class Trace(NamedTuple):
    path: list[str]
    entered: list[str]


def trace(folder: Path) -> Trace:
    """Returns the files on the path from the command to the optimizer's second step, and all that are entered."""
    (folder / "recipe.toml").write_text(RECIPE)
    command = [*PYTHON, __file__, "trace", str(folder / "recipe.toml"), str(folder / "run")]
    done = subprocess.run(command, env=variables_of(), capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr
    return Trace(*json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[["))))


class Tracer:
    """Follows the functions that a process enters, through tasks and threads."""

    def __init__(self) -> None:
        self.path: dict[str, None] = {}
        self.entered: dict[str, None] = {}
        self.landmarks = set(LANDMARKS)
        self.steps = 0  # before the first comes an evaluation, and in the first the memory of a pass is measured
        self.of_task: WeakKeyDictionary[asyncio.Task[Any], list[str]] = WeakKeyDictionary()
        self.of_thread = threading.local()

    def stack(self, frame: FrameType | None) -> list[str]:
        """Returns the files of a frame and of what called it, also where that started the task or the thread."""
        files = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(HOME) and frame.f_code.co_name != "<module>":
                files.append(frame.f_code.co_filename.removeprefix(HOME))
            frame = frame.f_back
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        outer = self.of_task.get(task, []) if task is not None else getattr(self.of_thread, "files", [])
        return [*outer, *reversed(files)]

    def enter(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(HOME) or frame.f_code.co_name == "<module>":
            return
        file = file.removeprefix(HOME)
        self.entered.setdefault(file)
        if self.steps == 1 and (file, frame.f_code.co_name) in self.landmarks:
            self.landmarks.discard((file, frame.f_code.co_name))  # another thread may have come here too
            self.path.update(dict.fromkeys(file for file in self.stack(frame) if file not in ENDS))

    def install(self) -> None:
        create, submit, tracer = asyncio.BaseEventLoop.create_task, ThreadPoolExecutor.submit, self

        def create_task(loop: Any, *given: Any, **more: Any) -> Any:
            task = create(loop, *given, **more)
            tracer.of_task[task] = tracer.stack(sys._getframe(1))
            return task

        def submit_from_here(executor: Any, function: Any, *given: Any, **more: Any) -> Any:
            files = tracer.stack(sys._getframe(1))

            def work() -> Any:
                tracer.of_thread.files = files
                return function(*given, **more)

            return submit(executor, work)

        asyncio.BaseEventLoop.create_task = create_task  # type: ignore[method-assign, assignment]
        ThreadPoolExecutor.submit = submit_from_here  # type: ignore[method-assign, assignment]
        threading.setprofile(self.enter)
        sys.setprofile(self.enter)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def train_traced(recipe: str, out: str) -> None:
    """Trains in this process, and prints the trace when the optimizer has made its second step."""
    from sojourn.backends.torch.trainer.trainer import TorchTrainer
    from sojourn.cli import main

    tracer, step = Tracer(), TorchTrainer.optim_step

    async def last(self: TorchTrainer) -> Any:
        metrics = await step(self)
        tracer.steps += 1
        if tracer.steps == 1:
            return metrics
        tracer.remove()
        assert not tracer.landmarks, tracer.landmarks
        print("\n" + json.dumps([list(tracer.path), list(tracer.entered)]))
        return metrics

    TorchTrainer.optim_step = last  # type: ignore[method-assign]
    sys.argv = ["sojourn", "train", recipe, "--out", out]
    tracer.install()
    main()


def report(folder: Path) -> Iterator[str]:
    """Yields the lines that say how large the core is, and how long the path."""
    sizes, traced = core(), trace(folder)
    yield from (f"{lines:6} {file}" for file, lines in sizes.items())
    yield f"{sum(sizes.values()):6} lines of the core, at most {MAX_LINES}"
    yield from (f"       {file}" for file in traced.path)
    yield f"{len(traced.path):6} files on the path from the command to the optimizer's step, at most {MAX_FILES}"
    yield f"{len(traced.entered):6} files with a function that is entered on the way"


def test_the_core_is_small() -> None:
    sizes = core()
    assert sum(sizes.values()) <= MAX_LINES, sizes


def test_the_path_to_the_optimizers_step_is_short(tmp_path: Path) -> None:
    traced = trace(tmp_path)
    assert traced.path[0] == "cli.py"
    assert traced.path[-1] == "backends/torch/trainer/optimizer.py"
    assert len(traced.path) <= MAX_FILES, traced.path


if __name__ == "__main__":
    if sys.argv[1:2] == ["trace"]:
        train_traced(*sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            print(*report(Path(folder)), sep="\n")
