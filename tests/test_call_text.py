"""A tool call is written in one way wherever people read it: in the terminal, in the viewer, and in a match."""

import ast
from pathlib import Path

import numpy as np
import pytest

from sojourn.arena.match_display import message_line
from sojourn.call_text import call_text, written_call
from sojourn.record.search.fts_documents import passages
from sojourn.types import Ending, Episode, Message, Role, Sample, Stop, Task, Tool, ToolCall, Trajectory, Turn, Versions
from sojourn.view.message_text import message_text

CALL = ToolCall("look", {"at": "the door\nin front", "n": 2, "twice": True})
SAID = Message(Role.ASSISTANT, calls=(CALL,))
TEXT = "look(at='the door\\nin front', n=2, twice=True)"


def test_a_call_is_written_as_in_python():
    assert call_text(CALL) == message_line(SAID) == message_text(SAID).strip() == TEXT


@pytest.mark.parametrize("argument", ["1e999", r"'\ud800'", "{1}"])
def test_a_call_with_what_json_cannot_hold_is_none(argument):
    look = Tool("look", "Look.", {"type": "object", "properties": {"at": {}}})
    assert written_call("look('door')", [look]) == ToolCall("look", {"at": "door"})
    assert written_call(f"look({argument})", [look]) is None


def test_a_search_finds_the_words_of_an_argument():
    """With an escape in their place, the line break and the word after it would be one word."""
    sample = Sample(np.zeros(0, np.int64), np.zeros(0, np.float32), Versions(0, 0), Stop.END)
    turn = Turn(-1, np.zeros(0, np.int64), sample, SAID)
    episode = Episode("e", Task("toy", {}, 0, "train"), (Trajectory("agent", (turn,), Ending.DONE),))
    [found] = passages(episode)
    assert found.text == "look(at=the door\nin front, n=2, twice=True)"


def test_no_other_place_writes_calls():
    root = Path(__file__).parent.parent / "sojourn"
    files = [path for path in root.rglob("*.py") if path.name != "call_text.py"]
    joined = [
        path.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr) and ".arguments.items()" in ast.unparse(node)
    ]
    assert joined == []
