"""Evaluation: a fixed panel of tasks, decided by the config alone, played by the current weights."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sojourn.types import Group, Score

if TYPE_CHECKING:
    from sojourn.rig import Rig


@dataclass(frozen=True)
class Evaluated:
    groups: list[Group]
    scores: list[list[Score]]


async def evaluate(rig: Rig, label: str, expert: bool = False) -> Evaluated:
    """Plays the recipe's panel. The same seeds of sampling are used every time, so two policies meet the same luck."""
    config = rig.recipe.evaluation
    panel = rig.family.tasks(config.split)[: config.tasks]
    params = replace(rig.sampling.params(), temperature=config.temperature, top_p=config.top_p)
    plays = [
        rig.runner.group(task, slot, config.samples, params, f"{label}/{slot}", expert=expert)
        for slot, task in enumerate(panel)
    ]
    groups = await asyncio.gather(*plays)
    scores = await asyncio.gather(*(rig.judge.reward(group) for group in groups))
    return Evaluated(list(groups), list(scores))
