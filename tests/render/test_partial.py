"""Replies are read while they come: what is told of a beginning is what the whole reply begins with, to the letter."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from sojourn.backends.torch.models import tiny
from sojourn.errors import ActionError
from sojourn.render.chatml import ChatML
from sojourn.render.learned import CallForm, ThoughtForm
from sojourn.render.partial import PartialReader, PartialReply, before_mark, before_stop_strings
from sojourn.types import Message, Role, ToolCall
from tests.render.models_templates import with_template
from tests.render.test_models_templates import CHOSEN, bound

CALL = json.dumps({"name": "look", "arguments": {"at": "ü"}})
PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "{", "\n", "\n\n", " ", "a", "Ünï 日本 😀", "<", "</",
    "<|", "think>", "tool", "_call>", "[", "TOOL_CALLS]", "\u2028", "\ufffd", "STOP", "ST",
]  # fmt: skip
REPLIES = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def whole(renderer, text: str) -> PartialReply:
    """Returns the thought and the text of a whole reply, read or unreadable."""
    try:
        message = renderer.parse([*renderer.codec.control(text), renderer.stops[0]])
    except ActionError:
        return renderer.parse_partial(text, ended=True)
    return PartialReply(message.thought, message.text)


def require_beginnings(read: list[PartialReply], end: PartialReply) -> None:
    for before, after in pairwise([*read, end]):
        assert after.thought.startswith(before.thought), (before, after)
        assert after.text.startswith(before.text), (before, after)


@pytest.mark.parametrize("thinking", [False, True])
@settings(deadline=None, max_examples=300)
@given(text=REPLIES)
def test_each_beginning_of_a_reply_is_one_of_what_it_says(thinking, text):
    renderer = ChatML(thinking=thinking).bind(tiny.build_tokenizer())
    require_beginnings([renderer.parse_partial(text[:n]) for n in range(len(text) + 1)], whole(renderer, text))


@pytest.mark.parametrize(("name", "thinking"), sorted({(name, thinking) for name, thinking, _ in CHOSEN}))
def test_each_beginning_by_the_templates_of_models(name, thinking):
    renderer = bound(name, thinking)
    thoughts, calls = renderer.thoughts or ThoughtForm(), renderer.calls
    marks = [thoughts.start, thoughts.end, thoughts.plain, thoughts.start.strip(), thoughts.end.strip()]
    if calls:
        marks += [calls.before, calls.after, calls.mark, calls.mark[:3], "".join(calls.mark.split()), calls.stop,
                  f"{calls.before}{CALL if calls.key else f'look{calls.middle}{{}}'}{calls.after}"]  # fmt: skip
    pieces = sorted(set(marks))

    @settings(deadline=None, max_examples=60)
    @given(st.lists(st.sampled_from([*pieces, *pieces, *PIECES]), max_size=7).map("".join))
    def judge(text):
        read = [renderer.parse_partial(text[:n]) for n in range(len(text) + 1)]
        require_beginnings(read, whole(renderer, text))

    judge()


@pytest.mark.parametrize("name", ["qwen3", "gptoss", "mistral", "hybrid", "llama3_1"])
def test_a_plain_reply_is_told_before_its_end(name):
    renderer = bound(name)
    tokens = renderer.encode_reply(Message(Role.ASSISTANT, "go north, then east"))
    text = renderer.codec.decode(tokens[:-1])
    beginning = text.partition("east")[0]
    assert renderer.parse_partial(beginning).text.rstrip() == "go north, then"


def test_what_is_told_of_a_reply_with_a_thought_and_a_call():
    renderer = ChatML(thinking=True).bind(tiny.build_tokenizer())
    told = {
        "\n A wall ": ("A wall", ""),
        "A wall </thi": ("A wall", ""),
        "A wall </third": ("A wall </third", ""),
        "A wall.\n</think>\n\n": ("A wall.", ""),
        "A wall.</think>\n\nI look. \n<tool_c": ("A wall.", "I look."),
        "A wall.</think>\n\nI look. <tool_call>{": ("A wall.", "I look."),
        "A wall.</think>\n\n\nI look": ("A wall.", ""),  # a call would remove the empty line
    }
    assert {text: renderer.parse_partial(text) for text in told} == told
    assert renderer.parse_partial("A wall </thi", ended=True) == ("A wall </thi", "")
    assert renderer.parse_partial("A</think>\n\n I <tool_call>{", ended=True) == ("A", " I <tool_call>{")


def test_a_form_without_text_before_calls_tells_its_text_as_it_is():
    form = CallForm('{"name": "', '", "parameters": ', "}", None, "<|eot|>", False, '{"name":')
    assert [form.so_far(text) for text in (' {"na', '{ "name":"look', "{ok ", " I ")] == ["", "", "{ok ", " I "]


@pytest.mark.parametrize("thinking", [False, True])
@settings(deadline=None, max_examples=100)
@given(text=REPLIES, stops=st.lists(st.sampled_from(["STOP", "S", "a", "\n", "😀", "<tool"]), max_size=2),
       cuts=st.lists(st.integers(0, 200), max_size=6))  # fmt: skip
def test_tokens_in_any_batches_give_beginnings_of_the_reply(thinking, text, stops, cuts):
    renderer = ChatML(thinking=thinking).bind(tiny.build_tokenizer())
    tokens = [*(token for letter in text for token in renderer.codec.control(letter)), renderer.stops[0]]
    edges = sorted({0, *(cut for cut in cuts if cut < len(tokens)), len(tokens)})
    reader = PartialReader(renderer, stops)
    read = [reader.add(tokens[start:end]) for start, end in pairwise(edges)]
    thought, said = whole(renderer, renderer.codec.decode(tokens[:-1]))
    first = min((said.find(stop) for stop in stops if stop in said), default=len(said))
    require_beginnings(read, PartialReply(thought, said[:first]))


@pytest.mark.parametrize("text", ["Plain words.", "naïve 日本語 😀!", "a\ufffdb"])
def test_a_text_is_told_but_for_its_last_character(text):
    renderer = ChatML().bind(tiny.build_tokenizer())
    reader = PartialReader(renderer)
    told = ["", *(reader.add([token]).text for letter in text for token in renderer.codec.control(letter))]
    assert told[-1] == text
    with_what_follows = text.count(" ") + text.count("\ufffd")
    assert len({len(one) for one in told}) == len(text) + 1 - with_what_follows


def fallback(*tokens: str) -> PreTrainedTokenizerFast:
    """Returns a tokenizer as Llama 2 has it: one token is a piece of text or a byte."""
    words = ["<s>", "<|im_start|>", "<|im_end|>", *tokens, *(f"<0x{byte:02X}>" for byte in range(256))]
    model = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True))
    strip = decoders.Strip(" ", 1, 0)
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    added = {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": "<s>"}
    return PreTrainedTokenizerFast(tokenizer_object=model, **added)


def ids(tokenizer, *tokens: str) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(token) for token in tokens]


def test_bytes_are_told_when_no_further_byte_can_change_them():
    tokenizer = fallback("▁go", "▁", "x")
    renderer = ChatML().bind(tokenizer)
    euro = ["<0xE2>", "<0x82>", "<0xAC>"]
    assert renderer.decode(ids(tokenizer, *euro, "<0xE2>")) == "\ufffd" * 4, "one byte more changes the character"
    reader = PartialReader(renderer)
    told = [reader.add(ids(tokenizer, token)).text for token in ("▁go", "▁go", *euro, "x", "▁", "▁", "x", "<|im_end|>")]
    assert told == ["go", *["go go"] * 4, *["go go€x"] * 3, *["go go€x  x"] * 2]
    assert PartialReader(renderer).add(ids(tokenizer, "▁", "▁go", "x")).text == "", "calls would remove the blank"


@given(st.lists(st.sampled_from(["▁go", "▁", "x", "<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "<0x20>"]), max_size=12))
@settings(deadline=None)
def test_byte_fallback_gives_beginnings(tokens):
    renderer = ChatML().bind(fallback("▁go", "▁", "x"))
    numbers = ids(renderer.codec.tokenizer, *tokens)
    reader = PartialReader(renderer)
    read = [reader.add([number]) for number in numbers]
    require_beginnings(read, PartialReply("", renderer.parse(numbers).text))


def test_nothing_is_told_where_a_token_may_be_decoded_otherwise_later():
    tokenizer = fallback("go")
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()
    assert PartialReader(ChatML().bind(tokenizer)).add(ids(tokenizer, "go", "go")) == PartialReply()


def test_bytes_that_never_become_a_character_are_not_decoded_for_ever():
    renderer = ChatML().bind(tiny.build_tokenizer())
    reader = PartialReader(renderer)
    start = renderer.codec.control("é")[:1]
    assert "\ufffd" in renderer.decode(start)
    for _ in range(1000):
        reader.add(start)
    assert reader.add(renderer.codec.control("text")).text == ""


def test_marks_and_stop_strings_are_held_back_at_the_end_alone():
    assert [before_mark(text, "<tool>") for text in ("a <", "a < to", "a <b", "a ", "a <to b")] == [
        "a", "a", "a <b", "a", "a <to b",
    ]  # fmt: skip
    assert [before_stop_strings(text, ["aab", ""]) for text in ("xaab", "xaa", "xaaa", "xb")] == ["x", "x", "xa", "xb"]
    assert before_stop_strings("aaaab", ["aab"]) == "aa", "what is before a whole stop string begins no other"
    assert before_stop_strings("see it", ["t", "itch"]) == "see "


def test_a_renderer_of_another_kind_is_not_read_before_the_end():
    class Other:
        stops = (1,)

    assert PartialReader(Other()).add([2, 3]) == PartialReply()  # type: ignore[arg-type]


def test_calls_are_never_told_as_text():
    renderer = bound("qwen3")
    message = Message(Role.ASSISTANT, "I look.", calls=(ToolCall("look", {"at": "here"}),))
    text = renderer.codec.decode(renderer.encode_reply(message))
    assert {renderer.parse_partial(text[:n]).text for n in range(len(text))} <= {"I look."[:n] for n in range(8)}
    assert with_template("qwen3").chat_template
