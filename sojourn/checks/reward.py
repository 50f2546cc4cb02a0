"""Checks a reward on synthetic groups: its scores fit the trajectories, and depend on nothing but the group."""

from __future__ import annotations

import asyncio
import copy
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sojourn.abilities import BindsModels, BindsTurnModel, task_data
from sojourn.checks import played
from sojourn.checks.promise import BrokenError, Promise, judge_all_awaited, require_config
from sojourn.checks.report import Report
from sojourn.checks.synthetic import content
from sojourn.composite import replaced_bases, with_bases
from sojourn.errors import ConfigError, RewardError
from sojourn.models.asking import Answer, AskedModels, Weighed
from sojourn.rewards.reward_cache import score_group
from sojourn.types import Group, Message, Score

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    reward: Any

    async def score(self, group: Group) -> list[Score]:
        return await scored(self.bound(), group)

    def bound(self) -> Any:
        """Returns a copy of the reward; one that asks models asks a stand-in."""
        return _bound(copy.deepcopy(self.reward))

    def groups(self, made: Sequence[Group] | None = None) -> list[Group]:
        """Returns groups whose tasks have the data that the reward reads."""
        data = {key: "north" for one in with_bases([self.reward]) for key in task_data(one)}
        made = played.groups() if made is None else made
        return [replace(group, task=replace(group.task, data={**group.task.data, **data})) for group in made]


def _bound(reward: Any) -> Any:
    reward = replaced_bases(reward, _bound)
    if isinstance(reward, BindsTurnModel):
        return reward.bind_turn_model(TurnStandIn())
    if not isinstance(reward, BindsModels):
        return reward
    return reward.bind_models(AskedModels(dict.fromkeys(reward.asks, StandIn(reward.example_answer))))


@dataclass(frozen=True)
class StandIn:
    """Answers in the place of a model, as the reward says that one might."""

    answer: Callable[[Sequence[Message]], str]

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer:
        return Answer(self.answer(messages), 0, 0)

    async def weigh(self, messages: Sequence[Message], answers: Sequence[str], *, seed: int) -> Weighed:
        """Returns probabilities that follow from the question alone."""
        weights = np.arange(1, len(answers) + 1) ** (zlib.crc32(messages[-1].text.encode()) % 5)
        return Weighed(tuple((weights / weights.sum()).tolist()), 0)


class TurnStandIn:
    """Gives values in the place of a reward model, which follow from the sampled tokens alone."""

    async def ends(self, group: Group) -> list[list[float]]:
        return [
            [float(np.sin(turn.sample.tokens.sum())) if len(turn.sample.tokens) else np.nan for turn in one.turns]
            for one in group.trajectories
        ]


async def scored(reward: Any, group: Group) -> list[Score]:
    """Returns the scores as a run takes them; what a run refuses breaks the promise."""
    try:
        return await score_group(reward, group)
    except (ConfigError, RewardError) as error:
        raise BrokenError(str(error)) from error


async def check_reward(component: Any, *, timeout_s: float = 60.0) -> Report:
    """Returns the verdicts on a reward; each promise has `timeout_s`."""
    return Report(type(component).__name__, await judge_all_awaited(PROMISES, Case(component), timeout_s))


async def _declares(case: Case) -> str:
    return require_config(case.reward)


async def _scores(case: Case) -> str:
    return await _sound(case, case.groups(played.groups(played.SHAPES[:2])))


async def _cut(case: Case) -> str:
    return await _sound(case, case.groups(played.groups(played.SHAPES[2:])))


async def _failures(case: Case) -> str:
    return await _sound(case, case.groups(played.broken_groups()))


async def _deterministic(case: Case) -> str:
    for group in case.groups():
        _require_same(await case.score(group), await case.score(group), "the same group, scored again")
    return "the same group, the same scores"


async def _together(case: Case) -> str:
    """Checks that groups which are scored at the same time do not affect each other, as slots score their own."""
    groups, reward = case.groups(), case.bound()
    alone = [await case.score(group) for group in groups]
    for expected, found in zip(alone, await asyncio.gather(*(scored(reward, group) for group in groups)), strict=True):
        _require_same(expected, found, "with other groups scored at the same time")
    return f"{len(groups)} groups"


async def _permutes(case: Case) -> str:
    rng = np.random.default_rng(0)
    for group in case.groups():
        scores = await case.score(group)
        for _ in range(3):
            order = rng.permutation(len(group.episodes)).tolist()
            found = await case.score(played.permuted(group, order))
            _require_same([scores[number] for number in order], found, "with the group's episodes in another order")
    return "3 orders"


async def _leaves_inputs(case: Case) -> str:
    for group in case.groups():
        before = content(group)
        await case.score(group)
        if content(group) != before:
            raise BrokenError("the group is not what it was before the call: give a score as a new value")
    return "groups"


async def _sound(case: Case, groups: Sequence[Group]) -> str:
    count = 0
    for group in groups:
        for score in await case.score(group):
            if not np.issubdtype(score.turns.dtype, np.floating) or score.turns.ndim != 1:
                raise BrokenError(
                    f"rewards of type {score.turns.dtype} and shape {score.turns.shape} in slot {group.slot}: expected "
                    "floating-point numbers, one for each turn"
                )
            count += 1
    return f"{count} trajectories"


def _require_same(expected: Sequence[Score], found: Sequence[Score], when: str) -> None:
    for was, now in zip(expected, found, strict=True):
        gap = np.abs(np.append(was.turns, was.result) - np.append(now.turns, now.result))
        if gap.max() > TOLERANCE or was.parts.keys() != now.parts.keys():
            raise BrokenError(f"{when}, a trajectory has {_shown(now)}, but it had {_shown(was)}")


def _shown(score: Score) -> str:
    return f"rewards of {score.turns.tolist()} and the outcome {score.result:g}"


SCORED = ("there is a score for every trajectory",)
SOUND = (*SCORED, "truncated, malformed and forked trajectories are scored")
PROMISES = (
    Promise("a config can name it", (), _declares),
    Promise(SCORED[0], (), _scores),
    Promise(SOUND[1], SCORED, _cut),
    Promise("failures and other seats are left out", SCORED, _failures),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("groups are scored apart", (*SOUND, "it is deterministic"), _together),
    Promise("permuting episodes permutes scores", (*SOUND, "it is deterministic"), _permutes),
    Promise("its inputs are not modified", SOUND, _leaves_inputs),
)
