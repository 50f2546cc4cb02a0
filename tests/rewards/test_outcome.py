"""What a score says of the outcome alone, where penalties or shaping are in its reward."""

from dataclasses import replace

import numpy as np
from cases import group, trajectory

from sojourn.rewards.native import Native
from sojourn.rewards.overlong import Overlong
from sojourn.rewards.shaped import Shaped
from sojourn.rewards.tool_use import ToolUse
from sojourn.rewards.verified import Verified
from sojourn.types import Ending, Message, Role, Score


def line(length, reward, *, progress=0.0, malformed=0.0, ending=Ending.DONE):
    made = trajectory([length], infos=[{"progress": progress, "malformed": malformed}])
    said = Message(Role.ASSISTANT, 'find("a")')
    return replace(made, turns=(replace(made.turns[0], reward=reward, message=said),), ending=ending)


async def test_no_penalty_and_no_shaping_is_in_the_outcome():
    made = group(line(4, 1.0), line(40, 1.0, progress=0.5, malformed=1.0, ending=Ending.TURNS))
    for reward in (
        Native(malformed=-0.5),
        Native(truncated=-0.5),
        Overlong(max_tokens=20, buffer_tokens=10),
        Overlong(base=Native(malformed=-0.5), max_tokens=20, buffer_tokens=10),
        Shaped(),
        Shaped(base=Overlong(max_tokens=20, buffer_tokens=10)),
        ToolUse(),
    ):
        judged = await reward(made)
        assert len({score.total for score in judged}) == 2, reward
        assert [score.result for score in judged] == [1, 1], reward


async def test_without_either_the_total_is_the_outcome():
    made = group(line(4, 1.0), line(4, 0.25))
    for reward in (Native(), Native(scale=2.0), Verified()):
        judged = await reward(made)
        assert [score.result for score in judged] == [score.total for score in judged]
    assert Score(np.array([1, 2], dtype=np.float32)).result == 3
