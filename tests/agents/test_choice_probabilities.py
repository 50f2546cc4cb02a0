"""The probabilities of listed choices are those with which the engine draws them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from engine_models import STOP, VOCABULARY, build

from sojourn.agents.choice_probabilities import choice_probabilities
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.types import Prompt, SamplingParams, Stop

PROMPT = Prompt(np.random.default_rng(3).integers(4, VOCABULARY, 20))
CHOICES = ((5, 6, 7), (5, 6, 8), (5, 9), (10,), (11, 12, 13, 14), (11, 12, 15), (16, 17, 18))
NESTED = ((5, 6), (5, 6, 7), (5, 6, 8), (9,))  # the first begins two others
SAMPLES = 600


@pytest.fixture
async def engine():
    opened = Engine(build("llama"), stops=(STOP, STOP - 1), max_context=200)
    yield opened
    await opened.close()


async def frequencies(engine: Engine, params: SamplingParams) -> tuple[Counter[tuple[int, ...]], dict[int, float]]:
    """Returns how often each choice is drawn, and the probability of each drawn one by its own log-probabilities."""
    drawn: Counter[tuple[int, ...]] = Counter()
    known: dict[int, float] = {}
    for sample in await asyncio.gather(*(engine.sample(PROMPT, replace(params, seed=n)) for n in range(SAMPLES))):
        assert sample.stop is Stop.CHOICE
        tokens = tuple(sample.tokens.tolist())
        place = params.choices.index(tokens if tokens in params.choices else tokens[:-1])  # a stop token ends it
        drawn[params.choices[place]] += 1
        if tokens in params.choices:
            known[place] = math.exp(sample.logprobs.sum())
    return drawn, known


CASES = {
    "as it is": SamplingParams(8, choices=CHOICES),
    "cold": SamplingParams(8, temperature=0.5, choices=CHOICES),
    "hot": SamplingParams(8, temperature=3.0, choices=CHOICES),
    "top k": SamplingParams(8, top_k=2, choices=CHOICES),
    "top p": SamplingParams(8, top_p=0.6, choices=CHOICES),
    "min p": SamplingParams(8, temperature=2.0, min_p=0.5, choices=CHOICES),
    "one begins another": SamplingParams(8, choices=NESTED),
    "greedy": SamplingParams(8, temperature=0.0, choices=CHOICES),
    "a single one": SamplingParams(8, choices=CHOICES[:1]),
}


@pytest.mark.parametrize("case", CASES)
async def test_they_are_those_of_samples(engine: Engine, case: str):
    params = CASES[case]
    found = await choice_probabilities(engine, PROMPT, params.choices, params, (STOP, STOP - 1))
    assert sum(found) == pytest.approx(1.0)
    drawn, known = await frequencies(engine, params)
    for place, (choice, probability) in enumerate(zip(params.choices, found, strict=True)):
        spread = math.sqrt(probability * (1 - probability) / SAMPLES)
        assert abs(drawn[choice] / SAMPLES - probability) <= 4.5 * spread
        if place in known and params.temperature:  # a greedy sample has the log-probabilities of temperature 1
            assert probability == pytest.approx(known[place], abs=1e-5)
    assert max(found) == 1.0 or sum(probability > 0.01 for probability in found) > 1, "nothing to tell apart"


async def test_they_are_those_of_scores(engine: Engine):
    """Which are computed in another way, at once for all tokens and without choices."""
    found = await choice_probabilities(engine, PROMPT, CHOICES, CASES["as it is"])
    logprobs: dict[tuple[int, ...], float] = {}
    for choice in CHOICES:
        scores = await engine.score(Prompt(np.concatenate([PROMPT.tokens, np.array(choice)])))
        for depth in range(1, len(choice) + 1):
            logprobs[choice[:depth]] = float(scores[len(PROMPT.tokens) - 2 + depth])
    for choice, probability in zip(CHOICES, found, strict=True):
        expected = 1.0
        for depth in range(len(choice)):
            beside = {one[: depth + 1] for one in CHOICES if one[:depth] == choice[:depth] and len(one) > depth}
            expected *= math.exp(logprobs[choice[: depth + 1]]) / sum(math.exp(logprobs[one]) for one in beside)
        assert probability == pytest.approx(expected, abs=1e-5)


async def test_the_order_stays_and_what_is_listed_twice_counts_once(engine: Engine):
    params = CASES["as it is"]
    known = dict(zip(CHOICES, await choice_probabilities(engine, PROMPT, CHOICES, params), strict=True))
    listed = (CHOICES[3], *CHOICES[::-1], CHOICES[3])
    found = await choice_probabilities(engine, PROMPT, listed, params)
    assert found[0] == pytest.approx(known[CHOICES[3]], abs=1e-6)
    assert found[4] == found[-1] == 0.0
    assert listed[4] == CHOICES[3]
    assert found[1:4] == pytest.approx([known[choice] for choice in listed[1:4]], abs=1e-6)


async def test_the_prompt_is_computed_once(engine: Engine):
    """What the model computes is the prompt, and a token or two for each that is asked for."""
    before = engine.stats()
    await choice_probabilities(engine, PROMPT, CHOICES, CASES["as it is"])
    after = engine.stats()
    assert after.requests - before.requests == 3 + 1 + 1 + 1  # 4 first tokens; 6 or 9; 7 or 8; 13 or 15
    assert after.prefill_tokens - before.prefill_tokens <= len(PROMPT.tokens) + 2 * 6
