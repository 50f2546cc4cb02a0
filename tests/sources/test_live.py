"""What a stage that learns from a live service is refused for."""

from dataclasses import replace

import pytest
from made_world import Odd, components, stage_of

from sojourn.errors import ConfigError
from sojourn.rewards.native import Native
from sojourn.rewards.next_state import NextState
from sojourn.sources.live import Live


async def test_what_people_say_is_not_counted_twice():
    """It is the turn's reward and its feedback."""
    stage = stage_of(components(Odd()), "rl")
    for reward in (NextState(base=Native()), NextState(base=Native(scale=0.5, malformed=-1.0))):
        with pytest.raises(ConfigError, match="stage 'rl': what people say of a turn is its reward, which native"):
            await Live().check(replace(stage, reward=reward))
    for reward in (Native(), NextState(), NextState(base=Native(scale=0.0, malformed=-1.0))):
        await Live().check(replace(stage, reward=reward))
