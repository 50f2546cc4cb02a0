"""A world of walks, and what plays trees of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from made import chatml as renderer

from sojourn.agents.plain import Plain
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.branching.trees import play_trees
from sojourn.checks.synthetic import content
from sojourn.errors import ActionError, InfrastructureError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import Group, Message, Observation, Prompt, Role, Sample, SamplingParams, Step, Stop, Task, Versions

TASK = Task("walk", {}, 0, "train")
PARAMS = SamplingParams(8)


@dataclass
class Walk:
    """Shows the way so far; ends after six actions, with a reward if the last one was "left". "up" is refused."""

    family: Walks
    way: list[str] = field(default_factory=list)
    closed: bool = False

    async def start(self) -> Observation:
        self.family.open += 1
        return self._shown()

    async def step(self, agent: str, action: Message) -> Step:
        await asyncio.sleep(self.family.delay(self.way))
        self.family.steps += 1
        if action.text == "up":
            raise ActionError("there is no ceiling")
        self.way.append(action.text)
        if len(self.way) == 6:
            return Step(None, {agent: float(action.text == "left")}, done=True, success=action.text == "left")
        return Step(self._shown(), {agent: 0.25})

    async def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.family.open -= 1

    def _shown(self) -> Observation:
        return Observation((Message(Role.USER, " ".join(["went", *self.way])),))


class ForkableWalk(Walk):
    async def fork(self) -> Walk:
        if self.family.breaks:
            raise InfrastructureError("no memory is left")
        self.family.open += 1
        return replace(self, way=list(self.way))


class ForgetfulWalk(Walk):
    """Shows something else each time: no replay gives the same."""

    def _shown(self) -> Observation:
        self.family.shown += 1
        return Observation((Message(Role.USER, str(self.family.shown)),))


@dataclass
class Walks:
    kind: type[Walk] = ForkableWalk
    slow: float = 0.0
    breaks: bool = False
    open: int = 0
    steps: int = 0
    shown: int = 0

    def tasks(self, split: str) -> list[Task]:
        return [TASK]

    def make(self, task: Task) -> Walk:
        return self.kind(self)

    def delay(self, way: list[str]) -> float:
        return self.slow * (hash(tuple(way)) % 5)


@dataclass
class Dice:
    """Draws one of the texts by the seed of the sample."""

    texts: tuple[str, ...] = ("left", "right", "left", "up")

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        text = self.texts[params.seed % 1009 % len(self.texts)]
        tokens = np.array([*renderer().codec.control(text), renderer().stops[0]])
        return Sample(tokens, np.full(len(tokens), -1.0, np.float32), Versions(0, 0), Stop.END)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...


def runner(
    family: Walks, agent: Any = None, on_episode: Any = lambda episode: None, dice: Dice | None = None, **rollout: Any
) -> Runner:
    config = Rollout(limits=Limits(turns=9), **({"retries": 0, "max_error_rate": 1.0} | rollout))
    return Runner(config, family, agent or Plain(), renderer(), dice or Dice(), 4096, 0, on_episode)


def play(family: Walks, rule: Any, size: int = 2, **options: Any) -> Group:
    return asyncio.run(play_trees(runner(family, **options), rule, TASK, 5, size, PARAMS, "rl/5/0"))


def played(group: Group) -> Any:
    """What was played, without the time that it took."""
    return content([replace(e, seconds=0.0) for e in group.episodes])


def ways(group: Group) -> list[list[str]]:
    return [[turn.message.text for turn in e.trajectories[0].turns if turn.message] for e in group.episodes]


def lambda_rule(function: Any, leaves: int = 8) -> Any:
    """A rule that is this function."""

    @dataclass(frozen=True)
    class Rule:
        leaves: int

        def __call__(self, point: BranchPoint) -> list[Fork]:
            return function(point)

    return Rule(leaves)
