"""Where an action clicked, as an episode's page draws it."""

from __future__ import annotations

import pytest

from sojourn.types import Message, Role, ToolCall
from sojourn.view.images import click_position


@pytest.mark.parametrize(
    ("message", "position"),
    [
        (Message(Role.ASSISTANT, "", calls=(ToolCall("click", {"x": 3, "y": 4.5}),)), (3.0, 4.5)),
        (Message(Role.ASSISTANT, "click(x=3, y=4)"), (3.0, 4.0)),
        (Message(Role.ASSISTANT, "", calls=(ToolCall("click", {"x": int("1" * 400), "y": 4}),)), None),
        (Message(Role.ASSISTANT, f"click({'1' * 400}, 4)"), None),
        (None, None),
    ],
)
def test_a_click_is_where_its_numbers_say_and_nowhere_where_they_are_none(message, position) -> None:
    assert click_position(message) == position
