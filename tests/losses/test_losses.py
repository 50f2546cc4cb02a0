"""Losses against small examples worked by hand from their equations: values, and gradients by log-probabilities."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from forked import trees
from hypothesis import given
from hypothesis import strategies as st
from made import group, trajectory

from sojourn.backends.torch.trainer.pass_io import select_tokens
from sojourn.batch.flatten import flatten
from sojourn.losses.cispo import CISPO
from sojourn.losses.clip_cov import ClipCov
from sojourn.losses.gspo import GSPO
from sojourn.losses.importance import Importance
from sojourn.losses.kl import KL, kl_estimate
from sojourn.losses.kl_cov import KLCov
from sojourn.losses.papers.aepo import AEPO
from sojourn.losses.papers.bcoder import BCoder
from sojourn.losses.papers.epo import EPO
from sojourn.losses.papers.m2po import M2PO
from sojourn.losses.papers.positive_nll import PositiveNLL
from sojourn.losses.papers.st_ppo import STPPO
from sojourn.losses.papers.webrl import WebRL
from sojourn.losses.ppo import PPO
from sojourn.losses.reinforce import Reinforce
from sojourn.losses.sapo import SAPO
from sojourn.losses.value import Value
from sojourn.losses.weighted import Weighted
from sojourn.protocols import PassOutput
from sojourn.types import Batch


def batch_of(logprobs, advantages, turns=None, sequences=None, **streams):
    """Every token carries weight; by default all are of one turn."""
    count = len(logprobs)
    logprobs, advantages = (np.array(values, dtype=np.float32) for values in (logprobs, advantages))
    ones, numbers = np.ones(count, dtype=np.float32), np.array(turns or [0] * count)
    columns = {name: np.array(values, dtype=np.float32) for name, values in streams.items()}
    sequence = np.array(sequences or [0] * count)
    return Batch(np.arange(count), sequence, ones, logprobs, advantages, ones, numbers, numbers, streams=columns)


def called(loss, batch, logprobs, entropy=None):
    """The loss of each token, its gradient by log-probabilities and by entropies, and the metrics."""
    made = loss.columns(batch) if hasattr(loss, "columns") else {}
    if getattr(loss, "chooses", False):
        made = {**made, **loss.choose(batch, np.array(logprobs, dtype=np.float32))}
    batch = Batch(**{**vars(batch), "streams": {**batch.streams, **made}})
    chosen = select_tokens(batch, np.arange(len(batch)))
    now = torch.tensor(logprobs, dtype=torch.float32, requires_grad=True)
    entropies = torch.tensor(entropy or [1.0] * len(batch), dtype=torch.float32, requires_grad=True)
    value, metrics = loss(PassOutput(now, entropies, torch.zeros(0)), chosen)
    gradients = torch.autograd.grad(value.sum(), [now, entropies], allow_unused=True)
    found = [np.zeros(len(batch)) if g is None else g.numpy() for g in gradients]
    return value.detach().numpy(), *found, metrics


def at_ratios(loss, ratios, advantages, **columns):
    """With the sampler at -1 and the policy at these ratios to it."""
    batch = batch_of([-1.0] * len(ratios), advantages, **columns)
    return called(loss, batch, [-1 + math.log(r) for r in ratios])


def test_ppo_by_hand():
    value, gradient, _, metrics = at_ratios(PPO(), [1.5, 0.5, 0.5, 1.5], [1, 1, -1, -1])
    assert value == pytest.approx([-1.2, -0.5, 0.8, 1.5])
    assert gradient == pytest.approx([0, -0.5, 0, 1.5])
    assert metrics["clip_fraction"].tolist() == [1, 0, 1, 0]


def test_dual_clip_by_hand():
    value, gradient, *_ = at_ratios(PPO(dual_clip=3.0), [2, 5, 0.5, 5], [-1, -1, -1, 1])
    assert value == pytest.approx([2, 3, 0.8, -1.2])
    assert gradient == pytest.approx([2, 0, 0, 0])


def test_cispo_by_hand():
    batch = batch_of([-0.7 - math.log(1.5), -2 - math.log(0.5)], [1, -1])
    value, gradient, *_ = called(CISPO(clip_high=0.2), batch, [-0.7, -2])
    assert value == pytest.approx([0.84, -1.0])
    assert gradient == pytest.approx([-1.2, 0.5])
    value, gradient, *_ = called(CISPO(clip_low=0.2, clip_high=0.2), batch, [-0.7, -2])
    assert value[1] == pytest.approx(-1.6)
    assert gradient[1] == pytest.approx(0.8)


RATIOS = [1.10, 0.95, 1.30, 0.90]


def test_gspo_by_hand():
    value, gradient, *_ = at_ratios(GSPO(), RATIOS, [1] * 4)
    assert value == pytest.approx([-1.0004] * 4)
    assert not gradient.any()
    value, gradient, *_ = at_ratios(GSPO(), RATIOS, [-1] * 4)
    assert value == pytest.approx([1.051539] * 4)
    assert gradient / 4 == pytest.approx([0.262885] * 4)  # each of the 4 has a weight of 1/4 in the sequence's mean


def test_gspo_in_token_form_is_the_same_for_one_advantage():
    plain, tokens = (at_ratios(GSPO(token_form=form), RATIOS, [-1] * 4) for form in (False, True))
    for one, other in zip(plain[:2], tokens[:2], strict=True):
        assert one == pytest.approx(other)


def test_gspo_in_token_form_keeps_advantages_apart():
    _, gradient, *_ = at_ratios(GSPO(token_form=True), RATIOS, [-1, -2, 0, -1])
    assert gradient == pytest.approx([1.051539, 2.103078, 0, 1.051539])


def test_gspo_by_turns_and_by_sequences():
    turns, sequences = [0, 0, 1, 1], [0, 0, 0, 0]
    by_turn = at_ratios(GSPO(level="turn"), RATIOS, [-1] * 4, turns=turns, sequences=sequences)[0]
    assert by_turn == pytest.approx([math.sqrt(1.10 * 0.95)] * 2 + [math.sqrt(1.30 * 0.90)] * 2)
    assert at_ratios(GSPO(), RATIOS, [-1] * 4, turns=turns, sequences=sequences)[0] == pytest.approx([1.051539] * 4)


def test_sapo_by_hand():
    value, gradient, *_ = at_ratios(SAPO(), [1, 1.5, 0.5, 1.5], [1, 1, -1, -1])
    assert value == pytest.approx([-2, -2.489837, 1.415938, 2.393585])
    assert gradient == pytest.approx([-1, -1.410022, 0.467070, 1.401210], rel=1e-5)


def test_aepo_by_hand():
    value, gradient, *_ = at_ratios(AEPO(), [1.5, 0.7, 1.1, 1.5], [1.2, -1, 1, -1])
    assert value == pytest.approx([-1.44, 0.8, -1.1, 1.5])
    assert gradient == pytest.approx([-1.44, 0, -1.1, 1.5])


COVARYING = {"logprobs": [-0.1, -2.0, -0.2, -3.0], "advantages": [1, 1, -1, -1]}  # 1.225, -0.675, -1.125, 1.675


def test_clip_cov_by_hand():
    for _ in range(2):  # the same one again
        value, gradient, _, metrics = called(ClipCov(), batch_of(**COVARYING), COVARYING["logprobs"])
        [silent] = np.flatnonzero(metrics["silenced"].numpy())
        assert silent in (0, 3)
        assert value == pytest.approx([-a * (n != silent) for n, a in enumerate(COVARYING["advantages"])])
        assert gradient[silent] == 0
    both = called(ClipCov(fraction=0.5), batch_of(**COVARYING), COVARYING["logprobs"])[-1]["silenced"]
    assert both.tolist() == [1, 0, 0, 1]
    nobody = called(ClipCov(min_covariance=2.0), batch_of(**COVARYING), COVARYING["logprobs"])[-1]["silenced"]
    assert not nobody.any()


def test_kl_cov_by_hand():
    now = [*COVARYING["logprobs"][:3], -3.1]
    value, gradient, _, metrics = called(KLCov(), batch_of(**COVARYING), now)
    assert metrics["held_back"].tolist() == [0, 0, 0, 1]
    assert value == pytest.approx([-1, -1, 1, 0.909837], rel=1e-5)
    assert gradient == pytest.approx([-1, -1, 1, 0.804837], rel=1e-5)


def test_m2po_by_hand():
    gaps = [0.1, 0.2, 0.3, 0.6, -0.9, 0.0]  # the fifth goes against its advantage
    batch = batch_of([-1.0] * 6, [1] * 6)
    value, gradient, _, metrics = called(M2PO(), batch, [-1 + gap for gap in gaps])
    assert metrics["left_out"].tolist() == [0, 0, 1, 1, 0, 0]
    assert value == pytest.approx([-math.exp(0.1), -math.exp(0.2), 0, 0, -math.exp(-0.9), -1])
    assert gradient[2:4].tolist() == [0, 0]
    assert not called(M2PO(), batch, [-1.0] * 6)[-1]["left_out"].any()


def test_webrl_by_hand():
    """Two turns, of two tokens and of one, whose log-ratios to the reference are 0.75 and -0.5."""
    batch = batch_of([-9.0] * 3, [1, 1, 0], turns=[0, 0, 1], ref_logprobs=[-1.5, -1.25, -0.5])
    value, gradient, _, metrics = called(WebRL(beta=2), batch, [-1.0] * 3)
    assert metrics["turn_log_ratio"].tolist() == [0.75, 0.75, -0.5]
    assert value == pytest.approx([0.25, 0.25, 1])
    assert gradient == pytest.approx([4, 4, -4])  # 2 * 2 * 0.5 from each token of the first turn
    value, gradient, *_ = called(WebRL(beta=2, positive_only=True), batch, [-1.0] * 3)
    assert value == pytest.approx([0.25, 0.25, 0])
    assert gradient == pytest.approx([4, 4, 0])


def test_webrl_at_the_reference_has_the_gradient_of_reinforce():
    for advantage in (1.5, -0.5):
        batch = batch_of([-9.0, -9.0], [advantage] * 2, turns=[0, 1], ref_logprobs=[-1.0, -2.0])
        assert called(WebRL(beta=0.5), batch, [-1.0, -2.0])[1] == pytest.approx([-advantage] * 2)


def test_kl_by_hand():
    batch = batch_of([-1.0], [0], ref_logprobs=[-1.5])
    for form, value, gradient in (("k1", 0.5, 1), ("k2", 0.125, 0.5), ("k3", 0.106531, 0.393469)):
        found = called(KL(coef=1.0, kl_estimator=form), batch, [-1.0])
        assert found[0] == pytest.approx([value], rel=1e-5)
        assert found[1] == pytest.approx([gradient], rel=1e-5)


@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
def test_what_the_gradients_of_kl_are_on_average(form):
    """Two actions, by the logit between them: that of the KL for k2, of the KL the other way round for k3, 0 for k1."""
    policy, reference = np.array([0.7, 0.3]), np.array([0.4, 0.6])
    batch = batch_of(np.log(policy), [0, 0], ref_logprobs=np.log(reference))
    gradients = called(KL(coef=1.0, kl_estimator=form), batch, np.log(policy))[1]
    by_logit = np.array([0.3, -0.7])  # of log p, by the logit of the first
    found = float((policy * gradients * by_logit).sum())
    expected = {"k1": 0.0, "k2": 0.7 * 0.3 * math.log((0.7 / 0.3) / (0.4 / 0.6)), "k3": 0.7 - 0.4}[form]
    assert found == pytest.approx(expected, abs=1e-6)


def test_decoupled_ppo_by_hand():
    batch = batch_of([-1.0, -1.0], [1, 1], policy_logprobs=[-0.8, -0.8])
    value, gradient, *_ = called(Importance(max_weight=10), batch, [-0.5, -0.75])
    assert value == pytest.approx([-1.465683, -1.284025], rel=1e-5)
    assert gradient == pytest.approx([0, -1.284025], rel=1e-5)


GAPS = [0.1, -0.3, 1.2, 0.05]


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, [1.105171, 0.740818, 2, 1.051271]),
        ({"mode": "mask"}, [1.105171, 0.740818, 0, 1.051271]),
        ({"mode": "mask", "min_weight": 0.8}, [1.105171, 0, 0, 1.051271]),
        ({"level": "turn"}, [math.exp(-0.2)] * 2 + [2] * 2),
        ({"level": "turn", "combine": "mean"}, [math.exp(-0.1)] * 2 + [math.exp(0.625)] * 2),
        ({"level": "sequence", "max_weight": 3}, [math.exp(1.05)] * 4),
        ({"level": "sequence", "mode": "mask"}, [0] * 4),
    ],
)
def test_importance_weights_by_hand(settings, weights):
    columns = {"turns": [0, 0, 1, 1], "policy_logprobs": [-1 + gap for gap in GAPS]}
    batch = batch_of([-1.0] * 4, [1] * 4, **columns)
    loss = Importance(base=Reinforce(), **settings)
    gradient = called(loss, batch, [-1 + gap for gap in GAPS])[1]
    assert -gradient == pytest.approx(weights, rel=1e-5)


def test_importance_is_as_its_base_is():
    of = Importance(base=Reinforce())
    assert (of.needs, of.zero_at_zero_advantage, of.valid_for) == ({"policy_logprobs"}, True, {"lag"})
    assert Importance(base=KL()).needs == {"policy_logprobs", "ref_logprobs"}
    assert not Importance(base=KL()).zero_at_zero_advantage
    assert Importance().valid_for == {"lag", "updates"}
    batch = batch_of(**COVARYING, policy_logprobs=COVARYING["logprobs"])
    assert called(Importance(base=KLCov()), batch, COVARYING["logprobs"])[-1]["held_back"].any()
    remembers = Importance(base=EPO())
    remembers.columns(batch)
    other = Importance(base=EPO())
    other.restore(remembers.state())
    assert other.state() == remembers.state() != Importance(base=EPO()).state()


def test_a_loss_weighed_by_a_stream_by_hand():
    batch = batch_of([-1.0] * 4, [1, 1, -1, 2], success=[1, 0.5, 0.25, 0])
    value, gradient, _, metrics = called(Weighted(base=Reinforce()), batch, [-1.0, -2, -3, -4])
    assert gradient == pytest.approx([-1, -0.5, 0.25, 0])
    assert value == pytest.approx([1, 1, -0.75, 0])
    assert metrics["success_weight"].tolist() == [1, 0.5, 0.25, 0]


def test_a_critics_error_is_weighed_by_a_stream():
    """Errors of 0.5 and 2, of which the second counts a quarter: 0.25 / 2 and 4 / 2 / 4."""
    batch = batch_of([-1.0] * 2, [0, 0], turns=[0, 1], targets=[1.5, 3], values=[1, 1], ratio=[1, 0.25])
    loss = Weighted(base=Value(), stream="ratio")
    assert loss.needs == {"critic", "targets", "values", "ratio"}
    batch = Batch(**{**vars(batch), "streams": {**batch.streams, **loss.columns(batch)}})
    chosen, values = select_tokens(batch, np.arange(2)), torch.ones(2, requires_grad=True)
    per_token, metrics = loss(PassOutput(torch.zeros(2), torch.zeros(2), values), chosen)
    assert per_token.tolist() == pytest.approx([0.125, 0.5])
    assert torch.autograd.grad(per_token.sum(), values)[0].tolist() == pytest.approx([-0.5, -0.5])
    assert metrics["value_error"].tolist() == pytest.approx([0.25, 4])


def test_a_weighed_loss_is_as_its_base_is():
    of = Weighted(base=Reinforce())
    assert (of.needs, of.zero_at_zero_advantage, of.valid_for) == ({"success"}, True, frozenset())
    assert not Weighted(base=KL()).zero_at_zero_advantage
    batch = batch_of(**COVARYING, success=[1.0] * len(COVARYING["logprobs"]))
    assert called(Weighted(base=KLCov()), batch, COVARYING["logprobs"])[-1]["held_back"].any()
    remembers, other = Weighted(base=EPO()), Weighted(base=EPO())
    remembers.columns(batch)
    other.restore(remembers.state())
    assert other.state() == remembers.state() != Weighted(base=EPO()).state()
    with pytest.raises(ValueError, match="STPPO divides its gradient"):
        Weighted(base=STPPO())


def test_epo_by_hand():
    """Entropies before: 1.2, then 0.8; bounds 0.6 and 2 times their mean; step 2 of 8."""
    loss = EPO(min_ratio=0.6, max_ratio=2.0, penalty_coef=0.1, coef=0.001, decay=3.0, steps=8)
    batch = batch_of([-1.0] * 3, [0] * 3)
    first = called(loss, batch_of([-1.2] * 3, [0] * 3), [-1.0] * 3, entropy=[1.0, 3.0, 0.5])
    assert first[0] == pytest.approx([-0.001, -0.003, -0.0005])  # no past, no penalty
    loss.columns(batch_of([-0.8] * 3, [0] * 3))
    resumed = EPO(min_ratio=0.6, max_ratio=2.0, penalty_coef=0.1, coef=0.001, decay=3.0, steps=8)
    resumed.restore(loss.state())
    for one in (loss, resumed):
        value, _, by_entropy, _ = called(one, batch, [-1.0] * 3, entropy=[1.0, 3.0, 0.5])
        bonus, beyond = np.array([1.0, 3.0, 0.5]), np.array([0, 1.0, 0.1])
        assert value == pytest.approx(-0.001 * (bonus - 1.22313 * 0.1 * beyond), rel=1e-5)
        assert by_entropy == pytest.approx(-0.001 * (1 - 1.22313 * 0.1 * np.array([0, 1, -1])), rel=1e-5)


def test_epo_remembers_the_entropy_of_each_turn_of_an_episode():
    """First turns had 1 and then 2 (3 and 1), second turns 3; now two plays of one turn, and one of three."""
    loss = EPO(min_ratio=0.5, max_ratio=2.0)
    first = replace(batch_of([-1.0, -3.0, -3.0], [0] * 3, turns=[0, 1, 1]), trajectory=np.array([0, 0, 0]))
    second = replace(batch_of([-3.0, -1.0], [0] * 2, turns=[0, 1]), trajectory=np.array([0, 1]))
    for batch in (first, second):
        loss.columns(batch)
    now = batch_of([-1.0] * 6, [0] * 6, turns=[0, 1, 1, 2, 3, 4])
    columns = loss.columns(replace(now, trajectory=np.array([0, 1, 1, 2, 2, 2])))
    assert columns["epo_mean"].tolist() == pytest.approx([1.5, 1.5, 1.5, 1.5, 3.0, 0.0])
    assert (columns["epo_weight"] > 0).tolist() == [True] * 5 + [False]  # nobody had a third turn before
    assert loss.state()["past"] == [[1.0, 3.0], [2.0], [1.0, 1.0, 1.0]]


@given(tree=trees(), seed=st.integers(0, 99), order=st.permutations(range(8)))
def test_epo_counts_the_turns_of_a_trajectory_in_its_own_order(tree, seed, order):
    """Windows, forks within a trajectory and turns that plays share change no turn's number, nor does the order of the
    plays."""
    rng = np.random.default_rng(seed)
    parents = [[-1, 0, -1, 1], [-1, -1, 0, 1, 2, 0]]  # the leaves come in another order than the turns
    forests = [trajectory(rng, parents=of) for of in parents]
    episodes = (*tree.episodes, *group(forests, 1).episodes)
    entropies = dict[int, dict[int, list[float]]]()
    for of in (episode.trajectories[0] for episode in episodes):
        for number, turn in enumerate(of.turns):
            entropies.setdefault(number, {})[id(turn.sample)] = (-turn.sample.logprobs).tolist()
    expected = [np.mean([v for of in entropies[n].values() for v in of]) for n in range(len(entropies))]
    for some in (episodes, [episodes[n] for n in order if n < len(episodes)]):
        loss = EPO()
        loss.columns(flatten([replace(tree, episodes=tuple(some))])[0])
        assert loss.state()["past"][0] == pytest.approx(expected, rel=1e-5)


NAN = math.nan


def criticised(loss, values, targets, old=None, turns=None):
    """The loss of each token, and its gradient by what the critic says now."""
    batch = batch_of(
        [-1.0] * len(values), [0.0] * len(values), turns, targets=targets, values=old or [0.0] * len(values)
    )
    batch = Batch(**{**vars(batch), "streams": {**batch.streams, **loss.columns(batch)}})
    now = torch.tensor(values, requires_grad=True)
    zeros = torch.zeros(len(values))
    per_token, metrics = loss(PassOutput(zeros, zeros, now), select_tokens(batch, np.arange(len(batch))))
    [gradient] = torch.autograd.grad(per_token.sum(), [now])
    return per_token.detach().numpy(), gradient.numpy(), metrics


def test_value_by_hand():
    per_token, gradient, metrics = criticised(Value(coef=2.0), [0.9, 0.1], [1.0, 0.5], turns=[0, 1])
    assert per_token == pytest.approx([0.01, 0.16])
    assert gradient == pytest.approx([-0.2, -0.8])
    assert metrics["value"].tolist() == pytest.approx([0.9, 0.1])


def test_a_clipped_value_by_hand():
    per_token, gradient, _ = criticised(Value(coef=1.0, clip=0.5), [0.9, 0.4], [1.0, 1.0], [0.2, 0.2], turns=[0, 1])
    assert per_token == pytest.approx([0.045, 0.18])  # the first is held at 0.7, the second has not moved so far
    assert gradient == pytest.approx([0.0, -0.6])


def test_a_critic_asked_once_a_turn_weighs_as_much_as_one_asked_at_every_token():
    once, gradient, _ = criticised(Value(), [0.5, 9.0, 9.0, 0.0], [1.0, NAN, NAN, NAN], turns=[0, 0, 0, 1])
    assert once == pytest.approx([0.125, 0.125, 0.125, 0.0])
    assert gradient == pytest.approx([-1.5, 0.0, 0.0, 0.0])
    always, gradient, _ = criticised(Value(), [0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    assert always == pytest.approx([0.125] * 3)
    assert gradient.sum() == pytest.approx(-1.5)


def test_huber_by_hand():
    per_token, gradient, _ = criticised(Value(huber_delta=1.0), [0.5, 3.0], [0.0, 0.0], turns=[0, 1])
    assert per_token == pytest.approx([0.125, 2.5])
    assert gradient == pytest.approx([0.5, 1.0])


def test_bcoder_by_hand():
    """Logits 2, 1, 0, of which the second was said: A = -1, V = 0.3, Q = -0.7 for a target of -0.5994."""
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 2, requires_grad=True)
    logp, values = logits.log_softmax(1), torch.tensor([0.3, 0.3], requires_grad=True)
    batch = batch_of([-1.0] * 2, [0.0, 1.0], targets=[-0.5994, NAN])
    out = PassOutput(logp[:, 1], torch.zeros(2), values, {"top_logprob": logp.max(1).values})
    per_token, _ = BCoder()(out, select_tokens(batch, np.arange(2)))
    assert per_token.tolist() == pytest.approx([0.01012, 0.1 * 1 - 0.5 * float(logp[1, 1].detach())], abs=1e-5)
    to_logits, to_values = torch.autograd.grad(per_token[0], [logits, values], retain_graph=True)
    assert to_values.tolist() == pytest.approx([2 * -0.1006, 0.0], abs=1e-5)
    assert to_logits[0].tolist() == pytest.approx([2 * 0.1006, -2 * 0.1006, 0.0], abs=1e-5)


def test_explained_variance():
    for said, expected in (([1.0, 0.0, 1.0], 1.0), ([0.5] * 3, 0.0), ([0.0, 1.0, 0.0], -3.0)):
        _, _, metrics = criticised(Value(), [0.0] * 3, [1.0, 0.0, 1.0], said)
        assert metrics["explained_variance"].tolist() == pytest.approx([expected] * 3)
    _, _, metrics = criticised(Value(), [0.0, 0.0], [1.0, 1.0])
    assert metrics["explained_variance"].tolist() == [0.0, 0.0]


def test_st_ppo_by_hand():
    """The geometric mean of a turn's ratios, 1.287 ** (1 / 3), is inside the clip; a token's own ratio is not."""
    ratios, advantages = [1.3, 0.9, 1.1], [0.5, 0.5, 0.5]
    value, gradient, *_ = at_ratios(STPPO(), ratios, advantages)
    mean = 1.287 ** (1 / 3)
    assert value == pytest.approx([-0.5 * mean] * 3)
    assert gradient == pytest.approx([-0.5 * mean] * 3)
    value, gradient, *_ = at_ratios(STPPO(level="token"), ratios, advantages)
    assert value == pytest.approx([-0.6, -0.45, -0.55])
    assert gradient == pytest.approx([0, -0.45, -0.55])


def test_what_st_ppo_leaves_out_by_hand():
    batch = batch_of([-1.0] * 3, [0.5, -0.5, 0.5])
    now = torch.tensor([-1 + math.log(r) for r in (1.3, 0.5, 1.1)], requires_grad=True)
    missed = STPPO(level="token").objective(
        "left_out", PassOutput(now, now, torch.zeros(0)), select_tokens(batch, np.arange(3))
    )
    assert missed.tolist() == pytest.approx([-0.65, 0.25, 0.0])
    [gradient] = torch.autograd.grad(missed.sum(), [now])
    assert gradient.tolist() == pytest.approx([-0.65, 0.25, 0.0])


def test_the_imitation_of_what_succeeded_by_hand():
    batch = batch_of([-1.0] * 4, [0, 1, -1, 2], success=[1, 0, 0, 1])
    value, gradient, _, metrics = called(PositiveNLL(coef=0.1), batch, [-1.0, -2.0, -3.0, -5.0])
    assert value == pytest.approx([0.2, 0, 0, 1.0])  # with weights of 1/4 the sum is 0.1 (1 + 5) / 2
    assert gradient == pytest.approx([-0.2, 0, 0, -0.2])  # whatever the advantage
    assert metrics["positive_nll"].tolist() == pytest.approx([2, 0, 0, 10])
    value, gradient, _, _ = called(PositiveNLL(), batch_of([-1.0] * 2, [1, 1], success=[0, 0]), [-1.0, -2.0])
    assert not value.any()
    assert not gradient.any()


def test_the_imitation_of_what_succeeded_is_a_mean_under_the_weights():
    batch = Batch(**{**vars(batch_of([-1.0] * 3, [0] * 3, success=[1, 1, 0])), "weight": np.float32([0.2, 0.6, 0.2])})
    value, _, _, _ = called(PositiveNLL(coef=1.0), batch, [-1.0, -3.0, -5.0])
    assert float((value * batch.weight).sum()) == pytest.approx((0.2 * 1 + 0.6 * 3) / 0.8)


def test_what_the_policy_would_never_say_has_a_finite_penalty():
    """As of an imitated token, whose log-probability nothing bounds."""
    far = torch.tensor([-100.0], requires_grad=True)
    estimate = kl_estimate(far, "k3")
    estimate.sum().backward()
    assert torch.isfinite(estimate).all()
    assert torch.isfinite(far.grad).all()
    near = torch.tensor([-1.5])
    assert torch.equal(kl_estimate(near, "k3"), (-near).exp() - 1 + near)
