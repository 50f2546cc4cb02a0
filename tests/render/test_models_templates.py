"""The chat templates of the field: which are used as they are, what they write, and what is read back."""

import numpy as np
import pytest

from sojourn.backends.torch.models import tiny
from sojourn.backends.torch.models.loading import template_of
from sojourn.config.old_keys import upgraded
from sojourn.errors import ActionError, RenderError
from sojourn.render import auto, promises
from sojourn.render.auto import Auto
from sojourn.render.program import FIXED_DATE
from sojourn.render.template import Template, Templated
from sojourn.render.turns import Turns
from sojourn.types import Message, Role, Sample, Stop, Tool, ToolCall, Versions
from sojourn.verdict import Outcome
from tests.render.models_templates import with_template

LOOK = Tool("look", "Look somewhere.", {"type": "object", "properties": {"where": {"type": "string"}}})
CALL = ToolCall("look", {"where": "north"})
ASKS, SAYS = Message(Role.USER, "Where?"), Message(Role.ASSISTANT, "go north")
EXACT, TEXT_TOOLS, REWRITES = "", auto.NO_OWN_TOOLS, auto.REWRITES
CHOSEN = [  # model, thinking, what is said of its own template
    ("qwen2_5", False, [EXACT]),
    ("qwen3", False, [REWRITES]),
    ("qwen3", True, [REWRITES]),
    ("qwen3_instruct_2507", False, [EXACT]),
    ("llama3", False, [TEXT_TOOLS]),
    ("llama3_1", False, [EXACT]),
    ("llama3_2", False, [EXACT]),
    ("gemma", False, [TEXT_TOOLS]),
    ("gemma3", False, [TEXT_TOOLS]),
    ("phi3", False, [TEXT_TOOLS]),
    ("phi3_5", False, [TEXT_TOOLS]),
    ("deepseekv3", True, [TEXT_TOOLS, REWRITES]),
    ("deepseek_r1_distill", True, [TEXT_TOOLS, REWRITES]),
    ("gptoss", True, [REWRITES]),
    ("glm4moe", True, [TEXT_TOOLS, REWRITES]),
    ("hybrid", False, [REWRITES]),
    ("hybrid", True, [REWRITES]),
    ("mistral", False, [REWRITES]),
    ("smollm3", False, [EXACT]),
    ("smollm3", True, [EXACT]),
]


def bound(name, thinking=False):
    tokenizer = with_template(name)
    return Auto(thinking=thinking).bind(tokenizer, template_of(tokenizer))


def sample(tokens, stop=Stop.END):
    return Sample(np.asarray(tokens, np.int64), np.zeros(len(tokens), np.float32), Versions(0, 0), stop)


@pytest.mark.parametrize(("name", "thinking", "notes"), CHOSEN)
def test_the_models_own_template_is_used_and_said(name, thinking, notes):
    renderer = bound(name, thinking)
    assert isinstance(renderer, Templated), renderer.note
    assert renderer.note == "; ".join(["chat format: the model's own template", *filter(None, notes)])


@pytest.mark.parametrize(("name", "thinking", "notes"), CHOSEN)
def test_no_promise_is_broken(name, thinking, notes):
    renderer = bound(name, thinking)
    judged = list(promises.verdicts(renderer, renderer.codec.tokenizer))
    assert [v for v in judged if v.outcome is Outcome.FAILED] == []
    assert any(v.outcome is Outcome.WARNED for v in judged) == (REWRITES in notes)


@pytest.mark.parametrize(("name", "thinking", "notes"), CHOSEN)
def test_a_prompt_is_what_the_tokenizer_gives(name, thinking, notes):
    renderer = bound(name, thinking)
    told = [Message(Role.SYSTEM, "Be brief."), ASKS, SAYS, Message(Role.USER, "A wall.")]
    if not renderer.accepted.system:
        told = told[1:]
    tokenizer = renderer.codec.tokenizer
    own, asked = tokenizer.chat_template, [{"role": str(m.role), "content": m.text} for m in told]
    options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": thinking}
    options["chat_template"] = FIXED_DATE + own if "strftime_now" in own else own
    assert renderer.decode(renderer.open(told).tokens) == tokenizer.apply_chat_template(asked, **options)
    if TEXT_TOOLS not in notes:
        function = {"name": LOOK.name, "description": LOOK.description, "parameters": LOOK.parameters}
        options["tools"] = [{"type": "function", "function": function}]
        ours = renderer.decode(renderer.open(told, [LOOK]).tokens)
        assert ours == tokenizer.apply_chat_template(asked, **options)


