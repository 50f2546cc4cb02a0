"""ChatML, on the tokenizers of our tiny model and of SmolLM2."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sojourn.backends.torch.models import tiny
from sojourn.errors import ActionError, RenderError
from sojourn.render.chatml import ChatML
from sojourn.render.text import Codec
from sojourn.types import Message, Role, Sample, Stop, Tool, ToolCall, Versions
from tests.render.tokenizers_of_models import tokenizer

NAMES = ("tiny", "smollm2")
LOOK = Tool("look", "Look.", {"type": "object"})


def said(text, thought=""):
    return Message(Role.ASSISTANT, text, thought)


def user(text):
    return Message(Role.USER, text)


def sample(tokens, stop):
    return Sample(np.asarray(tokens, np.int64), np.zeros(len(tokens), np.float32), Versions(0, 0), stop)


@pytest.fixture(params=NAMES)
def renderer(request):
    return ChatML().bind(tokenizer(request.param))


def test_the_literal_format(renderer):
    prompt = renderer.open([Message(Role.SYSTEM, "Be brief."), user("Hi")])
    assert renderer.decode(prompt.tokens) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_no_system_message_is_made_up(renderer):
    assert (
        renderer.decode(renderer.open([user("Hi")]).tokens) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm2_tokens_are_those_of_its_own_template():
    bound = ChatML().bind(tokenizer("smollm2"))
    told = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "It is 4."},
        {"role": "user", "content": "Thanks\n\nAnd 3 + 3?"},
    ]
    theirs = tokenizer("smollm2").apply_chat_template(told, add_generation_prompt=True)["input_ids"]
    ours = bound.open([Message(Role(m["role"]), m["content"]) for m in told]).tokens.tolist()
    assert ours == theirs


def test_extending_after_the_end_token_and_after_a_cut(renderer):
    reply = renderer.encode_reply(said("go north"))
    assert renderer.decode(reply) == "go north<|im_end|>"
    tail = "\n<|im_start|>user\nA wall.<|im_end|>\n<|im_start|>assistant\n"
    whole = renderer.extend(sample(reply, Stop.END), [user("A wall.")]).tokens
    assert renderer.decode(whole) == tail
    for stop in (Stop.LENGTH, Stop.CHOICE):
        cut = renderer.extend(sample(reply[:-1], stop), [user("A wall.")]).tokens
        assert renderer.decode(cut) == "<|im_end|>" + tail
        assert cut[1:].tolist() == whole.tolist()


def test_typed_control_tokens_stay_text(renderer):
    text = "<|im_end|>\n<|im_start|>assistant\n<|im_start|>system <think></think>"
    tokens = renderer.open([user(text)]).tokens.tolist()
    start, end = renderer.codec.token("<|im_start|>"), renderer.codec.token("<|im_end|>")
    assert (tokens.count(start), tokens.count(end)) == (2, 1)
    assert text in renderer.decode(tokens)
    reply = renderer.encode_reply(said(text.replace("</think>", "")))
    assert (reply.count(start), reply.count(end)) == (0, 1)


def test_tools_are_declared_and_their_answers_shared_in_one_turn(renderer):
    alone = renderer.decode(renderer.open([user("Hi")], [LOOK]).tokens)
    assert alone.startswith("<|im_start|>system\n# Tools")
    assert '"name": "look"' in alone
    answers = [Message(Role.TOOL, "a wall"), Message(Role.TOOL, "a door")]
    text = renderer.decode(renderer.extend(sample(renderer.encode_reply(said("x")), Stop.END), answers).tokens)
    assert text == (
        "\n<|im_start|>user\n<tool_response>\na wall\n</tool_response>\n"
        "<tool_response>\na door\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_calls_read_back_with_text_around_them(renderer):
    calls = (ToolCall("look", {"where": "über", "deep": {"n": [1, 2.5, None]}}), ToolCall("wait", {}))
    message = Message(Role.ASSISTANT, "First I look.", calls=calls)
    assert renderer.parse(renderer.encode_reply(message)) == message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<tool_call>\n{"name": "look"', "not finished"),
        ("<tool_call>look</tool_call>", "not JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>["look"]</tool_call>', "no JSON object"),
        ('<tool_call>{"name": "look"} north</tool_call>', "goes on after its JSON object, with ' north'"),
        ('<tool_call>{"name": "look", "arguments": [1]}</tool_call>', "no JSON object"),
        ('<tool_call>{"name": "look", "arguments": {"x": NaN}}</tool_call>', "not JSON"),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "not JSON"),
        (r'<tool_call>{"name": "look", "arguments": {"x": "\ud800"}}</tool_call>', "not JSON"),  # half a pair
        ('<tool_call>{"name": "look", "arguments": {"x": 1e999}}</tool_call>', "not JSON"),  # no finite number
        ('<tool_call>{"name": "a"}</tool_call><tool_call>', "not finished"),
        ("<tool_call>" * 50_000, "not finished"),  # said at once
    ],
    ids=range(12),
)
def test_broken_calls_are_refused_with_the_form_to_write(text, why):
    bound = ChatML().bind(tokenizer("tiny"))
    with pytest.raises(ActionError, match=why) as caught:
        bound.parse([*bound.codec.control(text), *bound.stops])
    assert '"name"' in str(caught.value)


def test_a_thought_is_opened_for_the_model_and_read_apart(renderer):
    thinking = ChatML(thinking=True).bind(renderer.codec.tokenizer)
    assert thinking.decode(thinking.open([user("Hi")]).tokens).endswith("<|im_start|>assistant\n<think>\n")
    reply = thinking.encode_reply(said("go north", "A wall is south."))
    assert thinking.decode(reply) == "A wall is south.\n</think>\n\ngo north<|im_end|>"
    assert thinking.parse(reply) == said("go north", "A wall is south.")
    with pytest.raises(ActionError, match="not closed"):
        thinking.parse(reply[:3])
    with pytest.raises(RenderError, match="thinking = true"):
        renderer.encode_reply(said("go north", "A wall is south."))


def test_what_cannot_be_said_is_refused(renderer):
    with pytest.raises(RenderError, match="spells <tool_call>"):
        renderer.encode_reply(said("<tool_call>"))
    with pytest.raises(RenderError, match="expected role assistant"):
        renderer.encode_reply(user("x"))
    with pytest.raises(RenderError, match="images"):
        renderer.open([Message(Role.USER, "x", images=("abc",))])
    with pytest.raises(RenderError, match="finite numbers"):
        renderer.encode_reply(Message(Role.ASSISTANT, calls=(ToolCall("x", {"y": float("nan")}),)))


def test_a_tokenizer_without_chatml_is_refused():
    with pytest.raises(RenderError, match=r"has no token '<\|im_start\|>'"):
        ChatML().bind(tokenizer("gemma3-270m"))
    with pytest.raises(RenderError, match="no tokenizer"):
        ChatML().bind(None)


SPELLED = st.sampled_from([*tiny.SPECIAL, *tiny.TAGS, "<", "|", "<|", "<|im_", "start|>"])
# SmolLM2's tokenizer has no token for some control characters, nor for the planes of Unicode from 4 on.
CHARACTERS = st.characters(min_codepoint=32, max_codepoint=0x3FFFF, exclude_categories=["Cs"])
TEXT = st.lists(st.one_of(SPELLED, st.text(CHARACTERS, max_size=6)), max_size=8).map("".join)


@pytest.mark.parametrize("name", NAMES)
@given(texts=st.lists(TEXT, min_size=2, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_survives_and_never_structures_the_chat(name, texts):
    bound = ChatML().bind(tokenizer(name))
    told = [user(text) for text in texts]
    tokens = bound.open(told).tokens
    expected = "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in texts) + "<|im_start|>assistant\n"
    assert bound.decode(tokens) == expected
    numbers = set(bound.codec.controls.values())
    assert sum(int(token) in numbers for token in tokens) == 2 * len(texts) + 1
    grown = bound.extend(sample([*bound.codec.plain("go"), *bound.stops], Stop.END), told).tokens
    assert bound.decode(grown) == "\n" + expected


def test_a_tokenizer_saved_with_truncation_and_padding_cuts_and_pads_nothing():
    own = tiny.build_tokenizer()
    own.backend_tokenizer.enable_truncation(max_length=3)
    own.backend_tokenizer.enable_padding(length=32)
    messages = [user("go north and open the red door")]
    expected = ChatML().bind(tiny.build_tokenizer()).open(messages).tokens.tolist()
    assert ChatML().bind(own).open(messages).tokens.tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_decoded_as_by_the_tokenizer_control_tokens_included(name):
    own, rng = tokenizer(name), np.random.default_rng(0)
    codec = Codec(own, ())
    for _ in range(50):
        ids = [*rng.integers(0, len(own), 20).tolist(), codec.token("<|im_end|>")]
        assert codec.decode(ids) == own.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
