"""Conversations of other programs: whatever shape they have, the same messages are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sojourn.errors import RecordError
from sojourn.record.export import read
from sojourn.record.export.conversations import Conversation
from sojourn.types import Message, Role, Tool, ToolCall

ADDING = (
    Message(Role.SYSTEM, "Add."),
    Message(Role.USER, "1 and 2?"),
    Message(Role.ASSISTANT, calls=(ToolCall("add", {"x": 1, "y": 2}),)),
    Message(Role.TOOL, "3"),
    Message(Role.ASSISTANT, "It is 3."),
)
ADD = Tool("add", "Adds.", {"type": "object"})
DECLARED = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
CHAT = [
    {"role": "user", "content": "1 and 2?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": '{"x": 1, "y": 2}'}}]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
]
SHAREGPT = [
    {"from": "human", "value": "1 and 2?"},
    {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1, "y": 2}}'},
    {"from": "observation", "value": "3"},
    {"from": "gpt", "value": "It is 3."},
]
BESIDE = {"system": "Add.", "tools": [DECLARED], "reward": 0.5, "success": True}
RECORDS: dict[str, dict[str, Any]] = {
    "messages": {"messages": CHAT, **BESIDE},
    "sharegpt": {"conversations": SHAREGPT, **BESIDE},
    "sharegpt with its system message": {
        **BESIDE, "system": "", "conversations": [{"from": "system", "value": "Add."}, *SHAREGPT]
    },
    "tools as a JSON text": {"conversations": SHAREGPT, **BESIDE, "tools": json.dumps([DECLARED])},
    "conversations of chat messages": {"conversations": CHAT, **BESIDE},
    "prompt and completion": {"prompt": CHAT[:1], "completion": CHAT[1:], **BESIDE},
}  # fmt: skip


def lines(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def listed(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    """As ShareGPT's files are: one list, over many lines, with the mark that Windows editors write first."""
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(records, indent=1).encode())
    return path


def table(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    """A row for each record; the columns and struct fields that a record lacks are null."""
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pq.write_table(pa.Table.from_pylist(list(records)), path)
    return path


def conversations(path: Path) -> list[Conversation]:
    found = list(read(path))
    assert all(isinstance(one, Conversation) for one in found)
    return [one for one in found if isinstance(one, Conversation)]


@pytest.mark.parametrize("write", [lines, listed, table])
@pytest.mark.parametrize("name", RECORDS)
def test_every_shape_gives_the_same_messages(tmp_path: Path, name: str, write: Any):
    first, second = conversations(write(tmp_path / "in", [RECORDS[name], {**RECORDS[name], "success": False}]))
    assert first.messages == ADDING
    assert first.imitated == {2, 4}
    assert first.tools == (ADD,)
    assert (first.reward, first.success, second.success) == (0.5, True, False)
    assert first.task == second.task  # they begin alike


def test_texts_are_a_question_and_its_answer_and_only_completions_are_learnt(tmp_path: Path):
    spoken = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, CHAT[0]]
    records = [{"prompt": "1 and 2?", "completion": "3"}, {"prompt": spoken, "completion": CHAT[3:]}]
    texts, chats = conversations(lines(tmp_path / "in", records))
    assert texts.messages == (Message(Role.USER, "1 and 2?"), Message(Role.ASSISTANT, "3"))
    assert texts.imitated == {1}
    assert chats.imitated == {3}


def test_a_call_after_words_is_of_the_same_turn_and_several_calls_are_one_message(tmp_path: Path):
    value = json.dumps([{"name": "add", "arguments": {"x": 1}}, {"name": "add", "arguments": '{"x": 2}'}])
    turns = [SHAREGPT[0], {"from": "gpt", "value": "So:"}, {"from": "function_call", "value": value}]
    (found,) = conversations(lines(tmp_path / "in", [{"conversations": turns}]))
    calls = (ToolCall("add", {"x": 1}), ToolCall("add", {"x": 2}))
    assert found.messages[1:] == (Message(Role.ASSISTANT, "So:", calls=calls),)


@pytest.mark.parametrize("write", [lines, table])
def test_a_message_of_weight_0_is_context_in_every_shape(tmp_path: Path, write: Any):
    said = {"from": "gpt", "value": "no", "weight": 0}
    turns = [SHAREGPT[0], said, SHAREGPT[0], {"from": "gpt", "value": "yes"}]
    chats = [CHAT[0], {**CHAT[3], "weight": 0}, CHAT[0], CHAT[3]]
    for record in ({"conversations": turns}, {"messages": chats}, {"conversations": chats}):
        (found,) = conversations(write(tmp_path / "in", [record]))
        assert found.imitated == {3}


WORSE = [*CHAT[:3], {"role": "assistant", "content": "It is 4."}]


@pytest.mark.parametrize("write", [lines, listed, table])
def test_a_preference_is_two_plays_of_one_task(tmp_path: Path, write: Any):
    """The same preference with its prompt named, and as two whole chats, whose common beginning is the prompt."""
    named = {"prompt": CHAT[:3], "chosen": CHAT[3:], "rejected": WORSE[3:], "system": "Add.", "tools": [DECLARED]}
    whole = {"chosen": CHAT, "rejected": WORSE, "system": "Add.", "tools": [DECLARED]}
    for record in (named, whole):
        better, worse, third, _ = conversations(write(tmp_path / "in", [record, {**record, "system": "Sum."}]))
        assert better.messages == ADDING
        assert worse.messages == (*ADDING[:-1], Message(Role.ASSISTANT, "It is 4."))
        assert better.imitated == worse.imitated == {4}
        assert (better.reward, better.success, worse.reward, worse.success) == (1.0, True, 0.0, False)
        assert better.tools == worse.tools == (ADD,)
        assert better.task == worse.task != third.task


def test_preferences_of_texts_may_have_scores_and_those_with_one_prompt_are_of_different_tasks(tmp_path: Path):
    first = {"prompt": "1 and 2?", "chosen": "3", "rejected": "4", "score_chosen": 8.5, "score_rejected": 2}
    better, worse, third, _ = conversations(lines(tmp_path / "in", [first, {**first, "rejected": "5"}]))
    assert (better.messages[-1].text, worse.messages[-1].text) == ("3", "4")
    assert (better.reward, worse.reward) == (8.5, 2.0)
    assert better.task == worse.task != third.task


def test_a_label_says_whether_a_completion_was_good(tmp_path: Path):
    records = [{"prompt": "1 and 2?", "completion": "3", "label": label} for label in (True, False, "maths")]
    good, bad, other = conversations(lines(tmp_path / "in", records))
    assert (good.reward, good.success, bad.reward, bad.success) == (1.0, True, 0.0, False)
    assert (other.reward, other.success) == (0.0, None)  # a word of another meaning


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"chosen": "a", "rejected": "b"}, "chosen is 'a' without a prompt, not a list of chat messages: expected"),
        ({"prompt": "a", "chosen": "b"}, "has no 'rejected': expected"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are the same: none is preferred"),
        ({"messages": [CHAT[0], {**CHAT[3], "weight": -1}]}, "weight is '-1', neither 1 .learnt. nor 0 .context only."),
        ({"conversations": [SHAREGPT[0], {**SHAREGPT[3], "weight": 0.5}]}, "weight is '0.5', neither 1"),
    ],
)
def test_what_prefers_nothing_or_is_weighed_otherwise_is_refused(tmp_path: Path, record: Any, said: str):
    with pytest.raises(RecordError, match=f"in:1: {said}"):
        conversations(lines(tmp_path / "in", [record]))
