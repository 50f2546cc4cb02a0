"""Which tokens are of what succeeded, from the stream to the gradient of the loss that reads it."""

import copy
from typing import Any, cast

import numpy as np
import pytest
from cases import group, trajectory

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import Aggregate, to_batch
from sojourn.losses.papers.positive_nll import PositiveNLL
from sojourn.optim import Optim
from sojourn.streams.success import Success
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import Credit


def played(won: bool, *lengths: int):
    return trajectory(lengths, infos=[{}] * (len(lengths) - 1) + [{"success": float(won)}])


async def test_the_tokens_of_what_succeeded_are_told_from_the_others():
    groups = [group(played(False, 2, 1), played(True, 2, 1)), group(played(True, 1), slot=1)]
    told = await Success()(TrainerPasses(groups, [], cast(Any, None)))
    assert [[[turn.tolist() for turn in t] for t in some] for some in told] == [
        [[[0, 0], [0]], [[1, 1], [1]]],
        [[[1]]],
    ]


async def nowhere(weights, version):
    pass


async def test_a_step_makes_what_succeeded_likelier_and_says_how_likely_it_was():
    groups = [group(played(False, 3), played(True, 4), played(False, 6))]
    credit = [[Credit.uniform(t, 0.0) for t in groups[0].trajectories]]  # no advantage anywhere
    trainer = TorchTrainer(
        ModelPasses(copy.deepcopy(loading.load("tiny:layers=1,hidden=64").model), bf16=False, token_budget=200), nowhere
    )
    trainer.begin(Optim(lr=1e-2), 1, reference=False)
    streams = {"success": await Success()(TrainerPasses(groups, [], trainer))}
    loss = PositiveNLL(coef=0.1)
    batch = to_batch(groups, credit, streams, aggregate=Aggregate(by="token"), losses=[loss])
    before = (await trainer.forward(batch)).logprobs
    won = batch.streams["success"] * (batch.weight > 0) > 0
    metrics = await trainer.forward_backward(batch, [loss])
    await trainer.optim_step()
    after = (await trainer.forward(batch)).logprobs
    assert won.sum() == 4
    assert metrics["positive_nll"] == pytest.approx(-float(before[won].mean()), rel=1e-4)
    assert metrics["loss"] == pytest.approx(-0.1 * float(before[won].mean()), rel=1e-4)
    assert np.mean(after[won]) > np.mean(before[won])
