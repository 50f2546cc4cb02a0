"""What a loss chooses, it chooses in each minibatch, by the weights that it is about to update; a tiny real model."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cases import of_episodes, paid
from made import trajectory

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import Aggregate
from sojourn.batch.flatten import flatten, scatter
from sojourn.credit.reinforce import Reinforce
from sojourn.losses.clip_cov import ClipCov
from sojourn.losses.importance import Importance
from sojourn.losses.kl_cov import KLCov
from sojourn.losses.papers.m2po import M2PO
from sojourn.losses.ppo import PPO
from sojourn.optim import Optim
from sojourn.rewards.reward_cache import RewardCache
from sojourn.streams.policy_logprobs import PolicyLogprobs
from sojourn.train.loop import Learner, StageLoop, train

COUNT = 3


class Recording(TorchTrainer):
    """Keeps each minibatch that it is given, with the log-probabilities of the weights before its update."""

    async def forward_backward(self, batch, losses):
        self.seen.append((batch, (await self.forward(batch)).logprobs))
        return await super().forward_backward(batch, losses)


async def updates(loss, seed=0):
    """Returns the minibatches of one step of 12 plays of the present weights, each of which moves them far."""
    rng = np.random.default_rng(seed)
    scores = [paid(*([0, 0, float(n % 2)] for n in range(12)))]
    made = Recording(ModelPasses(loading.load("tiny", "fp32", 0).model, bf16=False, token_budget=100_000), nowhere)
    made.seen = []
    made.begin(Optim(lr=1e-2), 10, reference=False)
    plays = [trajectory(rng) for _ in range(12)]
    batch, places = flatten([of_episodes([[play] for play in plays])])
    [known] = scatter([of_episodes([[play] for play in plays])], (await made.forward(batch)).logprobs, places)
    group = of_episodes([[sampled(*of)] for of in zip(plays, known, strict=True)])

    async def answer(value):
        return value

    source = SimpleNamespace(take=lambda step: answer([group]))
    curriculum = SimpleNamespace(observe=lambda groups, scores: None)
    rewards = RewardCache(lambda group: answer(scores[0]))
    learner = Learner(
        trainer=made,
        estimator=Reinforce(),
        losses=[loss],
        streams=[PolicyLogprobs()],
        aggregate=Aggregate(),
        minibatches=COUNT,
    )
    run = StageLoop(
        steps=1,
        source=source,
        rewards=rewards,
        learners=[learner],
        observe=curriculum.observe,
        on_step_end=lambda step, result: answer(False),
    )
    await train(run)
    assert len(made.seen) == COUNT
    return made.seen


def sampled(play, logprobs):
    turns = zip(play.turns, logprobs, strict=True)
    return replace(play, turns=tuple(replace(t, sample=replace(t.sample, logprobs=known)) for t, known in turns))


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


async def test_kl_cov_holds_tokens_back_in_each_minibatch():
    for part, logprobs in await updates(KLCov(fraction=1e-9)):
        [held] = np.flatnonzero(part.streams["kl_cov"])
        where = np.flatnonzero(part.weight)
        gaps = [column[where] - column[where].mean() for column in (logprobs, part.advantages)]
        assert held == where[np.argmax(gaps[0] * gaps[1])]


async def test_clip_cov_silences_tokens_of_each_minibatch_that_the_clip_lets_through():
    silenced = 0
    for part, logprobs in await updates(ClipCov(min_covariance=0.0, max_covariance=1e9, fraction=1.0)):
        where = np.flatnonzero(part.weight)
        gaps = [column[where] - column[where].mean() for column in (logprobs, part.advantages)]
        ratio, advantages = np.exp(logprobs - part.logprobs)[where], part.advantages[where]
        clipped = ((ratio > 1.2) & (advantages > 0)) | ((ratio < 0.8) & (advantages < 0))
        np.testing.assert_array_equal(part.streams["clip_cov"][where], (gaps[0] * gaps[1] > 0) & ~clipped)
        silenced += part.streams["clip_cov"].sum()
    assert silenced > COUNT


@pytest.mark.parametrize("seed", [0, 1])
async def test_m2po_keeps_its_bound_in_each_minibatch(seed):
    """By the weights that it updates: those have moved since the step began."""
    counts = []
    for part, logprobs in await updates(M2PO(), seed):
        far, left_out = np.square(logprobs - part.logprobs), part.streams["m2po"] > 0
        onward = ((logprobs - part.logprobs) * part.advantages > 0) & (part.weight > 0)
        assert far[onward & ~left_out].sum() <= 0.04 * (onward & ~left_out).sum() + 1e-6
        assert not left_out[~onward].any()
        assert far[onward & ~left_out].max(initial=0) <= far[left_out].min(initial=np.inf)
        counts.append(left_out.sum())
    assert counts[0] == 0 < counts[-1]


async def test_what_chooses_nothing_costs_no_pass():
    assert not Importance(base=PPO()).chooses
    part, _ = (await updates(PPO()))[0]
    assert set(part.streams) == {"policy_logprobs"}


async def test_importance_lets_its_base_choose_by_the_ratio_that_it_has():
    """To the weights at the beginning of the step: these made the first minibatch's, so nothing is far from them."""
    (first, _), (second, logprobs), *_ = await updates(Importance(base=M2PO()))
    assert not first.streams["m2po"].any()
    near = replace(second, logprobs=second.streams["policy_logprobs"])
    np.testing.assert_array_equal(second.streams["m2po"], M2PO().choose(near, logprobs)["m2po"])
    assert second.streams["m2po"].any()
