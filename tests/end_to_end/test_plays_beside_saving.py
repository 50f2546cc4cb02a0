"""While a run writes a checkpoint, its plays go on."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest
from trained_run import train

from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.record import checkpoint
from sojourn.tasks import Generated
from sojourn.types import Message, Observation, Role, Step, Task

SAVING, MOVED = threading.Event(), threading.Event()
WIDTH = 2
RECIPE = f"""
name = "beside"
model = {{ name = "tiny:layers=1,hidden=64", dtype = "fp32" }}
backend = {{ name = "torch", threads = 1 }}
env = {{ name = "test_plays_beside_saving:Slow" }}
sampling = {{ max_tokens = 8 }}
evaluation = {{ tasks = 1 }}
record = {{ checkpoint_every = 1 }}
[[stages]]
name = "rl"
steps = 3
groups = {{ name = "slots", width = {WIDTH}, size = 1, max_lag = 2 }}
estimator = {{ name = "reinforce" }}
losses = [{{ name = "ppo" }}]
"""


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A world whose plays of training, but the first ones, do not begin before something is saved."""

    begun: list[Task] = field(default_factory=list, init=False, compare=False)

    def tasks(self, split: str):
        return Generated(lambda index: Task("slow", {}, index, split), 20)

    def make(self, task: Task) -> Play:
        return Play(self, task)


@dataclass
class Play:
    family: Slow
    task: Task

    async def start(self) -> Observation:
        if self.task.split == "train":
            self.family.begun.append(self.task)
            await self._wait_for_saving(len(self.family.begun) > 2 * WIDTH)
        return Observation((Message(Role.USER, "Say yes."),))

    async def _wait_for_saving(self, waits: bool) -> None:
        while waits and not SAVING.is_set():  # noqa: ASYNC110 (it is set in another thread)
            await asyncio.sleep(0.01)
        if waits:
            MOVED.set()

    async def step(self, agent: str, action: Message) -> Step:
        return Step(None, {agent: 1.0}, done=True)

    async def close(self) -> None: ...


def test_plays_go_on_while_a_checkpoint_is_written(tmp_path, monkeypatch: pytest.MonkeyPatch):
    SAVING.clear()
    MOVED.clear()
    save, seen = TorchTrainer.save, list[bool]()

    def slowly(self: TorchTrainer, *args, **kwargs) -> None:
        SAVING.set()
        seen.append(MOVED.wait(20))
        save(self, *args, **kwargs)

    monkeypatch.setattr(TorchTrainer, "save", slowly)
    run = train(tmp_path / "run", recipe=RECIPE)
    assert seen
    assert all(seen)
    assert [one.step for one in checkpoint.checkpoints(run / "checkpoints")][-1] == 3