CALLS = {
    ("qwen2_5", False): '<tool_call>\n{"name": "look", "arguments": {"where": "north"}}\n</tool_call><|im_end|>',
    ("llama3_1", False): '{"name": "look", "parameters": {"where": "north"}}<|eot_id|>',
    ("gptoss", True): ' to=functions.look<|channel|>commentary json<|message|>{"where": "north"}<|call|>',
    ("mistral", False): '[TOOL_CALLS][{"name": "look", "arguments": {"where": "north"}, "id": "call00000"}]</s>',
    ("smollm3", False): '<tool_call>{"name": "look", "arguments": {"where": "north"}}</tool_call><|im_end|>',
    ("phi3", False): '<tool_call>\n{"name": "look", "arguments": {"where": "north"}}\n</tool_call><|end|>',
}


@pytest.mark.parametrize(("model", "written"), CALLS.items(), ids=lambda value: str(value)[:20])
def test_a_call_is_written_and_read_in_the_models_own_way(model, written):
    renderer = bound(*model)
    message = Message(Role.ASSISTANT, calls=(CALL,))
    reply = renderer.encode_reply(message)
    assert renderer.decode(reply) == written
    assert renderer.parse(reply) == message
    assert reply[-1] in renderer.stops
    with pytest.raises(ActionError, match=r"not finished|not JSON"):
        renderer.parse(renderer.codec.control(written[: len(written) * 2 // 3]))


def test_ids_that_a_model_makes_up_are_read_over():
    renderer = bound("mistral")
    spelled = '[TOOL_CALLS] [{"name": "look", "arguments": {"where": "north"}, "id": "a1b2c3d4e"}]'
    assert renderer.parse(renderer.codec.control(spelled)).calls == (CALL,)
    two = '[TOOL_CALLS][{"name": "look", "arguments": {}, "id": "x"}, {"name": "look", "arguments": {}, "id": "y"}]'
    assert len(renderer.parse(renderer.codec.control(two)).calls) == 2


THOUGHTS = {
    "qwen3": "<think>\nA wall.\n</think>\n\ngo north<|im_end|>",
    "hybrid": "<think>\nA wall.\n</think>\n\ngo north<|im_end|>",
    "smollm3": "<think>\nA wall.\n</think>\n\ngo north<|im_end|>",
    "deepseek_r1_distill": "A wall.\n</think>\n\ngo north<｜end▁of▁sentence｜>",
    "gptoss": "<|channel|>analysis<|message|>A wall.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>go north<|return|>",
}


@pytest.mark.parametrize(("name", "written"), THOUGHTS.items(), ids=list(THOUGHTS))
def test_a_thought_is_written_and_read_in_the_models_own_way(name, written):
    renderer = bound(name, thinking=True)
    message = Message(Role.ASSISTANT, "go north", "A wall.")
    reply = renderer.encode_reply(message)
    assert renderer.decode(reply) == written
    assert renderer.parse(reply) == message
    with pytest.raises(ActionError, match="not closed"):
        renderer.parse(renderer.codec.control(written[: written.index("wall")]))


def test_thinking_is_switched_by_the_template():
    on, off = bound("hybrid", True), bound("hybrid")
    assert on.decode(on.open([ASKS]).tokens).endswith("<|im_start|>assistant\n")
    assert off.decode(off.open([ASKS]).tokens).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert off.decode(off.encode_reply(SAYS)) == "go north<|im_end|>"


def test_what_is_rewritten_begins_a_new_context_and_what_is_kept_goes_on():
    renderer = bound("hybrid", True)
    thought = renderer.encode_reply(Message(Role.ASSISTANT, "", "A wall.", calls=(CALL,)))
    assert renderer.extend(sample(thought), [ASKS]) is None
    more = renderer.extend(sample(thought), [Message(Role.TOOL, "a wall", answers="look")])
    assert renderer.decode(more.tokens) == (
        "\n<|im_start|>user\n<tool_response>\na wall\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    empty = renderer.encode_reply(Message(Role.ASSISTANT, "", calls=(CALL,)))  # the empty thought is not kept
    assert renderer.extend(sample(empty), [Message(Role.TOOL, "a wall", answers="look")]) is None


def test_user_messages_in_a_row_are_one_where_a_template_refuses_them():
    renderer = bound("mistral")
    text = renderer.decode(renderer.open([Message(Role.SYSTEM, "S"), ASKS, Message(Role.USER, "Well?")]).tokens)
    assert text == "<s>[INST]S\n\nWhere?\n\nWell?[/INST]"


def test_a_template_that_prints_the_date_prints_the_same_on_every_day():
    renderer = bound("smollm3")
    assert "Today: 01 January 2026\n" in renderer.decode(renderer.open([ASKS]).tokens)


def test_a_format_of_ours_is_used_and_said_where_the_template_is_not_exact():
    tokenizer = tiny.build_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("message['content']", "message['content'] | upper")
    renderer = Auto().bind(tokenizer, "chatml")
    assert isinstance(renderer, Turns)
    assert renderer.note.startswith("chat format: chatml, because the model's own chat template is not exact: ")
    with pytest.raises(RenderError, match=r"not exact .* name a renderer, or use another model"):
        Auto().bind(tokenizer, "template")
    assert "it writes no thoughts" in bound("mistral", thinking=True).note
    tokenizer.chat_template = None
    assert Auto().bind(tokenizer, "chatml").note == (
        "chat format: chatml, because the model has no chat template of its own"
    )


def test_the_template_of_our_tiny_model_is_chatml_and_nothing_is_said():
    renderer = Auto().bind(tiny.build_tokenizer(), "chatml")
    assert isinstance(renderer, Turns)
    assert renderer.note == ""
    old = Auto(own_template=False).bind(with_template("hybrid"), "chatml")  # as a run that was recorded before
    assert isinstance(old, Turns)


def test_tools_in_our_words_can_be_asked_for():
    tokenizer = with_template("hybrid")
    text = Template(tools="text").bind(tokenizer)
    assert "# Tools" in text.decode(text.open([ASKS], [LOOK]).tokens)
    assert text.parse(text.encode_reply(Message(Role.ASSISTANT, calls=(CALL,)))).calls == (CALL,)


@pytest.mark.parametrize(
    ("model", "written", "why"),
    [
        ("hybrid", "<tool_call>look</tool_call>", "not JSON"),
        ("hybrid", '<tool_call>{"name": "look"', "not JSON"),
        ("hybrid", '<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ("hybrid", '<tool_call>["look"]</tool_call>', "no JSON object"),
        ("hybrid", '<tool_call>{"name": "look", "arguments": [1]}</tool_call>', "no JSON object"),
        ("hybrid", '<tool_call>{"name": "look", "arguments": {"x": NaN}}</tool_call>', "not JSON"),
        ("hybrid", r'<tool_call>{"name": "look", "arguments": {"x": "\ud800"}}</tool_call>', "not JSON"),
        ("hybrid", '<tool_call>{"name": "look"}</tool_call><tool_call>', "not JSON"),
        ("mistral", "[TOOL_CALLS]look", "not finished"),
        ("gptoss", " to=functions.look<|channel|>commentary json<|message|>look<|call|>", "not JSON"),
    ],
)
def test_broken_calls_are_refused_with_the_form_to_write(model, written, why):
    renderer = bound(model)
    with pytest.raises(ActionError, match=why):
        renderer.parse(renderer.codec.control(written))


def test_a_call_is_read_in_any_order_of_its_keys():
    renderer = bound("hybrid")
    spelled = 'So. <tool_call>{"arguments": {"where": "north"}, "name": "look"}</tool_call>'
    assert renderer.parse(renderer.codec.control(spelled)) == Message(Role.ASSISTANT, "So.", calls=(CALL,))


def test_a_run_that_was_recorded_before_there_was_a_choice_keeps_its_format():
    assert upgraded({"renderer": {"name": "auto", "thinking": True}})["renderer"] == {
        "name": "auto",
        "thinking": True,
        "own_template": False,
    }
    assert upgraded({"renderer": {"name": "auto", "own_template": True}})["renderer"]["own_template"]
