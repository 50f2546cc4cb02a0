"""What the model is shown of the user's own instructions."""

from __future__ import annotations

import pytest
from test_return_conditioned import shown, sit

from sojourn.agents.instructed import Instructed
from sojourn.agents.plain import Plain
from sojourn.config.registry import build
from sojourn.errors import ConfigError


@pytest.mark.parametrize("history", ["full", "page"])
async def test_instructions_end_the_system_message_of_every_context(history):
    seat, sampler = sit(Instructed(text="Say one word.", base=Plain(history=history)))
    await seat.act(shown("One.", "Play."))
    await seat.act(shown("Two."))
    assert ["<|im_start|>system\nPlay. Say one word.<|im_end|>" in prompt for prompt in sampler.prompts] == [True, True]
    assert [prompt.count("Say one word.") for prompt in sampler.prompts] == [1, 1]


async def test_a_world_without_a_system_message_gets_one():
    seat, sampler = sit(Instructed(text="Say one word."))
    await seat.act(shown("One."))
    assert sampler.prompts[0].startswith("<|im_start|>system\nSay one word.<|im_end|>")


@pytest.mark.parametrize(("table", "message"), [({}, "text' is missing"), ({"text": " "}, "a text that is not empty")])
def test_an_agent_without_instructions_is_refused(table, message):
    with pytest.raises(ConfigError, match=message):
        build("agent", {"name": "instructed", **table})
