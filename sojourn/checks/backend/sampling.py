"""Checks samples: they obey their parameters, the seed determines them, and their log-probabilities are right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from sojourn.checks.backend.opened import (
    MAX_TOKENS,
    QUESTIONS,
    TOLERANCE,
    Case,
    OpenBackend,
    batch_of,
    require_on_policy,
    require_same_sample,
)
from sojourn.checks.promise import BrokenError
from sojourn.types import Prompt, Sample, Stop


async def samples(case: Case) -> str:
    one, count = case.opened[0], 0
    for text in QUESTIONS:
        for seed in range(3):
            for temperature in (1.0, 0.5, 0.0):
                require_sample(await one.sample(text, seed, temperature=temperature), one, ())
            require_sample(await one.sample(text, seed, choices=one.choices()), one, one.choices())
            count += 4
    return f"{count} samples"


async def seeded(case: Case) -> str:
    one = case.opened[0]
    alone = [await one.sample(text, seed) for seed in range(4) for text in QUESTIONS]
    crowd = [one.sample(text, seed) for seed in range(8) for text in QUESTIONS]
    for seed, (was, now) in enumerate(zip(alone, await asyncio.gather(*crowd), strict=False)):
        require_same_sample(was, now, f"seed {seed // len(QUESTIONS)}, among others,")
    if len({sample.tokens.tobytes() for sample in alone[:: len(QUESTIONS)]}) == 1:
        raise BrokenError("four seeds gave one sample: expected samples that depend on the seed")
    return "alone and among others"


async def agrees(case: Case) -> str:
    one = case.opened[0]
    worst = 0.0
    settings: dict[str, dict[str, Any]] = {
        "at temperature 1": {},
        "at temperature 0.6": {"temperature": 0.6},
        "over choices": {"choices": one.choices()},
    }
    for setting, params in settings.items():
        played = [await one.play(text, seed, **params) for seed in range(3) for text in QUESTIONS]
        worst = max(worst, await require_on_policy(one, batch_of(played), setting))
    return f"to {worst:.1g} nats, at two temperatures, over choices, over two turns"


async def scores(case: Case) -> str:
    one = case.opened[0]
    sample = await one.sample(QUESTIONS[0], 1)
    prompt = one.prompt(QUESTIONS[0]).tokens
    scored = await one.sampler.score(Prompt(np.concatenate([prompt, sample.tokens])))
    if len(scored) != len(prompt) + len(sample.tokens) - 1:
        raise BrokenError(f"{len(scored)} logprobs for {len(prompt) + len(sample.tokens)} tokens: expected one less")
    gap = float(np.abs(np.asarray(scored)[len(prompt) - 1 :] - sample.logprobs).max())
    if not gap < TOLERANCE:
        raise BrokenError(f"score() and sample() differ by {gap:.3g} nats on a token: expected less than {TOLERANCE:g}")
    return f"to {gap:.1g} nats"


def require_sample(sample: Any, one: OpenBackend, choices: Sequence[Sequence[int]]) -> None:
    if not isinstance(sample, Sample):
        raise BrokenError(f"sample() gave a {type(sample).__name__}: expected a Sample")
    tokens = sample.tokens.tolist()
    if not 1 <= len(tokens) <= MAX_TOKENS:
        raise BrokenError(f"{len(tokens)} tokens: expected 1 to {MAX_TOKENS}, as max_tokens asks")
    if not (np.isfinite(sample.logprobs).all() and (sample.logprobs <= 1e-5).all()):
        raise BrokenError(f"the logprobs {sample.logprobs.tolist()}: expected finite ones, none above 0")
    if choices:
        if not any(list(choice)[: len(tokens)] == tokens for choice in choices):
            raise BrokenError(f"the tokens {tokens} begin no choice: expected one of {[list(c) for c in choices]}")
        return
    ended = tokens[-1] in one.renderer.stops
    if ended != (sample.stop is Stop.END) or not (ended or len(tokens) == MAX_TOKENS):
        last = "a" if ended else "no"
        raise BrokenError(f"{len(tokens)} tokens, the last {last} stop token, and it stopped for '{sample.stop}'")
