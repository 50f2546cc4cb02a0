"""What the worlds of people tell of their turns serves the rewards and the estimator that read it."""

from __future__ import annotations

import numpy as np
import pytest
from people_at_play import enter, say

from sojourn.credit.papers.vsc import VSC
from sojourn.errors import ActionError
from sojourn.rewards.tool_use import ToolUse
from sojourn.rewards.verified import Verified
from sojourn.streams.information_gain import InformationGain
from sojourn.types import Ending, Group, Trajectory, Turn
from sojourn_worlds.clarify import Clarify
from sojourn_worlds.clinic import Clinic
from sojourn_worlds.devices import Devices
from sojourn_worlds.service import Service
from tests.made import group, sample, score

WORLDS = [Clarify(), Clinic(bias="withholding"), Devices(requests=3), Service()]


async def played(family, index: int, first: tuple[str, ...] = ()) -> Trajectory:
    """The expert's play after some other actions, as a rollout keeps it."""
    env = enter(family, index)
    await env.start()
    turns: list[Turn] = []
    queue = list(first)
    while True:
        said = say(queue.pop(0) if queue else env.expert())
        try:
            step = await env.step("agent", said)
        except ActionError:
            turns.append(Turn(len(turns) - 1, np.arange(3), sample([1, 2]), said, 0.0, {"malformed": 1.0}))
            continue
        paid = step.rewards.get("agent", 0.0)
        turns.append(Turn(len(turns) - 1, np.arange(3), sample([1, 2]), said, paid, dict(step.info)))
        if step.done:
            return Trajectory("agent", tuple(turns), Ending.DONE)


async def group_of(family, first: tuple[str, ...] = ()) -> Group:
    return group([await played(family, index, first) for index in range(20)])


def named(family) -> str:
    return type(family).__name__.lower()


@pytest.mark.parametrize("family", WORLDS, ids=named)
async def test_the_expert_s_calls_are_worth_more_than_others(family) -> None:
    reward = ToolUse(ignored_tools=("say", "finish"))
    parts = [judged.parts["tool_use"] for judged in await reward(await group_of(family))]
    wrong = {
        "clarify": tuple(f'ask("{n}")' for n in ("size", "milk", "colour", "cut", "payment", "bed", "ink", "frame")),
        "clinic": ('ask("cough")', 'ask("cough")', 'ask("fever")', 'ask("fever")'),
        "devices": ('look("lamp")', "change_seat_heating(9)", "set_moon(1)", 'set_lamp_power("maybe")'),
        "service": ('get_order("W0000")', 'get_product("mug")', 'get_product("mug")', 'transfer("W1")'),
    }[named(family)]
    worse = [judged.parts["tool_use"] for judged in await reward(await group_of(family, wrong))]
    assert np.mean(parts) > 0.6  # patients do not answer everything: 0.66 over 300 tasks of clinic
    assert np.mean(worse) < np.mean(parts) - 0.3


async def test_only_plays_without_a_wrong_turn_are_verified() -> None:
    good = [judged.total for judged in await Verified()(await group_of(Service(denied=0.0)))]
    assert good == [1.0] * 20
    family = Clarify(attributes=2, given=0.0, indifferent=0.0, dependent=False)
    assert [judged.total for judged in await Verified()(await group_of(family))] == [1.0] * 20
    twice = []
    for index in range(5):
        env = enter(family, index)
        question = env.expert()
        judged = await Verified()(group([await played(family, index, (question, question))]))
        twice.append((judged[0].total, judged[0].parts["passed"]))
    assert twice == [(0.0, 1.0)] * 5  # paid, but one of its questions was in vain


@pytest.mark.parametrize("family", WORLDS, ids=named)
async def test_subgoals_end_segments(family) -> None:
    plays = [play for play in (await group_of(family)).trajectories if len(play.turns) > 2]
    reached = [VSC()._reached(play, score(play, play.reward)) for play in plays]
    assert all(segments[-1] == 1 for segments in reached)
    assert np.mean([segments[:-1].mean() for segments in reached]) > 0.3
    assert np.mean([segments[:-1].mean() for segments in reached]) <= 1


@pytest.mark.parametrize("family", WORLDS, ids=named)
def test_every_task_has_its_answer(family) -> None:
    for split in ("train", "test"):
        for index in range(20):
            task = family.tasks(split)[index]
            assert InformationGain().task_data <= set(task.data)
            assert InformationGain()._answer(task).strip()
