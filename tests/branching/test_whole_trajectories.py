"""Where whole trajectories are compared, plays that share turns are trained as if each had been played by itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from forked import apart, scores, tree

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.copies import CopyableTrainer
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.batch import Aggregate
from sojourn.batch.flatten import flatten
from sojourn.credit.grpo import GRPO
from sojourn.losses.distill import Distill
from sojourn.losses.dpo import DPO
from sojourn.losses.gspo import GSPO
from sojourn.losses.importance import Importance
from sojourn.losses.ipo import IPO
from sojourn.losses.kto import KTO
from sojourn.losses.nca import NCA
from sojourn.losses.nll import NLL
from sojourn.losses.of_origin import OfOrigin
from sojourn.losses.orpo import ORPO
from sojourn.losses.reinforce import Reinforce
from sojourn.losses.simpo import SimPO
from sojourn.optim import Optim
from sojourn.streams.desirable import Desirable
from sojourn.streams.group_softmax import GroupSoftmax
from sojourn.streams.implicit_reward import ImplicitReward
from sojourn.streams.origins import Origins
from sojourn.streams.pairs import Pairs
from sojourn.streams.policy_logprobs import PolicyLogprobs
from sojourn.streams.ref_logprobs import RefLogprobs
from sojourn.streams.reference_kl import ReferenceKL, mismatched
from sojourn.streams.teacher import Teacher
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.streams.turn_pairs import TurnPairs
from sojourn.train.loop import Learner
from sojourn.types import Group

MODEL = "tiny:layers=1,hidden=64"
WIDE = GSPO(clip_low=1.0, clip_high=1e3)
BY_SEQUENCE = Importance(base=Reinforce(), level="sequence", combine="mean", max_weight=1e3)


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


class Keeping(CopyableTrainer):
    """Keeps the gradient of each update."""

    async def optim_step(self):
        parts = [p.grad.flatten() for p in self.trainable.values() if p.grad is not None]
        self.gradients.append(torch.cat(parts).clone())
        return await super().optim_step()


def policy() -> Keeping:
    made = Keeping(ModelPasses(loading.load(MODEL, "fp32", 0).model, bf16=False, token_budget=10_000), nowhere)
    made.begin(Optim(lr=1e-2), 10, reference=True)
    made.gradients = []
    return made


def groups() -> list[Group]:
    """Two trees; in the second, other tokens were sampled."""
    other = tree()
    episodes = []
    changed = {}
    for episode in other.episodes:
        [one] = episode.trajectories
        turns = []
        for turn in one.turns:
            sample = changed.setdefault(id(turn.sample), replace(turn.sample, tokens=turn.sample.tokens[::-1] // 2))
            turns.append(replace(turn, context=turn.context // 2, sample=sample))
        episodes.append(replace(episode, trajectories=(replace(one, turns=tuple(turns)),)))
    return [tree(), replace(other, slot=1, episodes=tuple(episodes))]


async def gradients(losses, streams, of) -> list[torch.Tensor]:
    made = policy()
    learner = Learner(
        trainer=made, estimator=GRPO(), losses=losses, streams=streams, aggregate=Aggregate(by="sequence")
    )
    for _ in range(2):  # after the first, policy and reference model differ
        await learner.update(of, [scores(group) for group in of])
    return made.gradients


@pytest.mark.parametrize(
    ("loss", "streams"),
    [
        (DPO(), [Pairs(), RefLogprobs()]),
        (IPO(), [Pairs(), RefLogprobs()]),
        (SimPO(), [Pairs()]),
        (ORPO(), [Pairs()]),
        (KTO(), [Desirable(), RefLogprobs(), ReferenceKL()]),
        (NCA(), [GroupSoftmax(), RefLogprobs()]),
        (WIDE, []),
        (BY_SEQUENCE, [PolicyLogprobs()]),
        (OfOrigin(base=WIDE), [Origins()]),
        ((WIDE, Distill()), [Teacher(model="reference")]),
    ],
    ids=lambda of: type(of).__name__ if not isinstance(of, list) else "",
)
async def test_plays_that_share_turns_are_compared_as_whole_ones(loss, streams):
    shared, separate = groups(), [apart(group) for group in groups()]
    assert any(len({*of}) > 1 for group in shared for of in group.holders)
    losses = loss if isinstance(loss, tuple) else (loss,)
    one, other = [await gradients(losses, streams, of) for of in (shared, separate)]
    for first, second in zip(one, other, strict=True):
        assert first.norm() > 1e-4
        torch.testing.assert_close(first, second, rtol=1e-3, atol=float(second.abs().max()) * 1e-4)


async def test_a_turn_that_plays_share_is_compared_once_with_other_turns():
    """Each answer of a pair counts with its own tokens, in however many plays it is."""
    shared, separate = groups(), [apart(group) for group in groups()]
    one, other = [await gradients([DPO()], [TurnPairs(), RefLogprobs()], of) for of in (shared, separate)]
    for first, second in zip(one, other, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=float(second.abs().max()) * 1e-4)


@pytest.mark.parametrize("loss", ["dpo", "ce"])
async def test_an_implicit_reward_sums_over_the_whole_of_each_play(loss):
    """What was learned from plays that share turns is what is learned from the same plays, each by itself."""
    found = []
    for of in (groups(), [apart(group) for group in groups()]):
        stream, judged = ImplicitReward(beta=1.0, loss=loss, optim=Optim(lr=1e-2)), [scores(group) for group in of]
        learner = Learner(
            trainer=policy(), estimator=GRPO(), losses=[], streams=[stream], aggregate=Aggregate(by="sequence")
        )
        found.append([await learner.read_streams(of, judged) for _ in range(3)])
        stream.close()
    for (one, learned), (other, learned_apart) in zip(*found, strict=True):
        assert learned == pytest.approx(learned_apart, abs=1e-3)
        for group, group_apart in zip(one["implicit_reward"], other["implicit_reward"], strict=True):
            for turns, turns_apart in zip(group, group_apart, strict=True):
                np.testing.assert_allclose(np.concatenate(turns), np.concatenate(turns_apart), atol=1e-2)


async def test_the_divergence_is_estimated_from_the_whole_of_each_play():
    made, of = policy(), groups()
    batch, _ = flatten(mismatched([apart(group) for group in of]))
    await made.forward_backward(replace(batch, advantages=np.ones(len(batch), dtype=np.float32)), [NLL()])
    await made.optim_step()
    points = [
        float((await ReferenceKL()(TrainerPasses(some, [], made)))[0][0][0][0])
        for some in (of, [apart(group) for group in of])
    ]
    assert points[0] == pytest.approx(points[1], rel=1e-4)
    assert points[0] > 0
