"""Estimators, losses and weights against verl's, on random episodes of several turns (see requirements.txt)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import group, paid, trajectory

from sojourn.backends.torch.trainer.pass_io import select_tokens
from sojourn.batch import Aggregate, to_batch
from sojourn.credit.gae import GAE
from sojourn.credit.grpo import GRPO
from sojourn.credit.opo import OPO
from sojourn.credit.reinforce_pp import ReinforcePP
from sojourn.credit.rloo import RLOO
from sojourn.credit.turn_gae import TurnGAE
from sojourn.credit.whitened import Whitened
from sojourn.losses.cispo import CISPO
from sojourn.losses.clip_cov import ClipCov
from sojourn.losses.gspo import GSPO
from sojourn.losses.importance import Importance
from sojourn.losses.kl import KL
from sojourn.losses.ppo import PPO
from sojourn.losses.reinforce import Reinforce
from sojourn.losses.sapo import SAPO
from sojourn.losses.value import Value
from sojourn.protocols import PassOutput
from sojourn.types import Ending

core = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")
correction = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
SEEDS = range(3)


def played(seed):
    """Groups of 4, 3 and 2 episodes of 1 to 3 turns, and their rewards, all at the end."""
    rng = np.random.default_rng(seed)
    groups, scores = [], []
    for slot, size in enumerate((4, 3, 2)):
        lengths = [rng.integers(1, 5, rng.integers(1, 4)).tolist() for _ in range(size)]
        drawn = [[-rng.uniform(0.1, 3, n) for n in turns] for turns in lengths]
        lines = [trajectory(n, logprobs=d) for n, d in zip(lengths, drawn, strict=True)]
        groups.append(group(*lines, slot=slot))
        scores.append(paid(*([0.0] * (len(n) - 1) + [float(rng.normal())] for n in lengths)))
    return groups, scores


def batch_of(groups, credit, aggregate=None):
    return to_batch(groups, credit, {}, aggregate=aggregate or Aggregate())


def padded(batch, column) -> torch.Tensor:
    """A row for each sequence: (S, T), 0 behind its end."""
    rows = [torch.as_tensor(column[a:b]) for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).float()


def rewarded(groups, scores, batch):
    """Each return at its last sampled token, the mask of sampled tokens, and the group of each row."""
    mask = padded(batch, (batch.weight > 0).astype(np.float32))
    rewards = torch.zeros_like(mask)
    for row, score in enumerate(score for judged in scores for score in judged):
        rewards[row, int(mask[row].nonzero()[-1])] = score.total
    return rewards, mask, np.repeat(np.arange(len(groups)), [len(g.episodes) for g in groups])


def bessel(groups, batch):
    """What a population's deviation is of the sample's, for each row."""
    return torch.tensor([((len(g.episodes) - 1) / len(g.episodes)) ** 0.5 for g in groups for _ in g.episodes])[:, None]


def tokens(groups, batch):
    count = int((batch.weight > 0).sum())
    return ((count - 1) / count) ** 0.5


def plain(groups, batch):
    return 1.0


PAIRS = [
    (GRPO(epsilon=1e-6), "grpo", {}, bessel),
    (GRPO(scale_by_std=False), "grpo", {"norm_adv_by_std_in_grpo": False}, plain),
    (RLOO(), "rloo_vectorized", {}, plain),
    (OPO(), "opo", {}, plain),
    (ReinforcePP(), "reinforce_plus_plus", {"config": "algorithm"}, tokens),
    (ReinforcePP(baseline=True), "reinforce_plus_plus_baseline", {"config": "algorithm"}, tokens),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("estimator", "theirs", "options", "factor"), PAIRS, ids=lambda value: str(value)[:40])
def test_estimators(estimator, theirs, options, factor, seed):
    groups, scores = played(seed)
    batch = batch_of(groups, estimator(groups, scores, {}))
    rewards, mask, index = rewarded(groups, scores, batch)
    if options.get("config"):
        from verl.trainer.config import AlgoConfig

        options = {"config": AlgoConfig(gamma=1.0)}
    given, _ = core.get_adv_estimator_fn(theirs)(
        token_level_rewards=rewards, response_mask=mask, index=index, **options
    )
    own = padded(batch, batch.advantages) * mask * factor(groups, batch)
    torch.testing.assert_close(own, given.float() * mask, atol=1e-4, rtol=1e-4)


def criticised(groups, seed):
    """What a critic says before and after each token, at random."""
    rng = np.random.default_rng(seed)
    return {
        name: [[tuple(rng.normal(size=len(turn.sample.tokens)).astype(np.float32) for turn in t.turns)
                for t in g.trajectories] for g in groups]
        for name in ("values", "next_values")
    }  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8)])
def test_gae(gamma, lam, seed):
    groups, scores = played(seed)
    streams = criticised(groups, seed)
    credit = Whitened(base=GAE(discount=gamma, token_discount=gamma, lam=lam))(groups, scores, streams)
    batch = to_batch(groups, credit, streams, aggregate=Aggregate())
    rewards, mask, _ = rewarded(groups, scores, batch)
    values = padded(batch, batch.streams["values"])
    given, learnt = core.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    own = padded(batch, batch.advantages) * tokens(groups, batch)
    torch.testing.assert_close(own * mask, given * mask, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(padded(batch, batch.streams["targets"]) * mask, learnt * mask, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cut", [True, False])
def test_turn_gae_of_what_was_cut_off(cut, seed):
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    groups, scores = played(seed)
    ending = Ending.TURNS if cut else Ending.DONE
    one = replace(groups[0].trajectories[0], ending=ending)
    made = [replace(groups[0], episodes=(replace(groups[0].episodes[0], trajectories=(one,)),))]
    streams = criticised(made, seed)
    [[credit]] = TurnGAE(discount=0.9, lam=0.8)(made, [[scores[0][0]]], streams)
    first = np.array([turn[0] for turn in streams["values"][0][0]])
    ahead = np.append(first[1:], streams["next_values"][0][0][-1][-1])
    column = {name: torch.tensor(np.array(v, dtype=np.float32))[:, None] for name, v in
              {"state_value": first, "next_state_value": ahead, "reward": scores[0][0].turns}.items()}  # fmt: skip
    done = torch.tensor([n == len(first) - 1 for n in range(len(first))])[:, None]
    ended = done if not cut else torch.zeros_like(done)
    given, learnt = functional.generalized_advantage_estimate(0.9, 0.8, **column, done=done, terminated=ended)
    own = [[float(turn[0]) for turn in of] for of in (credit.tokens, credit.targets)]
    assert own == [pytest.approx(of[:, 0].tolist(), abs=1e-5) for of in (given, learnt)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("clip", [0.2, 0.5])
def test_the_clipped_value_loss(clip, seed):
    groups, scores = played(seed)
    streams = criticised(groups, seed)
    loss, credit = Value(clip=clip), GAE()(groups, scores, streams)
    batch = to_batch(groups, credit, streams, aggregate=Aggregate(), losses=[loss])
    said = (batch.streams["values"] + np.random.default_rng(seed).normal(0, 0.5, len(batch))).astype(np.float32)
    where = np.flatnonzero(batch.weight)
    now, chosen = torch.from_numpy(said[where]).requires_grad_(), select_tokens(batch, where)
    zeros = torch.zeros(len(where))
    own = (loss(PassOutput(zeros, zeros, now), chosen)[0] * chosen.weight).sum()
    theirs, mask = padded(batch, said).requires_grad_(), padded(batch, (batch.weight > 0).astype(np.float32))
    returns, values = (padded(batch, batch.streams[name]) for name in ("targets", "values"))
    given, _ = core.compute_value_loss(theirs, returns, values, mask, clip, "token-mean")
    torch.testing.assert_close(own, given, atol=1e-5, rtol=1e-4)
    spread = np.zeros(len(batch), dtype=np.float32)
    spread[where] = torch.autograd.grad(own, [now])[0].numpy()
    torch.testing.assert_close(padded(batch, spread), torch.autograd.grad(given, [theirs])[0], atol=1e-6, rtol=1e-4)


def actor(**changes):
    from verl.workers.config import ActorConfig

    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 1e9, **changes}
    return ActorConfig(strategy="fsdp", rollout_n=2, ppo_micro_batch_size_per_gpu=1, clip_ratio=0.2, **settings)


BY_TOKEN, BY_SEQUENCE = (Aggregate(by="token"), "token-mean"), (Aggregate(by="sequence"), "seq-mean-token-mean")
LOSSES = [
    (PPO(), "vanilla", {}, BY_TOKEN),
    (PPO(clip_high=0.28, dual_clip=3.0), "vanilla", {"clip_ratio_high": 0.28, "clip_ratio_c": 3.0}, BY_SEQUENCE),
    (GSPO(token_form=True), "gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, BY_SEQUENCE),
    (SAPO(), "sapo", {}, BY_SEQUENCE),
    (CISPO(clip_low=0.2, clip_high=0.28), "cispo", {"clip_ratio_high": 0.28}, BY_TOKEN),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("loss", "theirs", "settings", "how"), LOSSES, ids=lambda value: str(value)[:40])
def test_losses_and_their_gradients(loss, theirs, settings, how, seed):
    groups, scores = played(seed)
    batch = batch_of(groups, RLOO()(groups, scores, {}), how[0])
    gap = np.random.default_rng(seed).normal(0, 0.4, len(batch)).astype(np.float32)
    value, gradient = own_loss(loss, batch, gap)
    mask = padded(batch, (batch.weight > 0).astype(np.float32))
    now = padded(batch, batch.logprobs + gap).requires_grad_()
    given, _ = core.get_policy_loss_fn(theirs)(
        old_log_prob=padded(batch, batch.logprobs),
        log_prob=now,
        advantages=padded(batch, batch.advantages),
        response_mask=mask,
        loss_agg_mode=how[1],
        config=actor(**settings),
    )
    torch.testing.assert_close(value, given, atol=1e-5, rtol=1e-4)
    [expected] = torch.autograd.grad(given, [now])
    torch.testing.assert_close(padded(batch, gradient), expected, atol=1e-6, rtol=1e-3)


def own_loss(loss, batch, gap, **streams):
    """The weighted sum, and its gradient laid out along the batch."""
    batch = replace(batch, streams=streams)
    if hasattr(loss, "choose"):
        batch = replace(batch, streams={**streams, **loss.choose(batch, batch.logprobs + gap)})
    where = np.flatnonzero(batch.weight)
    now = torch.from_numpy((batch.logprobs + gap)[where]).requires_grad_()
    chosen = select_tokens(batch, where)
    per_token, _ = loss(PassOutput(now, torch.zeros_like(now), torch.zeros(0)), chosen)
    value = (per_token * chosen.weight).sum()
    [gradient] = torch.autograd.grad(value, [now])
    spread = np.zeros(len(batch), dtype=np.float32)
    spread[where] = gradient.numpy()
    return value.detach(), spread


def test_clip_cov_where_all_that_may_be_chosen_is():
    from verl.workers.config.actor import PolicyLossConfig

    groups, scores = played(0)
    batch = batch_of(groups, RLOO()(groups, scores, {}))
    value, gradient = own_loss(
        ClipCov(fraction=1.0, min_covariance=0.1, max_covariance=1e9), batch, np.zeros(len(batch), dtype=np.float32)
    )
    now = padded(batch, batch.logprobs).requires_grad_()
    chosen = PolicyLossConfig(clip_cov_ratio=1.0, clip_cov_lb=0.1, clip_cov_ub=1e9)
    given, _ = core.get_policy_loss_fn("clip_cov")(
        old_log_prob=padded(batch, batch.logprobs),
        log_prob=now,
        advantages=padded(batch, batch.advantages),
        response_mask=padded(batch, (batch.weight > 0).astype(np.float32)),
        loss_agg_mode="token-mean",
        config=actor(policy_loss=chosen),
    )
    torch.testing.assert_close(value, given, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(padded(batch, gradient), torch.autograd.grad(given, [now])[0], atol=1e-6, rtol=1e-3)
    assert (gradient[batch.weight > 0] == 0).any()


@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
def test_kl(form):
    groups, scores = played(1)
    batch = batch_of(groups, RLOO()(groups, scores, {}))
    gap = np.random.default_rng(1).normal(0, 0.4, len(batch)).astype(np.float32)
    value, _ = own_loss(KL(coef=1.0, kl_estimator=form), batch, gap, ref_logprobs=batch.logprobs)
    estimate = core.kl_penalty(padded(batch, batch.logprobs + gap), padded(batch, batch.logprobs), form)
    mask = padded(batch, (batch.weight > 0).astype(np.float32))
    torch.testing.assert_close(value, core.agg_loss(estimate, mask, "token-mean"), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "level", "threshold"),
    [
        ({}, "token", 2.0),
        ({"mode": "mask", "min_weight": 0.5}, "token", "0.5_2.0"),
        ({"level": "sequence"}, "sequence", 2.0),
    ],
)
def test_importance_weights(settings, level, threshold):
    groups, scores = played(2)
    batch = batch_of(groups, RLOO()(groups, scores, {}))
    gap = np.random.default_rng(2).normal(0, 0.5, len(batch)).astype(np.float32)
    batch = replace(batch, advantages=np.ones(len(batch), dtype=np.float32))
    loss = Importance(base=Reinforce(), **settings)
    _, gradient = own_loss(loss, batch, gap, policy_logprobs=batch.logprobs + gap)
    mask = padded(batch, (batch.weight > 0).astype(np.float32))
    given, _ = correction.compute_rollout_correction_weights(padded(batch, gap), mask, level, threshold)
    weight = padded(batch, batch.weight)
    torch.testing.assert_close(padded(batch, -gradient), given * weight * mask, atol=1e-6, rtol=1e-3)
