"""Which turn an action in text carries out, where another conversation spoke since."""

import pytest

from sojourn.types import ToolCall
from tests.gateway_sessions import LOOK, asked, replies, said, session, user


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
    await one.reply(asked(user("Go"), tools=[LOOK]))
    await one.reply(asked(user("Name this"), tools=[LOOK]))
    assert one.placement.turn_of(said("go north ")) == turn
    assert one.placement.turn_of(said("")) == 1


@pytest.mark.parametrize("name", ["look", "mcp__world__look", "world.look", "world-look", "world:look"])
async def test_a_tool_whose_name_ends_alike_is_another(name):
    made = [ToolCall(one, {"at": "door"}) for one in (name, "overlook")]
    one, _ = session(replies(*(said("", "", call) for call in made)))
    await one.reply(asked(user("Go"), tools=[LOOK]))
    await one.reply(asked(user("And a tool of the client's own"), tools=[LOOK]))
    assert one.placement.turn_of(said("", "", ToolCall("look", {"at": "door"}))) == 0
