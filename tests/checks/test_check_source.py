"""Every source of ours keeps its promises; every broken one here breaks one, and that one is reported."""

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sojourn.checks.report import Outcome
from sojourn.checks.source import PROMISES, check_source
from sojourn.sources.experts import Experts
from sojourn.sources.folder import Folder
from sojourn.sources.slots import Slots

SIZE = "groups have the size that it declares"


@pytest.mark.parametrize(
    "source",
    [
        Slots(width=2, size=2),
        Slots(width=1, size=2, max_lag=2),
        Slots(width=1, size=2, zero_signal="redraw", max_redraws=1, exhausted="keep"),
        Experts(width=2, distinct_tasks=3, success_only=False),
    ],
)
async def test_ours_keep_every_promise(source):
    report = await check_source(source)
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


async def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    report = await check_source(Folder(path=str(tmp_path), stage="rl"))
    assert report.failed == ("it is bound to a stage",)
    assert "no recorded episodes there" in report["it is bound to a stage"].detail


@dataclass
class Playing:
    """Plays the groups of a step when it is asked for them; the broken ones change one thing."""

    config: Any
    context: Any
    first: int

    async def take(self, step):
        slots = range(step * self.config.width, (step + 1) * self.config.width)
        return [await self.play(slot) for slot in slots]

    async def play(self, slot, label="played"):
        task = self.context.curriculum.draw(self.first + slot)
        return await self.context.runner.play_group(task, slot, 2, self.context.params, f"{label}/{slot}")

    async def close(self):
        pass


class Episodes(Playing):
    async def take(self, step):
        return [episode for group in await super().take(step) for episode in group.episodes]


class More(Playing):
    async def take(self, step):
        return [*await super().take(step), await self.play(99)][: self.config.width + 1]


class Empty(Playing):
    async def play(self, slot, label="played"):
        return replace(await super().play(slot), episodes=())


class OfAnOrigin(Playing):
    async def play(self, slot, label="played"):
        return replace(await super().play(slot), origin="shown")


class FromTheStart(Playing):
    async def play(self, slot, label="played"):
        self.first = 0
        return await super().play(slot)


CALLS = itertools.count()


class Random(Playing):
    async def play(self, slot, label="played"):
        return await super().play(slot, str(next(CALLS)))


class Counting(Playing):
    """Counts the steps by itself, and begins again after a restart."""

    asked = 0

    async def take(self, step):
        self.asked += 1
        return await super().take(self.asked - 1)


class Leaving(Playing):
    async def take(self, step):
        self.waiting = asyncio.create_task(asyncio.sleep(60))
        return await super().take(step)


@dataclass(frozen=True)
class Config:
    cls: type = Playing
    width: int = 2
    live: object = True

    def tasks(self, steps):
        return self.width * steps

    def bind(self, context, stage, steps, first=0):
        return self.cls(self, context, first)


@dataclass(frozen=True)
class WithOrigin(Config):
    origin: str = "shown"


@dataclass(frozen=True)
class Sized(Config):
    size: int = 3


async def test_a_sound_one_passes():
    report = await check_source(Config())
    odd = {v.promise: v.outcome for v in report.verdicts if v.outcome is not Outcome.PASSED}
    assert odd == {SIZE: Outcome.NOT_OFFERED}


@pytest.mark.parametrize(
    ("broken", "promise", "words"),
    [
        (Config(width=0), "it declares what a stage asks", "width = 0"),
        (Config(live="yes"), "it declares what a stage asks", "live = 'yes'"),
        (Config(Episodes), "a step gets groups", "expected a list of groups"),
        (Config(More, width=1), "a step gets groups", "2 groups, where width = 1"),
        (Config(Empty), "a step gets groups", "the group of slot 0 has no episodes"),
        (Config(OfAnOrigin), "a step gets groups", "has the origin 'shown', where the source declares 'policy'"),
        (WithOrigin(), "a step gets groups", "has the origin 'policy', where the source declares 'shown'"),
        (Config(FromTheStart), "it draws its own tasks of the curriculum", "it drew slot 0: with first = 5"),
        (Config(Random), "it is deterministic", "bound twice, it gives other groups at step 0"),
        (Config(Counting), "it resumes", "resumed after two steps, it gives other groups at step 2"),
        (Sized(), SIZE, "size = 3, but slot 0 has 2 episodes"),
        (Config(Leaving), "it closes", "there still runs the task"),
    ],
)
async def test_a_broken_source_is_caught(broken, promise, words):
    report = await check_source(broken)
    assert report.failed == (promise,)
    assert words in report[promise].detail
