"""The size of what a newcomer reads to understand a step: `python tests/test_core.py` prints it, the tests hold it.

The core are the files that say what a GRPO step is: facts, roles, the loop, the rollout, an agent, the batch, an
estimator and a loss. The path are the files that a run enters from the command to the optimizer's first step. It is
found by running one, with every function that is entered written down. Files of a world, of a chat format, of the
sampler and of records are counted apart from those of the flow itself: whoever follows a step may stop at their roles.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent / "sojourn"
CORE = [
    "types.py", "protocols.py", "train/loop.py", "rollout", "agents/plain.py", "batch",
    "credit/grpo.py", "credit/relative.py", "losses/ppo.py", "losses/ratios.py",
]  # fmt: skip
APART = [
    "envs", "tasks", "render", "backends/torch/sampler", "backends/torch/kernels", "models", "record", "display.py",
    "timeline.py", "config", "errors.py", "event_loop.py", "threads.py", "terminal", "files.py", "secrets.py",
]  # fmt: skip
MAX_LINES = 2200
MAX_FILES = 25
RECIPE = """
name = "path"
seed = 0
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env = { name = "toy", rooms = 2, side_rooms = 0, doors = 0, decoys = 0 }
agent = { name = "plain", choices = true }
backend = { name = "torch", threads = 1, kernel = false }
evaluation = { tasks = 1 }
record = { drift_groups = 0 }

[[stages]]
name = "rl"
steps = 1
groups = { name = "slots", width = 4, size = 8 }
estimator = { name = "grpo" }
losses = [{ name = "ppo" }]
"""


def core() -> dict[str, int]:
    """Returns the lines of each file of the core, blank ones and docstrings included."""
    files = [file for name in CORE for file in sorted((ROOT / name).rglob("*.py")) or [ROOT / name]]
    return {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}


def path(folder: Path) -> list[str]:
    """Returns the files that a run enters from the command to the optimizer's first step, in order."""
    (folder / "recipe.toml").write_text(RECIPE)
    command = [sys.executable, __file__, "trace", str(folder / "recipe.toml"), str(folder / "run")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    return [line.removeprefix("entered ") for line in told.splitlines() if line.startswith("entered ")]


def flow(files: list[str]) -> list[str]:
    """Returns the files among these that are of the flow itself."""
    return [file for file in files if not any(file == part or file.startswith(f"{part}/") for part in APART)]


def trace(recipe: str, out: str) -> None:
    """Trains in this process, and prints the files that are entered until the optimizer has made a step."""
    from sojourn.backends.torch.trainer.trainer import TorchTrainer

    entered: dict[str, None] = {}
    home = f"{ROOT}/"

    def enter(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(home) and frame.f_code.co_name != "<module>":
            entered.setdefault(file.removeprefix(home))

    step = TorchTrainer.optim_step

    async def last(self: TorchTrainer) -> Any:
        metrics = await step(self)
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        print(*(f"\nentered {file}" for file in list(entered)), sep="")
        return metrics

    TorchTrainer.optim_step = last  # type: ignore[method-assign]
    from sojourn.cli import main

    sys.argv = ["sojourn", "train", recipe, "--out", out]
    threading.setprofile(enter)
    sys.setprofile(enter)
    main()


def told(folder: Path) -> Iterator[str]:
    sizes, files = core(), path(folder)
    yield from (f"{lines:6} {file}" for file, lines in sizes.items())
    yield f"{sum(sizes.values()):6} lines of the core, at most {MAX_LINES}"
    yield from (f"       {file}" for file in flow(files))
    yield f"{len(flow(files)):6} files of the flow from the command to the optimizer's step, at most {MAX_FILES}"
    yield f"{len(files):6} with those of the world, the format, the sampler, the config and the record"


def test_the_core_is_small() -> None:
    sizes = core()
    assert sum(sizes.values()) <= MAX_LINES, sizes


def test_the_path_to_the_optimizers_step_is_short(tmp_path: Path) -> None:
    files = flow(path(tmp_path))
    assert "backends/torch/trainer/optimizer.py" in files
    assert len(files) <= MAX_FILES, files


if __name__ == "__main__":
    if sys.argv[1:2] == ["trace"]:
        trace(*sys.argv[2:])
    else:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            print(*told(Path(folder)), sep="\n")
