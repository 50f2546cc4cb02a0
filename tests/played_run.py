"""Run folders with real episodes in them, played by scripted samplers: quick to make, and of any world."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from made import chatml as renderer

from sojourn.agents.plain import Plain
from sojourn.config import toml
from sojourn.config.registry import build
from sojourn.protocols import Env
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.replay import Replayed, replay
from sojourn.rewards.native import Native
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.sources.experts import expert_sampler
from sojourn.types import Credit, Group, Prompt, Sample, SamplingParams, Stop, Versions


class Sums:
    """Add the numbers, then submit the sum."""

    def __init__(self, seed: int) -> None:
        self.numbers = (seed % 7, seed % 5)
        self.given: float | None = None
        self.sum: int | None = None

    def goal(self) -> str:
        return f"What is {self.numbers[0]} + {self.numbers[1]}?"

    def add(self, x: int, y: int) -> int:
        """The sum of two numbers."""
        self.sum = x + y
        return self.sum

    def submit(self, answer: int) -> None:
        """Say the answer."""
        if answer < 0:
            raise ValueError("no sum is negative")
        self.given = float(answer == sum(self.numbers))

    def reward(self) -> float | None:
        return self.given

    def expert(self) -> str:
        return f"add(x={self.numbers[0]}, y={self.numbers[1]})" if self.sum is None else f"submit(answer={self.sum})"


@dataclass
class Script:
    """In the engine's place: says the texts in turn in each play, with the logprobs -1, -2 ... and weights 3."""

    texts: list[str]
    constrained: bool = False  # every other token was one of several that a constraint left
    said: int = 0

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        text = self.texts[self.said % len(self.texts)]
        self.said += 1
        tokens = np.array([*renderer().codec.control(text), renderer().stops[0]])
        logprobs = -np.arange(1, 1 + len(tokens), dtype=np.float32) / 3
        allowed = tuple(np.arange(n + 1) if n % 2 else None for n in range(len(tokens))) if self.constrained else None
        return Sample(tokens, logprobs, Versions(2, 3), Stop.END, 0.7, allowed)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError


@dataclass
class Made:
    """A run folder to be: `episodes` plays each of `tasks` tasks of a world, by its expert or by a script."""

    world: Mapping[str, Any]
    script: Any = None
    agent: Any = field(default_factory=Plain)
    tasks: int = 2
    episodes: int = 2
    turns: int = 4
    seat: str = "agent"
    agent_name: str = ""  # as the config has it, where it is not plain

    def run(self, path: Path) -> Path:
        table = {"name": "made", "model": {"name": "tiny"}, "env": dict(self.world), "reward": {"name": "native"}}
        agent = {"agent": {"name": self.agent_name}} if self.agent_name else {}
        asyncio.run(self._run(path, toml.dump({**table, **agent})))
        return path

    async def _run(self, path: Path, text: str) -> None:
        groups = await self.groups()
        scores = [await Native()(group) for group in groups]
        credits = [
            [Credit.uniform(t, score.total - 0.25) for t, score in zip(group.trajectories, judged, strict=True)]
            for group, judged in zip(groups, scores, strict=True)
        ]
        with RunFolder.create(path, text, seeds={"run": 0}) as run, EpisodeStore(run.path, write=True) as store:
            for step, one in enumerate(zip(groups, scores, credits, strict=True)):
                store.append("rl", step, *([part] for part in one))

    async def groups(self) -> list[Group]:
        family = build("env", self.world, "env").value
        rollout = Rollout(limits=Limits(turns=self.turns), retries=0, max_error_rate=1.0)
        runner = Runner(rollout, family, self.agent, renderer(), self.script, 4096, 0)
        params = SamplingParams(64)
        listed = family.tasks("train")
        acting = (
            {"sampler_for": expert_sampler(runner.renderer, runner.agent), "blame": False}
            if self.script is None
            else {"sampler_for": self.script_of}
        )
        return [
            await runner.play_group(listed[n], n, self.episodes, params, f"rl/{n}", **acting) for n in range(self.tasks)
        ]

    def script_of(self, env: Env, label: str) -> Script:
        """Returns the script of a play, from the text of its number on; plays are at once and share none."""
        return replace(self.script, said=int(label.rpartition("/")[2]))


TOY = {"name": "toy", "rooms": 2}
SUMS = {"name": "tools", "cls": "played_run:Sums", "form": "native"}


def replayed(path: Path) -> list[Replayed]:
    """Replays all episodes of a run."""

    async def all_of() -> list[Replayed]:
        with EpisodeStore(path) as store:
            return [done async for done in replay(RunFolder.read(path), store.read_each(store.query()))]

    return asyncio.run(all_of())
