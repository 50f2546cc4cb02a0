"""A call is a call in whatever form it was said: in demonstrations, refusals, searches and exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made import chatml as renderer
from played_run import SUMS, Made, Script, replayed

from sojourn.call_text import written_call, written_name
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.export import export, read
from sojourn.record.export.conversations import Conversation
from sojourn.record.export.selection import Selection
from sojourn.replay import Verdict
from sojourn.types import Message, Role, Tool, ToolCall, Turn

BOTH, TEXT = {**SUMS, "form": "both"}, {**SUMS, "form": "text"}
ADD = Tool("add", "", {"properties": {"x": {}, "y": {}}, "required": ["x", "y"]})


def turns_of(path: Path) -> list[Turn]:
    with EpisodeStore(path) as store:
        return list(next(store.groups("rl")).episodes[0].trajectories[0].turns)


def exported(path: Path, out: Path, format: str) -> list[dict[str, Any]]:
    export(path, out, format, Selection())
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_native_demonstrations_are_structured_calls_and_their_results_are_a_tools(tmp_path: Path):
    add, submit = turns_of(Made(SUMS).run(tmp_path / "run"))
    assert add.message is not None
    assert submit.message is not None
    assert (add.message.text, [call.name for call in add.message.calls]) == ("", ["add"])
    assert set(add.message.calls[0].arguments) == {"x", "y"}
    assert [(m.role, m.answers) for m in submit.observed] == [(Role.TOOL, "add")]
    assert [call.name for call in submit.message.calls] == ["submit"]
    assert "<tool_response>" in renderer().decode(submit.context)


@pytest.mark.parametrize("world", [BOTH, TEXT], ids=["both", "text"])
def test_where_calls_may_be_written_demonstrations_write_them(tmp_path: Path, world: dict[str, str]):
    add, submit = turns_of(Made(world).run(tmp_path / "run"))
    assert add.message is not None
    assert (add.message.text.partition("(")[0], add.message.calls) == ("add", ())
    assert [m.role for m in submit.observed] == [Role.USER]


def test_a_refused_native_call_is_answered_as_each_call_and_replayed_alike(tmp_path: Path):
    wrong = '<tool_call>{"name": "submit", "arguments": {"answer": -1}}</tool_call>'
    unknown = wrong.replace("submit", "guess")
    right = wrong.replace("-1", "3")
    run = Made(SUMS, Script([wrong, unknown + unknown, "submit(answer=-1)", right]), tasks=1, episodes=1)
    path = run.run(tmp_path / "run")
    _, second, third, last = turns_of(path)
    assert second.observed == (Message(Role.TOOL, "submit: no sum is negative", answers="submit"),)
    sentence = "there is no tool 'guess', use one of add, submit"
    assert third.observed == (Message(Role.TOOL, sentence, answers="guess"),) * 2
    assert last.observed == (Message(Role.USER, "submit: no sum is negative"),)  # what was written is answered so
    assert [done.verdict for done in replayed(path)] == [Verdict.SAME]


@pytest.mark.parametrize("world", [SUMS, BOTH, TEXT], ids=["native", "both", "text"])
def test_calls_are_found_in_whatever_form_they_were_said(tmp_path: Path, world: dict[str, str]):
    path = Made(world).run(tmp_path / "run")
    with EpisodeStore(path) as store:
        assert store.labels("tool") == ["add", "submit"]
        assert len(list(store.matching("tool:add"))) == 4


def test_what_only_looks_like_a_call_is_none(tmp_path: Path):
    path = Made(TEXT, Script(["print(1)", "add (1, 2) is 3", "add(x=open)", "not add(1, 2)"])).run(tmp_path / "run")
    with EpisodeStore(path) as store:
        assert store.labels("tool") == []


def test_chat_exports_hold_tool_calls_and_are_imported_as_they_were_said(tmp_path: Path):
    path = Made(BOTH).run(tmp_path / "run")
    line = exported(path, tmp_path / "out.jsonl", "chat")[0]
    _, _, add, answer, submit = line["messages"]
    assert (add["content"], add["tool_calls"][0]["function"]["name"]) == ("", "add")
    assert set(json.loads(add["tool_calls"][0]["function"]["arguments"])) == {"x", "y"}
    assert (answer["role"], answer["tool_call_id"]) == ("tool", add["tool_calls"][0]["id"])
    assert submit["tool_calls"][0]["function"]["name"] == "submit"
    assert [tool["function"]["name"] for tool in line["tools"]] == ["add", "submit"]
    found = next(read(tmp_path / "out.jsonl"))
    assert isinstance(found, Conversation)
    said = [message for turn in turns_of(path) for message in (*turn.observed, turn.message)]
    assert list(found.messages) == said


def test_adp_exports_hold_api_actions(tmp_path: Path):
    line = exported(Made(BOTH).run(tmp_path / "run"), tmp_path / "out.jsonl", "adp")[0]
    actions = [item for item in line["content"] if item["class_"].endswith("action")]
    assert [(item["class_"], item["function"]) for item in actions] == [("api_action", "add"), ("api_action", "submit")]
    [answer] = [item for item in line["content"] if "tool_call_id" in item and item["class_"] == "text_observation"]
    assert (answer["tool_call_id"], answer["source"]) == (actions[0]["tool_call_id"], "environment")


def test_calls_of_tools_that_were_not_declared_stay_text_in_exports(tmp_path: Path):
    """With form = "text" a line has no `tools` that a call could be of."""
    line = exported(Made(TEXT).run(tmp_path / "run"), tmp_path / "out.jsonl", "chat")[0]
    assert "tools" not in line
    assert "written_calls" not in line
    assert line["messages"][2]["content"].startswith("add(x=")


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("add(1, y=2)", ToolCall("add", {"x": 1, "y": 2})),
        (' add ( y = -2, x = "one")\n', ToolCall("add", {"y": -2, "x": "one"})),
        ("add()", ToolCall("add", {})),
        ("add(1, 2, 3)", None),  # more values than parameters
        ("add(1, x=2)", None),
        ("add(**{'x': 1})", None),
        ("add({1, 2})", None),  # a set is nothing that JSON can say
        ("add(x=y)", None),
        ("subtract(1, 2)", None),
        ("add(1, 2), add(3, 4)", None),
        ("add(" + "9" * 20_000 + ")", None),
    ],
)
def test_written_calls_are_read(text: str, call: ToolCall | None):
    assert written_call(text, [ADD]) == call


def test_a_name_is_read_without_knowing_tools():
    assert written_name("click(3)") == "click"
    assert written_name("Click the button (3)") is None
