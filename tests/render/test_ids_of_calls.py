"""By a template that names calls by ids, an answer has the id of its call: the model's own, where it wrote the call."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from sojourn.render.template import Template
from sojourn.types import Message, Role, Sample, Stop, Tool, ToolCall, Versions
from tests.render.models_templates import with_template

ASKED = Message(Role.USER, "Prices?")
TOOLS = [Tool(name, "", {"type": "object"}) for name in ("apple", "pear")]


def answers(*names: str) -> list[Message]:
    return [Message(Role.TOOL, f"of {name}", answers=name) for name in names]


def told(text: str) -> dict[str, str]:
    """Returns the id by which each answer names its call."""
    found = [json.loads(one) for one in re.findall(r"\[TOOL_RESULTS\](.*?)\[/TOOL_RESULTS\]", text)]
    return {one["content"]: one["call_id"] for one in found}


@pytest.fixture(scope="module")
def mistral():
    """Mistral's format, which refuses answers, too, whose ids have not nine characters."""
    tokenizer = with_template("mistral")
    answer = "{{- '[TOOL_RESULTS]"
    assert answer in tokenizer.chat_template
    refusal = "{%- if m.tool_call_id | length != 9 %}{{- raise_exception('an id has nine characters') }}{%- endif %}"
    tokenizer.chat_template = tokenizer.chat_template.replace(answer, refusal + answer)
    return Template().bind(tokenizer)


@pytest.mark.parametrize("names", [("apple", "pear"), ("pear", "apple"), ("a", "b"), ("b", "a")])
def test_answers_are_told_by_names_or_ids_of_their_calls(mistral, names):
    calls = (ToolCall("apple", {}, "a"), ToolCall("pear", {}, "b"))
    prompt = mistral.open([ASKED, Message(Role.ASSISTANT, calls=calls), *answers(*names)], TOOLS)
    ids = {"apple": "call00000", "a": "call00000", "pear": "call00001", "b": "call00001"}
    assert told(mistral.decode(prompt.tokens)) == {f"of {name}": ids[name] for name in names}


@pytest.mark.parametrize(
    ("written", "expected"),
    [(("xYz123456", "q00000001"), ("xYz123456", "q00000001")), (("short", "q00000001"), ("call00000", "call00001"))],
    ids=["the model's ids", "an id that the template refuses"],
)
def test_an_answer_has_the_id_that_the_model_wrote(mistral, written, expected):
    calls = [{"name": name, "arguments": {}, "id": id} for name, id in zip(("apple", "pear"), written, strict=True)]
    tokens = np.array(mistral.codec.control(f"[TOOL_CALLS]{json.dumps(calls)}</s>"))
    sample = Sample(tokens, np.zeros(len(tokens), np.float32), Versions(0, 0), Stop.END)
    more = mistral.extend(sample, answers("pear", "apple"))
    assert told(mistral.decode(more.tokens)) == {"of apple": expected[0], "of pear": expected[1]}
    assert [call.id for call in mistral.parse(tokens).calls] == ["", ""]
