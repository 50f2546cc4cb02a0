"""Which turn an action in text carries out, where another conversation spoke since."""

import pytest

from sojourn.types import ToolCall
from tests.gateway_sessions import asked, replies, said, session, user


@pytest.mark.parametrize(
    ("replied", "since", "turn"),
    [
        (said(" go north\n"), said("A title"), 0),
        (said("", "", ToolCall("mcp__world__act", {"text": "go north"})), said("A title"), 0),
        (said("go north"), said("Once more: go north"), 1),
        (said("I think: go north"), said("B"), 1),  # whatever a program makes of a reply is the latest's
        (said("go north"), said("go north"), 1),
        (said("", "", ToolCall("look", {"at": 3})), said("A title"), 1),
    ],
)
async def test_an_action_in_text_is_of_the_turn_that_said_it(replied, since, turn):
    one, _ = session(replies(replied, since))
    assert one.placement.turn_of(said("go north")) == -1
    await one.reply(asked(user("Go")))
    await one.reply(asked(user("Name this")))
    assert one.placement.turn_of(said("go north ")) == turn
    assert one.placement.turn_of(said("")) == 1
