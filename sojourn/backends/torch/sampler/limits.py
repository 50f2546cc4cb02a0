"""Refuses what a sampler cannot compute, in the same words whichever engine is asked."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sojourn.backends.torch.sampler.sampling import Choices
from sojourn.config.fields import TEMPERATURE
from sojourn.errors import BudgetError, ModelError
from sojourn.types import IntArray, Prompt, SamplingParams


def checked_tokens(prompt: Prompt, vocab_size: int) -> IntArray:
    """Returns the tokens of a prompt. Raises `ModelError` where it has images, or no tokens, or unknown ones."""
    if prompt.images:
        raise ModelError(f"a prompt has {len(prompt.images)} images: expected text only: this engine reads none")
    tokens = np.asarray(prompt.tokens, dtype=np.int64)
    if not len(tokens):
        raise ModelError("an empty prompt: expected at least one token to go on from")
    require_ids(tokens, vocab_size)
    return tokens


def checked_choices(params: SamplingParams, stops: Iterable[int], vocab_size: int) -> Choices | None:
    """Returns the choices that a sample has, none of which is made yet; None where it has none. Raises `ModelError`
    where one has an unknown token."""
    if not params.choices:
        return None
    choices = Choices(params.choices, tuple(stops))
    require_ids(np.array(choices.ids, dtype=np.int64), vocab_size)
    return choices


def require_ids(tokens: IntArray, vocab_size: int) -> None:
    if tokens.view(np.uint64).max(initial=0) >= vocab_size:  # where negative ones are the greatest
        raise ModelError(
            f"token ids from {tokens.min()} to {tokens.max()}: expected 0 to {vocab_size - 1}: "
            "the tokenizer is not this model's"
        )


def require_samplable(tokens: IntArray, params: SamplingParams, max_context: int) -> None:
    """Raises `ModelError` where the temperature is too low, `BudgetError` where prompt and `max_tokens` exceed
    `max_context`."""
    if not TEMPERATURE.holds(params.temperature):
        raise ModelError(f"sampling.temperature = {params.temperature:g}: expected {TEMPERATURE.expected(float)}")
    if params.max_tokens < 1:
        raise BudgetError(f"max_tokens = {params.max_tokens}: expected room for at least one token to sample")
    if len(tokens) + params.max_tokens > max_context:
        raise BudgetError(
            f"a prompt of {len(tokens)} tokens and {params.max_tokens} to sample exceed the {max_context} "
            "of a context: shorten the prompt, lower max_tokens or raise max_context"
        )


def require_scorable(tokens: IntArray, max_context: int) -> None:
    if len(tokens) > max_context:
        raise BudgetError(f"a prompt of {len(tokens)} tokens exceeds the {max_context} of a context")
