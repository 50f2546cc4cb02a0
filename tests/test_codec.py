"""What facts become as plain data, and what they are when they come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from sojourn.checks.env.other_process import _data, _events
from sojourn.checks.env.play import Event
from sojourn.codec import VERSION, from_plain, message_to_plain, to_json, to_plain
from sojourn.errors import RecordError
from sojourn.record.episodes import step_file
from sojourn.record.episodes.step_file import Record, StepFile
from sojourn.types import Episode, Message, Observation, Role, Task, Tool, ToolCall


class Name(str):
    """A text of a world's own."""


CALL = ToolCall("click", {"x": 3, "deep": [{"y": None}]}, "call_1")
FACTS = [
    Task("toy", {"rooms": 2, "names": ["a", "\ud800"]}, 7, "train", ("hard", "long")),
    Tool("click", "Clicks.", {"type": "object", "properties": {"x": {"type": "integer"}}}),
    Message(Role.USER),
    Message(Role.ASSISTANT, "hi", "hm", ("0" * 64,), (CALL, ToolCall("done", {})), None),
    Message(Role.TOOL, "ok", answers=""),
    Observation((Message(Role.USER, "go"),), (Message(Role.SYSTEM, "play"),), (Tool("a", "", {}),), ("x",), "second"),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_facts_come_back_as_they_were(fact: Any):
    assert from_plain(json.loads(to_json(to_plain(fact))), type(fact)) == fact


def test_a_message_is_written_without_what_it_does_not_have():
    assert message_to_plain(Message(Role.USER)) == {"role": "user", "text": ""}
    assert message_to_plain(Message(Role.TOOL, "ok", answers="")) == {"role": "tool", "text": "ok", "answers": ""}
    assert message_to_plain(Message(Role.ASSISTANT, calls=(CALL,)))["calls"] == (vars(CALL),)


def test_values_of_a_world_become_plain_ones():
    data: Mapping[str, Any] = MappingProxyType(
        {"n": np.int64(3), "x": np.float32(0.5), "f": np.float64(2), "s": Name("a")}
    )
    plain = to_plain(Task("toy", data, 0, "train"))["data"]
    assert plain == {"n": 3, "x": 0.5, "f": 2.0, "s": "a"}
    assert [type(value) for value in plain.values()] == [int, float, float, str]


@pytest.mark.parametrize("value", [object(), b"bytes", 1j])
def test_what_json_cannot_hold_is_refused_by_its_type(value: object):
    with pytest.raises(RecordError, match=f"a {type(value).__name__}, which JSON cannot hold"):
        to_json(to_plain(Task("toy", {"x": value}, 0, "train")))


def test_a_wrong_value_is_named_by_its_path():
    data = to_plain(Message(Role.ASSISTANT, calls=(CALL,)))
    data["calls"][0]["name"] = 3
    with pytest.raises(ValueError, match=r"Expected `str`, got `int` - at `\$.calls\[0\].name`"):
        from_plain(data, Message)


def test_a_record_of_a_later_layout_is_refused(tmp_path, monkeypatch):
    record = Record(Episode("e", Task("toy", {}, 0, "train"), ()))
    path = tmp_path / "step.npz"
    monkeypatch.setattr(step_file, "VERSION", VERSION + 1)
    step_file.write(path, [record], [{}])
    with StepFile(path) as file:
        assert file.record(0) == record
    monkeypatch.undo()
    with StepFile(path) as file, pytest.raises(RecordError, match="layout is version 2, this Sojourn reads up to 1"):
        file.record(0)


def test_events_of_another_process_are_those_of_this_one():
    """System messages, tools and choices of an observation included."""
    event = Event("agent", None, FACTS[-1], {"agent": 0.5}, True, False, "")
    assert _events(_data([event])) == [event]
