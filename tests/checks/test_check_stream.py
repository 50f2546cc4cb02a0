"""Every stream of ours keeps its promises; every broken one here breaks one, and that one is reported."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from sojourn.checks.report import Outcome
from sojourn.checks.stream import PROMISES, check_stream
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.losses.reinforce import Reinforce

LEARNS, MEMORY = "it learns from every step", "its memory is saved"


@pytest.mark.parametrize("name", COMPONENTS["stream"])
async def test_ours_keep_every_promise(name):
    more = {"utterance_advantage": {"updates": 5}}
    report = await check_stream(build("stream", {"name": name, **more.get(name, {})}).value)
    odd = {v.promise: v.outcome for v in report.verdicts if v.outcome is not Outcome.PASSED}
    assert odd in ({}, {LEARNS: Outcome.NOT_OFFERED, MEMORY: Outcome.NOT_OFFERED}), report.verdicts
    assert len(report.verdicts) == len(PROMISES)


@dataclass(frozen=True)
class Sound:
    """The number of each turn in its trajectory; the broken ones change one thing."""

    provides = "number"
    reference = False

    async def __call__(self, context):
        return [[self.of(t) for t in group.trajectories] for group in context.groups]

    def of(self, t):
        return tuple(np.full(len(turn.sample.tokens), n, dtype=np.float32) for n, turn in enumerate(t.turns))


class Nameless(Sound):
    provides = "My Number"


class PerTurn(Sound):
    def of(self, t):
        return tuple(np.zeros(1, dtype=np.float32) for _ in t.turns)


class Infinite(Sound):
    def of(self, t):
        return tuple(np.log(values * 0) for values in super().of(t))


class PerEpisode(Sound):
    async def __call__(self, context):
        return [[self.of(episode.trajectories[0]) for episode in group.episodes] for group in context.groups]


class Random(Sound):
    def of(self, t):
        return tuple(values + random.random() for values in super().of(t))


class Places(Sound):
    async def __call__(self, context):
        found = await super().__call__(context)
        return [[tuple(v + n for v in turns) for n, turns in enumerate(some)] for some in found]


class Flattening(Sound):
    async def __call__(self, context):
        for some in context.scores:
            for score in some:
                score.turns[:] = 0
        return await super().__call__(context)


class Trains(Sound):
    async def __call__(self, context):
        batch, _ = context.flat
        if len(batch):
            ones = np.ones(len(batch), dtype=np.float32)
            await context.trainer.forward_backward(replace(batch, advantages=ones), [Reinforce()])
            await context.trainer.optim_step()
        return await super().__call__(context)


@dataclass(frozen=True)
class Learning(Sound):
    """Adds how many steps it has learned from."""

    seen: list = field(default_factory=list)

    def of(self, t):
        return tuple(values + len(self.seen) for values in super().of(t))

    async def learn(self, context) -> dict[str, Any]:
        self.seen.append(0)
        return {"steps": float(len(self.seen))}

    def state(self):
        return {"steps": len(self.seen)}

    def restore(self, state):
        self.seen[:] = [0] * state["steps"]


class Fails(Learning):
    async def learn(self, context):
        return {"error": float(np.mean([len(group.episodes) for group in context.groups] or [float("nan")]))} | (
            {} if context.groups else {"first": context.groups[0]}
        )


class Undefined(Learning):
    async def learn(self, context):
        return {"error": float("nan")}


class Forgets(Learning):
    def restore(self, state):
        """Forgets."""


@dataclass(frozen=True)
class NoState(Sound):
    seen: list = field(default_factory=list)

    async def learn(self, context):
        self.seen.append(0)
        return {}


@pytest.mark.parametrize("stream", [Sound(), Learning()])
async def test_a_sound_one_passes(stream):
    assert (await check_stream(stream)).passed


@pytest.mark.parametrize(
    ("broken", "promise", "words"),
    [
        (Nameless(), "it declares what it gives", "provides = 'My Number'"),
        (PerTurn(), "there is a number for every sampled token", "one number each"),
        (Infinite(), "there is a number for every sampled token", "expected finite numbers"),
        (PerEpisode(), "steps with failures are read", "group 0 has 3 trajectories to train, 4 entries"),
        (Random(), "it is deterministic", "the same step, read by another copy"),
        (Places(), "permuting episodes permutes its numbers", "in another order"),
        (Flattening(), "its inputs are not modified", "give numbers as a new value"),
        (Trains(), "the policy is not modified", "may train a model of its own"),
        (Fails(), LEARNS, "IndexError"),
        (Undefined(), LEARNS, "error = nan"),
        (Forgets(), MEMORY, "after state() and restore() in another one"),
        (NoState(), MEMORY, "offer state() and restore()"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
async def test_a_broken_stream_is_caught(broken, promise, words):
    report = await check_stream(broken)
    assert report.failed == (promise,)
    assert words in report[promise].detail
