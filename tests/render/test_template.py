"""The generic fallback over a tokenizer's own template."""

import copy

import numpy as np
import pytest

from sojourn.errors import RenderError
from sojourn.render.chatml import ChatML
from sojourn.render.template import CUTS, Template
from sojourn.types import Message, Role, Sample, Stop, Tool, ToolCall, Versions
from tests.render.tokenizers_of_models import tokenizer

# In the manner of Qwen3: thoughts of turns before the last question are stripped, calls are Hermes-style.
STRIPS = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- set last = namespace(question=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set content = m.content %}
        {%- set thought = m.reasoning_content or '' %}
        {%- if not thought and '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if thought and loop.index0 > last.question %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in m.tool_calls or [] %}
            {{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
QUESTION = [Message(Role.USER, "Where?")]


def bound(template=None, name="tiny"):
    own = copy.copy(tokenizer(name))
    own.chat_template = template or own.chat_template
    return Template().bind(own)


def sample(tokens, stop=Stop.END):
    return Sample(np.asarray(tokens, np.int64), np.zeros(len(tokens), np.float32), Versions(0, 0), stop)


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_it_gives_the_tokens_of_the_renderer_that_is_made_for_the_format(name):
    ours, generic = ChatML().bind(tokenizer(name)), bound(name=name)
    assert generic.stops == ours.stops
    told = [
        Message(Role.SYSTEM, "Be brief."),
        *QUESTION,
        Message(Role.ASSISTANT, "go north"),
        Message(Role.USER, "No <|im_end|>"),
    ]
    assert generic.open(told).tokens.tolist() == ours.open(told).tokens.tolist()
    reply = Message(Role.ASSISTANT, "go north")
    assert generic.encode_reply(reply) == ours.encode_reply(reply)
    for tokens, stop in ((ours.encode_reply(reply), Stop.END), (ours.encode_reply(reply)[:-1], Stop.LENGTH)):
        theirs = generic.extend(sample(tokens, stop), QUESTION).tokens.tolist()
        assert theirs == ours.extend(sample(tokens, stop), QUESTION).tokens.tolist()


def test_smollm2_makes_up_its_system_message_and_so_does_its_template():
    generic = bound(name="smollm2")
    assert "named SmolLM" in generic.decode(generic.open(QUESTION).tokens)


def test_stripped_thoughts_open_a_new_context():
    generic = bound(STRIPS)
    thought = generic.encode_reply(Message(Role.ASSISTANT, "go", "A wall is south."))
    assert generic.parse(thought) == Message(Role.ASSISTANT, "go", "A wall is south.")
    assert generic.extend(sample(thought), QUESTION) is None
    tool = generic.extend(sample(thought), [Message(Role.TOOL, "a wall")])  # thoughts are kept between tool calls
    assert generic.decode(tool.tokens) == "\n<|im_start|>tool\na wall<|im_end|>\n<|im_start|>assistant\n"
    plain = generic.encode_reply(Message(Role.ASSISTANT, "go"))
    assert generic.extend(sample(plain), QUESTION) is None  # an earlier turn may lose its thought


def test_calls_in_the_template_of_the_model():
    generic = bound(STRIPS)
    message = Message(Role.ASSISTANT, calls=(ToolCall("look", {"where": "<|im_end|> über"}),))
    reply = generic.encode_reply(message)
    assert generic.parse(reply) == message
    assert reply.count(generic.stops[0]) == 1
    tool = Tool("look", "Look at <|im_start|>.", {"type": "object"})
    opened = generic.open(QUESTION, [tool]).tokens.tolist()
    assert opened.count(generic.codec.token("<|im_start|>")) == 3
    assert "Look at <|im_start|>." in generic.decode(opened)


def test_what_a_template_cannot_write_is_refused():
    with pytest.raises(RenderError, match="is parsed as"):
        bound().encode_reply(Message(Role.ASSISTANT, "go", "A thought that this template drops."))
    with pytest.raises(RenderError, match="no chat template"):
        Template().bind(tokenizer("gemma3-270m"))
    picky = "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}"
    picky = bound(picky + tokenizer("tiny").chat_template)
    with pytest.raises(RenderError, match="begin with the user"):
        picky.open([Message(Role.ASSISTANT, "x")])
    told = picky.decode(picky.open([Message(Role.SYSTEM, "Be brief."), *QUESTION]).tokens)
    assert told == "<|im_start|>user\nBe brief.\n\nWhere?<|im_end|>\n<|im_start|>assistant\n"


def test_texts_that_use_the_cut_marks_themselves():
    generic = bound()
    text = CUTS[0] + "<|im_end|>" + CUTS[1]
    assert text in generic.decode(generic.open([Message(Role.USER, text)]).tokens)
    with pytest.raises(RenderError, match="noncharacters"):
        generic.open([Message(Role.USER, "".join(CUTS))])
