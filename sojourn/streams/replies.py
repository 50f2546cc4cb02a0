"""Scores replies that were not sampled, such as a task's right answer or "yes" and "no" to a question."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sojourn.errors import ConfigError
from sojourn.protocols import Renderer, StepContext, Trainer
from sojourn.types import Batch, FloatArray, IntArray, Message, Role

MAX_PROMPT_TOKENS = 2**20  # of one batch, shared prefixes counted each time


def question_tokens(context: StepContext, text: str) -> IntArray:
    """Returns the tokens of a prompt with this user message, which the assistant is to answer."""
    return _renderer(context).open([Message(Role.USER, text)]).tokens


def reply_tokens(context: StepContext, text: str) -> IntArray:
    """Returns the tokens of an assistant's reply with this text."""
    return np.asarray(_renderer(context).encode_reply(Message(Role.ASSISTANT, text)), dtype=np.int64)


async def score_replies(trainer: Trainer, prompts: Sequence[IntArray], replies: Sequence[IntArray]) -> list[FloatArray]:
    """Returns the log-probability that the present weights give to each token of each reply, after its prompt."""
    if len(prompts) > 1 and sum(map(len, prompts)) > MAX_PROMPT_TOKENS:
        half = len(prompts) // 2
        parts = ((prompts[:half], replies[:half]), (prompts[half:], replies[half:]))
        return [scored for part in parts for scored in await score_replies(trainer, *part)]
    ends = np.cumsum([len(p) + len(r) for p, r in zip(prompts, replies, strict=True)], dtype=np.int64)
    parts = [tokens for pair in zip(prompts, replies, strict=True) for tokens in pair]
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    weight = np.zeros(len(tokens), dtype=np.float32)
    for end, reply in zip(ends, replies, strict=True):
        weight[end - len(reply) : end] = 1
    number = np.repeat(np.arange(len(prompts)), np.diff(ends, prepend=0))
    zeros, ones = np.zeros(len(tokens), dtype=np.float32), np.ones(len(tokens), dtype=np.float32)
    batch = Batch(tokens, number, weight, zeros, zeros, ones, number, np.where(weight > 0, number, -1))
    scored = (await trainer.forward(batch)).logprobs
    return [scored[end - len(reply) : end] for end, reply in zip(ends, replies, strict=True)]


def _renderer(context: StepContext) -> Renderer:
    if context.renderer is None:
        raise ConfigError("a stream scores replies that were not sampled, which needs a renderer: give the run one")
    return context.renderer
