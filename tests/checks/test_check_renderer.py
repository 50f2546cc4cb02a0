"""The suite passes renderers that keep their promises, and catches those that break them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sojourn.checks.renderer import check_renderer
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError
from sojourn.render.chatml import ChatML
from sojourn.render.gemma import Gemma
from sojourn.render.template import Template
from sojourn.render.text import Codec
from sojourn.types import Message, Prompt, Role, ToolCall
from tests.render.test_template import STRIPS, bound
from tests.render.tokenizers_of_models import tokenizer

AFRESH = "extending equals rendering afresh: "
THOUGHTS = {AFRESH + "thoughts", AFRESH + "thoughts between tool calls", "a reply reads back: thoughts"}


def judged(report, outcome):
    return {verdict.promise for verdict in report.verdicts if verdict.outcome is outcome}


@pytest.mark.parametrize(
    ("name", "renderer"),
    [("tiny", ChatML()), ("smollm2", ChatML()), ("gemma3-270m", Gemma())],
)
def test_our_renderers_keep_every_promise(name, renderer):
    report = check_renderer(renderer, tokenizer(name))
    assert judged(report, Outcome.PASSED) == {v.promise for v in report.verdicts} - THOUGHTS
    assert judged(report, Outcome.NOT_OFFERED) == THOUGHTS
    report = check_renderer(replace(renderer, thinking=True), tokenizer(name))
    assert judged(report, Outcome.PASSED) == {v.promise for v in report.verdicts}


def test_a_template_without_tools_declares_and_calls_them_in_our_words():
    report = check_renderer(Template(), tokenizer("smollm2"))
    assert report.passed
    assert judged(report, Outcome.NOT_OFFERED) == THOUGHTS
    assert judged(report, Outcome.PASSED) == {v.promise for v in report.verdicts} - THOUGHTS


def test_a_template_that_strips_thoughts_is_warned_about_where_it_does():
    report = check_renderer(bound(STRIPS))
    assert report.passed, report.failed
    verdict = report[AFRESH + "thoughts"]
    assert verdict.outcome is Outcome.WARNED
    assert "rewrites history" in verdict.detail
    assert "A wall is south." in verdict.detail


@dataclass(frozen=True)
class Broken:
    """ChatML with one promise broken at a time."""

    bound: object
    fault: str

    @property
    def stops(self):
        return self.bound.stops

    def open(self, messages, tools=()):
        if self.fault == "trims":
            messages = [replace(message, text=message.text.strip()) for message in messages]
        return self.bound.open(messages, tools)

    def extend(self, last, messages):
        prompt = self.bound.extend(last, messages)
        if self.fault == "forgets the newline":
            return Prompt(prompt.tokens[1:])
        if self.fault == "never closes" and int(last.tokens[-1] if len(last.tokens) else -1) not in self.stops:
            return Prompt(prompt.tokens[1:])
        if self.fault == "gives up":
            return None
        return prompt

    def parse(self, tokens):
        try:
            said = self.bound.parse(tokens)
        except ActionError:
            if self.fault == "reads anything":
                return Message(Role.ASSISTANT, self.bound.decode(tokens))
            raise
        if self.fault == "invents calls" and said.calls:
            return replace(said, calls=(ToolCall("look", {}),))
        return said

    def encode_reply(self, message):
        tokens = self.bound.encode_reply(message)
        return tokens[:-1] if self.fault == "does not stop" else tokens


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("trims", AFRESH + "unicode and blanks"),
        ("forgets the newline", AFRESH + "text"),
        ("never closes", "a truncated sample is closed"),
        ("reads anything", "an unfinished tool call is refused"),
        ("invents calls", "a reply reads back: tool calls"),
        ("does not stop", "a reply ends at its stop token"),
    ],
)
def test_each_broken_promise_is_caught(fault, promise):
    report = check_renderer(Broken(ChatML().bind(tokenizer("tiny")), fault), tokenizer("tiny"))
    assert promise in report.failed
    assert report[promise].detail


def test_giving_up_without_need_is_a_warning():
    report = check_renderer(Broken(ChatML().bind(tokenizer("tiny")), "gives up"), tokenizer("tiny"))
    assert report[AFRESH + "text"].outcome is Outcome.WARNED
    assert "nothing is rewritten" in report[AFRESH + "text"].detail


def test_typed_control_tokens_are_caught():
    good = ChatML().bind(tokenizer("tiny"))
    careless = replace(good, codec=Careless(good.codec.tokenizer))
    report = check_renderer(careless)
    assert "typed text gives no control token" in report.failed


class Careless(Codec):
    """Tokenises what users typed as if it were the format's own."""

    def plain(self, text):
        return self.control(text)


def test_a_window_of_the_difference_is_shown():
    report = check_renderer(Broken(ChatML().bind(tokenizer("tiny")), "forgets the newline"), tokenizer("tiny"))
    assert "turn 0" in report[AFRESH + "text"].detail
    assert "<|im_end|>" in report[AFRESH + "text"].detail
    assert np.any([char.isdigit() for char in report[AFRESH + "text"].detail])
