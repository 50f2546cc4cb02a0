"""Plays worlds in worker processes on Ray, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from made import chatml as renderer
from ray_actors import start_anywhere
from remote_worlds import Fragile
from walks import Dice

from sojourn.agents.plain import Plain
from sojourn.backends.ray.env_family import RemoteFamily
from sojourn.branching.trees import play_trees
from sojourn.branching.uniform import Uniform
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.rollout.world import open_world
from sojourn.types import Group, Message, Prompt, Role, Sample, SamplingParams, Stop, Task, Versions

PARAMS = SamplingParams(32)
TOY_WORDS = ("go north", "go south", "go east", "go west", "take red key", "open red door", "take treasure")


@asynccontextmanager
async def remote(base: Any, count: int = 2) -> AsyncIterator[RemoteFamily]:
    family = RemoteFamily(base, count, start_anywhere(0.5))
    async with open_world(family):
        yield family
    assert family.left == 0  # plays that were open at the end


def runner(family: Any, texts: Sequence[str] = ("left", "right"), agent: Any = None, **rollout: Any) -> Runner:
    config = Rollout(limits=Limits(turns=6), **({"retries": 2, "max_error_rate": 1.0} | rollout))
    return Runner(config, family, agent or Plain(), renderer(), Dice(tuple(texts)), 4096, 0)


@dataclass
class Script:
    """Says the texts of the play that it is made for, one after another."""

    texts: Sequence[str]
    said: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        text = self.texts[min(self.said, len(self.texts) - 1)]
        self.said += 1
        tokens = np.array([*renderer().codec.control(text), renderer().stops[0]])
        return Sample(tokens, np.full(len(tokens), -1.0, np.float32), Versions(0, 0), Stop.END)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...


def scripted(*texts: Sequence[str]) -> Any:
    """A sampler for each play of a group, by its number, the same whenever the play is tried again."""
    return lambda env, label: Script(texts[int(label.rpartition("/")[2])])


def fragile(kind: str = "bare") -> Task:
    return next(task for task in Fragile().tasks("train") if task.data["kind"] == kind)


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


async def pids(family: RemoteFamily) -> list[int]:
    return [await worker.actor.__ray_call__.remote(lambda self: os.getpid()) for worker in family.shared.workers.all]


async def kill_all(family: RemoteFamily) -> None:
    """Kills all workers, and waits until that is known."""
    workers = family.shared.workers
    for pid in await pids(family):
        os.kill(pid, signal.SIGKILL)
    await workers._until(lambda: not any(worker.up for worker in workers.all))


async def trees(one: Runner, task: Task, size: int) -> Group:
    return await play_trees(one, Uniform(every=1, width=2, depth=2, leaves=6), task, 5, size, PARAMS, "rl/5/0")


async def plain(one: Runner, task: Task, size: int) -> Group:
    return await one.play_group(task, 5, size, PARAMS, "rl/5/0")
