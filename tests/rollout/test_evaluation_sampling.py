"""Evaluations sample by settings of their own: nothing that narrows the samples of training is left in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_world import Odd, Says, components

from sojourn.arena.checkpoints import LoadedModel
from sojourn.models.spec import Sampling
from sojourn.protocols import AgentContext
from sojourn.train.evaluate import evaluate
from sojourn.train.recipe import Evaluation
from sojourn.types import SamplingParams

NARROW = Sampling(max_tokens=8, temperature=0.7, top_p=0.9, top_k=3, min_p=0.1, stop_strings=("!",))


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (Evaluation(tasks=1), SamplingParams(8, stop_strings=("!",))),
        (
            Evaluation(tasks=1, temperature=0.5, top_p=0.8, top_k=7, min_p=0.2),
            SamplingParams(8, 0.5, 0.8, 7, 0.2, stop_strings=("!",)),
        ),
    ],
)
async def test_an_evaluation_and_a_match_sample_by_the_evaluation_settings(
    evaluation: Evaluation, expected: SamplingParams
):
    sampler = Says()
    made = components(Odd(), sampler)
    made.recipe = replace(made.recipe, sampling=NARROW, evaluation=evaluation)
    await evaluate(made, "evaluation")
    assert [replace(params, seed=0) for params in sampler.asked] == [expected]
    model = LoadedModel(made.recipe, made.renderer, sampler, 256)
    context = AgentContext(
        name="agent", renderer=made.renderer, sampler=sampler, params=SamplingParams(1, seed=5), max_context=256
    )
    assert model.context(context).params == replace(expected, seed=5)
    assert model.context(context, greedy=True).params == replace(expected, seed=5, temperature=0.0)
