"""Streams that learn: what they say, that they learn, that it is kept, and that the policy is left alone."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import chatml, group, trajectory
from made import score as scored

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.copies import CopyableTrainer
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import Aggregate
from sojourn.checks.synthetic import FORKED, UNSTARTED, WINDOWED, Shape
from sojourn.checks.synthetic import step as made_step
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.credit.grpo import GRPO
from sojourn.errors import ConfigError
from sojourn.optim import Optim
from sojourn.protocols import TurnStates
from sojourn.record import checkpoint
from sojourn.schedules import Linear
from sojourn.streams.curiosity import Curiosity
from sojourn.streams.dynamics_ratio import DynamicsRatio
from sojourn.streams.feedback import Feedback, following_observations
from sojourn.streams.implicit_reward import ImplicitReward, _cross_entropy, _dpo
from sojourn.streams.instruction_value import InstructionValue
from sojourn.streams.learner import Learner as SmallNetwork
from sojourn.streams.learner import hashed_counts, hashed_counts_so_far
from sojourn.streams.milestones import Milestones, progress_before
from sojourn.streams.progress import Progress
from sojourn.streams.relatedness import Relatedness
from sojourn.streams.replies import score_replies
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.streams.utterance_advantage import Choice, UtteranceAdvantage, _choices, _first_actions, _transitions
from sojourn.train.loop import Learner
from sojourn.types import Ending, Group, Message, Role, Score

NAME = "tiny:layers=1,hidden=64"
LEARNERS = [name for name in COMPONENTS["stream"] if hasattr(build("stream", {"name": name}).value, "learn")]


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


def policy() -> CopyableTrainer:
    made = CopyableTrainer(ModelPasses(loading.load(NAME, "fp32", 0).model, bf16=False, token_budget=10_000), nowhere)
    made.begin(Optim(lr=1e-2), 10, reference=True)
    return made


def told(t, words, milestones=()):
    """With what the world said, and how far along each turn got."""
    turns = [replace(turn, observed=(Message(Role.USER, word),)) for turn, word in zip(t.turns, words, strict=True)]
    done = [*milestones, *[milestones[-1] if milestones else 0.0] * (len(turns) - len(milestones))]
    turns = [replace(turn, info={"progress": far}) for turn, far in zip(turns, done, strict=True)]
    return replace(t, turns=tuple(turns))


def step(seed=0):
    """Two groups of three; a trajectory whose first tokens are even is worth 1, and gets along."""
    rng = np.random.default_rng(seed)
    groups, scores = [], []
    for slot in range(2):
        plays = []
        for number in range(3):
            t = trajectory(rng, turns=3)
            good = (number + slot) % 2 == 0
            turns = [replace(turn, context=turn.context // 2 * 2 + good) for turn in t.turns]
            plays.append(
                (told(replace(t, turns=tuple(turns)), ["start", f"won {good}", "end"], [0.0, good, good]), good)
            )
        groups.append(replace(group([t for t, _ in plays], slot), origin=("policy", "folder")[slot]))
        scores.append([scored(t, float(good)) for t, good in plays])
    return groups, scores


def passes(groups, scores, trainer=None) -> TrainerPasses:
    return TrainerPasses(groups, scores, trainer or policy(), chatml())


def by_turn(values):
    """The sum of each turn, by trajectory; all of it must be at the last token."""
    return [[float(turn.sum()) for turn in turns] for of in values for turns in of]


def eager(name):
    """With settings under which a few steps show that it learns."""
    more = {"implicit_reward": {"optim": {"lr": 1e-2}}, "utterance_advantage": {"warmup": 0, "updates": 10}}
    return build("stream", {"name": name, **more.get(name, {})}).value


@pytest.mark.parametrize("name", LEARNERS)
async def test_every_token_gets_a_number(name):
    made = made_step(
        ((FORKED, WINDOWED, UNSTARTED, Shape(turns=1)), (UNSTARTED,), (Shape(ending=Ending.TURNS),)), frozenset()
    )
    stream = eager(name)
    for _ in range(2):
        of = passes(made.groups, made.scores)
        found = await stream(of)
        for g, some in zip(made.groups, found, strict=True):
            for t, turns in zip(g.trajectories, some, strict=True):
                assert [len(values) for values in turns] == [len(turn.sample.tokens) for turn in t.turns]
                assert all(np.isfinite(values).all() for values in turns)
        assert all(math.isfinite(value) for value in (await stream.learn(of)).values())


@pytest.mark.parametrize("name", LEARNERS)
async def test_a_step_of_nothing(name):
    stream, of = eager(name), passes([], [])
    assert await stream(of) == []
    await stream.learn(of)


@pytest.mark.parametrize("name", LEARNERS)
async def test_it_learns_and_the_policy_stays_as_it_was(name):
    """Its error on what it sees again falls by a third."""
    trainer, stream, (groups, scores) = policy(), eager(name), step()
    before = {n: p.detach().clone() for n, p in trainer.trainable.items()}
    errors = []
    for _ in range(30):
        of = passes(groups, scores, trainer)
        await stream(of)
        errors.append((await stream.learn(of)).get("error"))
    if name not in ("relatedness", "feedback"):  # of other stretches, or of new messages, every time
        assert errors[-1] < 2 / 3 * errors[0], errors
    assert all(torch.equal(p, before[n]) for n, p in trainer.trainable.items())
    assert all(p.grad is None for p in trainer.trainable.values())


@pytest.mark.parametrize("name", LEARNERS)
async def test_what_it_learnt_is_kept(tmp_path, name):
    """After a checkpoint it says, learns and says again what it would have without one."""
    trainer, stream = policy(), eager(name)
    for seed in range(2):
        of = passes(*step(seed), trainer)
        await stream(of)
        await stream.learn(of)
    state = checkpoint.save(tmp_path, 1, lambda path: None, {"stream": copy.deepcopy(stream.state())}).state()["stream"]
    again = eager(name)
    again.restore(state)
    for seed in (2, 3):
        said = []
        for one in (stream, again):
            of = passes(*step(seed), trainer)
            said.append((by_turn(await one(of)), await one.learn(of)))
        assert said[0] == said[1]
    assert any(value for turns in said[0][0] for value in turns)


async def test_critics_of_the_features_that_the_stage_began_with_do_not_change_their_mind_as_the_policy_changes():
    trainer, (groups, scores) = policy(), step()
    said = {}
    for features in ("start", "policy"):
        stream = UtteranceAdvantage(features=features, warmup=0, updates=5)
        await stream.learn(passes(groups, scores, trainer))
        said[features] = stream, by_turn(await stream(passes(groups, scores, trainer)))
    assert said["start"][1] == said["policy"][1]
    with torch.no_grad():
        for p in trainer.trainable.values():
            p.data = p.data + 0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    for features, (stream, before) in said.items():
        after = by_turn(await stream(passes(groups, scores, trainer)))
        assert (after == before) == (features == "start")


@pytest.mark.parametrize("name", sorted(set(LEARNERS) - {"implicit_reward"}))
async def test_a_frozen_stream_reads_the_step_and_learns_nothing(name):
    groups, scores = step()
    for frozen in (True, False):
        stream = replace(eager(name), frozen=frozen)
        learner = Learner(
            trainer=policy(), estimator=GRPO(), losses=(), streams=[stream], aggregate=Aggregate(), renderer=chatml()
        )
        values, learned = await learner.read_streams(groups, scores)
        assert list(values) == [stream.provides]
        assert bool(learned) != frozen


def test_text_as_numbers():
    rows = hashed_counts(["Go north, go", "", "go north"], 64)
    assert rows.shape == (3, 64)
    assert np.linalg.norm(rows, axis=1).tolist() == pytest.approx([1, 0, 1])
    assert sorted(rows[0][rows[0] > 0].tolist()) == pytest.approx(
        sorted(np.array([2, 1, 1, 1]) / math.sqrt(7)), abs=1e-6
    )
    assert (
        hashed_counts([[1, 2]], 64).tolist()
        == hashed_counts([[1, 2]], 64).tolist()
        != hashed_counts([[2, 1]], 64).tolist()
    )


async def test_contributions_are_to_add_up_to_the_return():
    groups, scores = step()
    stream, of = Progress(), passes(groups, scores)
    await stream(of)
    await stream.learn(of)
    sums = [sum(turns) for turns in by_turn(await stream(of))]
    totals = [score.total for judged in scores for score in judged]
    expected = float(np.mean(np.square(np.subtract(sums, totals))))
    assert (await stream.learn(of))["error"] == pytest.approx(expected, rel=1e-4)


async def test_an_instructions_value_is_its_success_rate():
    """Of two first contexts, plays of one succeed three times of four and those of the other never."""
    rng, trainer = np.random.default_rng(0), policy()
    contexts = [rng.integers(0, 300, 5) for _ in range(2)]

    def play(which, n):
        t = trajectory(rng, turns=2)
        turns = (replace(t.turns[0], context=contexts[which]), *t.turns[1:])
        return replace(t, turns=turns), scored(t, float(which == 0 and n > 0))

    plays = [[play(which, n) for n in range(4)] for which in range(2)]
    of = passes([group([t for t, _ in p], n) for n, p in enumerate(plays)], [[s for _, s in p] for p in plays], trainer)
    stream = InstructionValue(lr=3e-3)
    assert (await stream.learn(of))["error"] == pytest.approx(math.log(2), abs=0.15)
    for _ in range(60):
        await stream.learn(of)
    often, never = await stream(of)
    chances = np.concatenate([turn for t in often for turn in t])
    assert chances == pytest.approx(np.full(len(chances), 0.75), abs=0.05)
    assert max(float(x) for t in never for turn in t for x in turn) < 0.05


async def test_curiosity_is_the_forward_error_times_eta():
    groups, scores = step()
    stream, of = Curiosity(eta=0.5), passes(groups, scores)
    said = by_turn(await stream(of))
    assert all(turns[-1] == 0 for turns in said)
    answered = [value for turns in said for value in turns[:-1]]
    assert min(answered) > 0
    assert (await stream.learn(of))["error"] == pytest.approx(np.mean(answered) / 0.5, rel=1e-4)


def test_progress_in_hindsight_by_hand():
    """Of four milestones two are reached, at the second turn and the sixth: 0, 1/8, 2/8, then 1/16 a turn."""
    far = [0, 0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5]
    made = told(trajectory(np.random.default_rng(0), turns=8), ["x"] * 8, far)
    assert progress_before(made, "progress") == pytest.approx([0, 0.125, 0.25, 0.3125, 0.375, 0.4375, 0.5, 0.5])
    nothing = told(trajectory(np.random.default_rng(0), turns=2), ["x"] * 2, [0, 0])
    assert progress_before(nothing, "progress") == [0, 0]


async def test_shaping_by_milestones_adds_up_to_what_the_end_is_worth_less_the_beginning():
    groups, scores = step()
    cut = replace(groups[0].trajectories[0], ending=Ending.TURNS)
    first = replace(groups[0].episodes[0], trajectories=(cut,))
    groups[0] = replace(groups[0], episodes=(first, *groups[0].episodes[1:]))
    stream, of = Milestones(), passes(groups, scores)
    for _ in range(5):
        await stream(of)
        await stream.learn(of)
    states = await of.states()
    for turns, t, s in zip(
        by_turn(await stream(of)),
        [t for g in groups for t in g.trajectories],
        [s for some in states for s in some],
        strict=True,
    ):
        with torch.no_grad():
            begin, end = (float(stream._potential(torch.from_numpy(rows))[0]) for rows in (s.before[:1], s.after[-1:]))
        assert sum(turns) == pytest.approx(end * t.ending.truncated - begin, abs=1e-5)


def test_preference_losses_by_hand():
    """The examples of OPRL's and PRIME's equations: Q of 0.15 and -0.2, and of 0.025."""
    pair = _dpo(np.array([0.15, -0.2]), np.array([True, False]), [0, 0])
    assert pair.error == pytest.approx(0.5334, abs=1e-4)
    assert pair.accuracy == 1
    assert pair.gradients.tolist() == pytest.approx([-1 / (1 + math.exp(0.35)), 1 / (1 + math.exp(0.35))])
    one = _cross_entropy(np.array([0.025]), np.array([True]), [0])
    assert one.error == pytest.approx(0.6807, abs=1e-4)
    assert one.gradients.tolist() == pytest.approx([0.50625 - 1], abs=1e-5)
    assert not _dpo(np.array([1.0, 2.0, 3.0]), np.array([True, True, False]), [0, 0, 1]).gradients.any()


async def test_an_implicit_reward_compares_the_trajectories_of_each_seat_with_their_own_kind():
    """In both plays the first seat wins and the second loses, which says nothing of how either should act."""
    rng = np.random.default_rng(0)
    plays = [tuple(replace(trajectory(rng), agent=seat) for seat in ("first", "second")) for _ in range(2)]
    made = group([first for first, _ in plays])
    episodes = tuple(replace(e, trajectories=both) for e, both in zip(made.episodes, plays, strict=True))
    scores = [scored(t, total) for both in plays for t, total in zip(both, (1.0, 0.0), strict=True)]
    of, stream = passes([replace(made, episodes=episodes)], [scores]), ImplicitReward(loss="dpo")
    await stream(of)
    assert await stream.learn(of) == {}
    scores[0] = scored(plays[0][0], 0.0)
    of = passes([replace(made, episodes=episodes)], [scores])
    await stream(of)
    assert await stream.learn(of)


@pytest.mark.parametrize("loss", ["dpo", "ce"])
async def test_the_models_gradient_is_that_of_its_loss(loss):
    """Against autograd through the loss itself, by transformers' own passes."""
    groups, scores = step()
    trainer, stream = (
        policy(),
        ImplicitReward(loss=loss, beta=0.5, reference_model="start", optim=Optim(lr=1e-2, clip_norm=1e9)),
    )
    for _ in range(2):  # the second time the model is another than what it began with
        of = passes(groups, scores, trainer)
        await stream(of)
        model = loading.load(NAME, "fp32", 0).model  # in transformers' own attention
        model.load_state_dict(stream._memory["model"].model.state_dict())
        await stream.learn(of)
    sums = torch.stack([total(model, t) - total(loading.load(NAME, "fp32", 0).model, t).detach()
                        for g in groups for t in g.trajectories]) * 0.5  # fmt: skip
    good = torch.tensor([score.total > 0 for judged in scores for score in judged])
    if loss == "ce":
        right = torch.nn.functional.binary_cross_entropy_with_logits(sums, good.float())
    else:
        pairs = [(a, b) for a in range(6) for b in range(6) if a // 3 == b // 3 and good[a] and not good[b]]
        gaps = [sums[a] - sums[b] for a, b in pairs]
        right = -torch.nn.functional.logsigmoid(torch.stack(gaps)).mean()
    expected = torch.autograd.grad(right, [p for p in model.parameters() if p.requires_grad])
    moved = ImplicitReward(loss=loss, beta=0.5, reference_model="start", optim=Optim(lr=0.0, clip_norm=1e9))
    of = passes(groups, scores, trainer)
    await moved(of)
    moved._memory["model"].model.load_state_dict(model.state_dict())
    await moved(of)
    found = await gradient_of(moved, of)
    assert (await moved.learn(of))["error"] == pytest.approx(float(right.detach()), abs=1e-4)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


async def gradient_of(stream, of):
    """What the stream's model was given, before it moved."""
    model = stream._memory["model"]
    kept = model.optim_step

    async def keep():
        found.extend(p.grad.clone() for p in model.trainable.values())
        return await kept()

    found = []
    model.optim_step = keep
    await stream.learn(of)
    model.optim_step = kept
    return found


def total(model, t) -> torch.Tensor:
    """The log-probability of all that the trajectory sampled."""
    tokens = np.concatenate([part for turn in t.turns for part in (turn.context, turn.sample.tokens)])
    mask = np.concatenate(
        [np.full(len(part), n) for turn in t.turns for n, part in enumerate((turn.context, turn.sample.tokens))]
    )
    logp = model(torch.from_numpy(tokens)[None]).logits[0].log_softmax(-1)
    return logp[:-1].gather(1, torch.from_numpy(tokens)[1:, None])[torch.from_numpy(mask[1:] > 0), 0].sum()


@given(parts=st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=8), size=st.sampled_from([3, 16, 512]))
def test_counts_of_a_text_in_parts_are_those_of_each_beginning(parts, size):
    """Empty parts, and all of them, included."""
    beginnings = [[token for part in parts[: end + 1] for token in part] for end in range(len(parts))]
    np.testing.assert_array_equal(hashed_counts_so_far(parts, size), hashed_counts(beginnings, size))


async def test_an_implicit_reward_is_nothing_until_something_was_learnt():
    of = passes(*step())
    stream = ImplicitReward(optim=Optim(lr=1e-3))
    assert max(abs(value) for turns in by_turn(await stream(of)) for value in turns) < 1e-5
    assert (await stream.learn(of))["error"] == pytest.approx(math.log(2), abs=1e-4)
    assert max(abs(value) for turns in by_turn(await stream(of)) for value in turns) > 1e-3


async def test_an_implicit_reward_needs_a_trainer_that_can_be_copied():
    trainer = TorchTrainer(ModelPasses(loading.load(NAME, "fp32", 0).model, bf16=False, token_budget=10_000), nowhere)
    with pytest.raises(ConfigError, match="a copy of the policy, which TorchTrainer does not make"):
        await ImplicitReward()(passes(*step(), trainer))


async def test_turns_lead_to_the_next_and_pay_what_they_were_paid():
    made = made_step(((Shape(), Shape(ending=Ending.TURNS)),), frozenset())
    of = passes(made.groups, made.scores)
    [[ended, cut]] = await of.states()
    paid = Score(np.array([1.0, 2.0, 3.0], dtype=np.float32))
    whole, part = (_transitions(t, s, paid) for t, s in zip(made.groups[0].trajectories, (ended, cut), strict=True))
    assert whole.reward.tolist() == [1, 2, 3]
    assert whole.done.tolist() == [0, 0, 1]
    assert np.array_equal(whole.ahead[:2], ended.before[1:])
    assert not whole.ahead[2].any()
    assert part.reward.tolist() == [1, 2]
    assert part.done.tolist() == [0, 0]


async def test_an_off_policy_critic_finds_what_an_utterance_is_worth():
    """In one state, of two utterances one is paid: the critic tells them apart, in trajectories it has not seen."""
    rng, trainer = np.random.default_rng(0), policy()
    context = rng.integers(0, 300, 5)

    def play(n):
        t = trajectory(rng, turns=1)
        [turn] = t.turns
        good = n % 2 == 0
        said = np.array([10, 11] if good else [20, 21])
        sample = replace(turn.sample, tokens=said, logprobs=np.full(2, -1, dtype=np.float32))
        return replace(t, turns=(replace(turn, context=context, sample=sample),)), scored(t, float(good))

    stream = UtteranceAdvantage(warmup=2, updates=40, lr=3e-3)
    for number in range(4):
        plays = [play(n) for n in range(4)]
        of = passes([group([t for t, _ in plays])], [[s for _, s in plays]], trainer)
        said = by_turn(await stream(of))
        if number < 2:
            assert not any(turn for turns in said for turn in turns)
        await stream.learn(of)
    assert min(said[0] + said[2]) > 0.2
    assert max(said[1] + said[3]) < -0.2


def ensemble(**keys) -> UtteranceAdvantage:
    """Three critics of rows with two features, which say 1, 2 and 6 of any utterance and 0, 1 and 2 of any state."""
    stream = UtteranceAdvantage(critics=3, warmup=0, **keys)
    net = stream.learner.net(2)
    for heads, values in ((net.q, (1.0, 2.0, 6.0)), (net.v, (0.0, 1.0, 2.0))):
        for head, value in zip(heads, values, strict=True):
            torch.nn.init.zeros_(head[-1].weight)
            torch.nn.init.constant_(head[-1].bias, value)
    return stream


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, 1 - 0),
        ({"pessimism": "deviation", "deviations": 0.0}, 3 - 1),
        ({"pessimism": "deviation", "deviations": 0.5}, (3 - math.sqrt(14 / 3) / 2) - (1 - math.sqrt(2 / 3) / 2)),
        ({"output": "disagreement"}, math.sqrt(14 / 3)),
    ],
)
def test_what_an_ensemble_says_by_hand(keys, expected):
    """Q of 1, 2 and 6 has the mean 3 and the variance (4 + 1 + 9) / 3; V of 0, 1 and 2 the mean 1 and 2 / 3."""
    stream = ensemble(**keys)
    assert stream.provides == keys.get("output", "utterance_advantage")
    rows = np.array([[0.3, -1.0], [2.0, 1.0]], dtype=np.float32)
    assert stream._by_turn(3, TurnStates([0, 2], rows, rows)) == pytest.approx([expected, 0.0, expected])


async def test_critics_agree_on_what_they_have_learned_and_less_on_what_they_have_not_seen():
    trainer, (groups, scores) = policy(), step()
    for g, judged in zip(groups, scores, strict=True):
        for n, t in enumerate(g.trajectories):
            judged[n] = scored(t, 1.0)
    stream = UtteranceAdvantage(
        output="disagreement", critics=8, discount=0.0, warmup=0, updates=100, batch_size=64, lr=3e-3
    )
    first = await stream.learn(passes(groups, scores, trainer))
    last = await stream.learn(passes(groups, scores, trainer))
    assert last["disagreement"] < first["disagreement"] / 2
    others = by_turn(await stream(passes(*step(7), trainer)))
    known = by_turn(await stream(passes(groups, scores, trainer)))
    assert np.mean(known) == pytest.approx(last["disagreement"], rel=1.0)
    assert np.mean(others) > 1.5 * np.mean(known)


class SaysItsRows(UtteranceAdvantage):
    """Two critics, of which each says one of the two columns of what it reads."""

    def _q_values(self, after):
        return torch.as_tensor(after).T


def test_conservatism_by_hand():
    """Q of three actions is 1, 2, 0 by one critic and 0, 0, 0 by the other, the first was recorded; of two others, of
    which the second was, it is 3, 3 and -1, 4."""
    three = Choice(np.array([[1, 0], [2, 0], [0, 0]], dtype=np.float32), 0)
    two = Choice(np.array([[3, -1], [3, 4]], dtype=np.float32), 1)
    first = math.log(math.e + math.e**2 + 1) - 1 + math.log(3)
    second = math.log(2) + math.log(math.exp(-1) + math.exp(4)) - 4
    assert float(SaysItsRows()._overestimate([three, two])) == pytest.approx((first + second) / 2, rel=1e-5)


def candidates(rng, answers, recorded) -> Group:
    """Actions at one state, of which one was recorded."""
    context, made = rng.integers(0, 300, 5), []
    for number, tokens in enumerate(answers):
        t = trajectory(rng, turns=1)
        sample = replace(t.turns[0].sample, tokens=np.array(tokens), logprobs=np.full(2, -1, dtype=np.float32))
        info = {"recorded": float(number == recorded)}
        turn = replace(t.turns[0], context=context, sample=sample, info=info)
        made.append(replace(t, turns=(turn,), ending=Ending.TURNS))
    return replace(group(made), origin="candidates")


async def test_a_conservative_critic_values_actions_that_nobody_took_less_than_the_recorded_one():
    rng, trainer = np.random.default_rng(0), policy()
    groups, scores = step()
    known = candidates(rng, [[20, 21], [10, 11], [10, 11], [30, 31]], recorded=1)
    judged = [scored(t, 0.0) for t in known.trajectories]
    of = passes([*groups, known], [*scores, judged], trainer)
    [choice] = _choices(of.groups, await of.states())
    assert (len(choice.actions), choice.recorded) == (3, 1)
    assert _choices(groups, await passes(groups, scores, trainer).states()) == []
    above = {}
    for conservatism in (0.0, 1.0):
        stream = UtteranceAdvantage(conservatism=conservatism, warmup=0, updates=60, lr=3e-3)
        await stream.learn(of)
        values = np.array(by_turn((await stream(of))[2:])).ravel()
        above[conservatism] = values[1] - max(values[0], values[3])
    assert above[1.0] > above[0.0] + 0.5
    assert above[1.0] > 0.5


def test_candidates_without_the_recorded_action_are_refused_by_a_conservative_critic():
    with pytest.raises(ConfigError, match=r"set groups\.recorded = true, or drop conservatism"):
        _choices([candidates(np.random.default_rng(0), [[1, 2], [3, 4]], recorded=-1)], [[]])


def test_the_value_of_first_states_by_hand():
    """Q of two actions at one state is 1, 2 by one critic and 5, 0 by the other; of one at another 4 and -1."""
    starts = [np.array([[1, 5], [2, 0]], dtype=np.float32), np.array([[4, -1]], dtype=np.float32)]
    assert float(SaysItsRows()._start_value(starts)) == pytest.approx((2 + 4) / 2 + (5 - 1) / 2)


async def test_actions_of_one_group_at_one_first_state_are_compared():
    rng = np.random.default_rng(0)
    context, plays = rng.integers(0, 300, 5), [trajectory(rng) for _ in range(4)]
    alike = [replace(t, turns=(replace(t.turns[0], context=context), *t.turns[1:])) for t in plays[:3]]
    seated = [alike[0], replace(alike[1], agent="other"), alike[2], plays[3]]
    groups = [group(seated), group([alike[0]], 1), group([replace(plays[0], turns=())], 2)]
    states = await passes(groups, [[scored(t, 0.0) for t in g.trajectories if t.turns] for g in groups]).states()
    starts = _first_actions(groups, states)
    assert [len(actions) for actions in starts] == [2, 1, 1, 1]
    assert np.array_equal(starts[0], [states[0][0].after[0], states[0][2].after[0]])


async def test_an_optimistic_critic_overrates_what_was_tried_less():
    """Of four turns, three are alike and one is another, at two first states; each is paid 0.5. The loss of a Q is
    least at 0.5 + `optimism` 4 / (2 2 k): with 0.3 that is 0.6 for k = 3 tries and 0.8 for one, and after as many again
    0.55 and 0.65."""
    rng, trainer = np.random.default_rng(0), policy()
    often, once = trajectory(rng, turns=1), trajectory(rng, turns=1)
    groups = [group([often] * 3), group([once], 1)]
    of = passes(groups, [[scored(t, 0.5) for t in g.trajectories] for g in groups], trainer)
    [first, *_], [second] = await of.states()
    both = np.concatenate([first.after, second.after])
    for optimism, expected in ((0.0, [(0.5, 0.5), (0.5, 0.5)]), (0.3, [(0.6, 0.8), (0.55, 0.65)])):
        keys = {"warmup": 0, "updates": 500, "batch_size": 256, "hidden_size": 64, "lr": 3e-3}
        stream = UtteranceAdvantage(optimism=optimism, discount=0.0, **keys)
        for values in expected:
            learned = await stream.learn(of)
            with torch.no_grad():
                assert np.allclose(stream._q_values(both).numpy(), values, atol=0.03)
        assert learned.get("start_value") == (pytest.approx(0.7, abs=0.03) if optimism else None)


def classifiers(**keys) -> DynamicsRatio:
    """Returns classifiers of states with two features, whose log-ratio is 1 where the next state is `UP`, and -1 where
    it is `DOWN`."""
    stream = DynamicsRatio(hidden_size=4, **keys)
    layer = torch.nn.Linear(4, 1, bias=False)
    layer.weight.data = torch.tensor([[0, 0, math.atanh(0.25), 0]])
    stream.learner.net(2).transition = layer
    return stream


class States:
    """Offers groups, and hidden states of their turns."""

    def __init__(self, groups, states):
        self.groups, self._states = groups, states

    async def states(self, *, reference=False):
        return self._states


UP, DOWN = [3.0, -3.0], [0.0, 2.0]  # normalised: (1, -1), (-1, 1)
E = math.e


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [1, 1 / E, 1, 1]),
        ({"max_ratio": 2.0}, [2, 1 / E, 2, 1]),
        ({"min_ratio": 0.5, "max_ratio": 5.0}, [E, 0.5, E, 1]),
        ({"level": "trajectory"}, [1, 1, 1, 1]),
        ({"level": "trajectory", "max_ratio": 5.0}, [E, E, E, E]),
        ({"simulated": ("experts",)}, [1, 1, 1, 1]),
    ],
)
async def test_dynamics_ratios_by_hand(keys, expected):
    """The next states of three turns say e, 1 / e and e; nothing follows the fourth."""
    made = trajectory(np.random.default_rng(0), turns=4)
    before, after = np.array([UP, UP, DOWN, UP], dtype=np.float32), np.array([DOWN, UP, UP, DOWN], dtype=np.float32)
    of = States([group([made])], [[TurnStates([0, 1, 2, 3], before, after)]])
    [[turns]] = await classifiers(**keys)(of)
    assert [len(turn) for turn in turns] == [len(turn.sample.tokens) for turn in made.turns]
    assert [float(turn[0]) for turn in turns] == pytest.approx(expected, rel=1e-3)
    assert all(len(set(turn.tolist())) == 1 for turn in turns)


def test_what_both_classifiers_get_wrong_by_hand():
    """The first says nothing yet: log 2. The second adds -1 and 1 to real turns, and 1 to the only simulated one."""
    stream = classifiers()
    ahead = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    real, simulated = torch.stack([ahead, ahead]), torch.stack([ahead[1:], ahead[1:]])
    action, transition = stream._errors(stream.learner.net(2), real, simulated)
    assert float(action.detach()) == pytest.approx(math.log(2))
    wrong, right = math.log(1 + E), math.log(1 + 1 / E)
    assert float(transition.detach()) == pytest.approx(((wrong + right) / 2 + wrong) / 2, rel=1e-4)


async def test_a_dynamics_ratio_is_low_where_the_simulator_is_wrong():
    """After `push` the real door opens and the simulated one stays shut, half of the time; after `look` both show the
    same, though the simulated policy looks more often. New turns of the simulator are judged."""
    rng, trainer = np.random.default_rng(0), policy()
    opened, shut, seen = [40, 41, 42], [50, 51, 52], [60, 61, 62]

    def play(action, shown):
        t = trajectory(rng, turns=2)
        first, last = t.turns
        said = np.array([10, 11] if action == "push" else [20, 21])
        sample = replace(first.sample, tokens=said, logprobs=np.full(2, -1, dtype=np.float32))
        first = replace(first, context=np.array([5, 6, 7]), sample=sample)
        return replace(t, turns=(first, replace(last, context=np.array(shown))))

    real = [play("push", opened)] * 6 + [play("look", seen)] * 2
    simulated = [play("push", opened)] * 2 + [play("push", shut)] * 2 + [play("look", seen)] * 4
    groups = [group(simulated), replace(group(real, 1), origin="folder")]
    scores = [[scored(t, 0.0) for t in g.trajectories] for g in groups]
    stream = DynamicsRatio(max_ratio=10.0)
    [before, _] = await stream(passes(groups, scores, trainer))
    assert {float(turn[0]) for turns in before for turn in turns} == {1.0}
    for _ in range(60):
        learned = await stream.learn(passes(groups, scores, trainer))
    found, others = await stream(passes(groups, scores, trainer))
    true, false, looked = (float(found[n][0][0]) for n in (0, 2, 4))
    assert true == pytest.approx(2, abs=0.5)  # 1 in the real world, 1/2 in the other
    assert false < 0.1
    assert looked == pytest.approx(1, abs=0.3)
    assert learned["error"] < learned["action_error"]
    assert all(float(turn[0]) == 1 for turns in others for turn in turns)


def test_origins_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="expected one origin or more in each, and none in both"):
        DynamicsRatio(simulated=("folder",))
    with pytest.raises(ValueError, match="expected min_ratio <= 1 <= max_ratio"):
        DynamicsRatio(min_ratio=2.0)


async def test_relatedness_is_a_difference_of_potentials():
    groups, scores = step()
    stream, of = Relatedness(discount=1.0), passes(groups, scores)
    assert (await stream.learn(of))["error"] == pytest.approx(math.log(2), abs=0.1)
    for turns, t in zip(by_turn(await stream(of)), [t for g in groups for t in g.trajectories], strict=True):
        said = [turn.sample.tokens.tolist() for turn in t.turns]
        rows = stream._rows([said[0], [x for turn in said for x in turn]], [t.turns[0].context.tolist()] * 2)
        chance = torch.sigmoid(stream._logits(rows)).tolist()
        assert turns[0] == 0
        assert sum(turns) == pytest.approx((2 * chance[1] - 1) - (2 * chance[0] - 1), abs=1e-5)


async def test_relatedness_learns_nothing_where_all_are_told_the_same():
    groups, scores = step()
    alike = [replace(g, episodes=g.episodes[:1]) for g in groups[:1]]
    stream = Relatedness()
    assert await stream.learn(passes(alike, [scores[0][:1]])) == {}


async def test_feedback_comes_late_the_newest_first_and_pays_less_each_time():
    """Messages 1 to 3 wait, two are asked about; the policy decides, so whichever it finds helpful pays."""
    rng = np.random.default_rng(0)
    t = told(trajectory(rng, turns=5), ["begin", "one", "two", "one", "three"])
    of = passes([group([t])], [[scored(t, 1.0)]])
    stream = Feedback(reward_model="hash", messages_per_step=2)
    assert following_observations(t) == ["one", "two", "one", "three"]
    assert by_turn(await stream(of)) == [[0.0] * 5]
    assert (await stream.learn(of))["waiting"] == 1
    assert list(stream._labels) == [("three",), ("two",)]
    assert (await stream.learn(of))["waiting"] == 0
    assert set(stream._known) == {"one", "two", "three"}
    stream._labels.update({("one",): 1.0, ("two",): 0.0, ("three",): 1.0})
    assert by_turn(await stream(of)) == [pytest.approx([1.0, 0.0, 1 / 8, 1.0, 0.0])]


async def test_what_is_asked_decides_by_the_likelier_answer(monkeypatch):
    t = told(trajectory(np.random.default_rng(0), turns=2), ["begin", "one"])
    of = passes([group([t])], [[scored(t, 1.0)]])
    answers = {}

    async def score(trainer, prompts, replies):
        answers["asked"] = len(prompts)
        return [np.array([-1.0]), np.array([-2.0])] if answers["yes"] else [np.array([-2.0]), np.array([-1.0])]

    monkeypatch.setattr("sojourn.streams.feedback.score_replies", score)
    for yes in (True, False):
        answers["yes"] = yes
        stream = Feedback(reward_model="hash")
        await stream.learn(of)
        assert stream._labels == {("one",): float(yes)}
        assert answers["asked"] == 2


@pytest.mark.parametrize("form", ["classification", "ranking"])
async def test_feedback_is_distilled(form):
    """Labels by a rule: what is learnt says the same of messages that were never asked about."""
    rng = np.random.default_rng(0)
    words = [f"{'gold' if n % 2 else 'mud'} number {n}" for n in range(40)]
    stream = Feedback(reward_model=form, updates=200, count_exponent=0.0)
    if form == "ranking":
        pairs = [(a, b) for a in words[:12] for b in words[:12] if ("gold" in a) != ("gold" in b)]
        stream._labels.update({pair: float("gold" in pair[0]) for pair in pairs})
    else:
        stream._labels.update({(word,): float("gold" in word) for word in words[:12]})
    t = told(trajectory(rng, turns=1), ["begin"])
    await stream.learn(passes([group([t])], [[scored(t, 1.0)]]))
    worth = stream._values(words[12:])
    assert min(v for w, v in worth.items() if "gold" in w) > max(v for w, v in worth.items() if "mud" in w)


@pytest.mark.parametrize(("form", "question"), [("hash", "Is it good?"), ("ranking", "{message}?"), ("hash", "{a}")])
def test_a_question_without_its_gaps_is_refused(form, question):
    with pytest.raises(ValueError, match="question = "):
        Feedback(reward_model=form, question=question)


def test_a_network_that_is_restored_to_nothing_begins_anew():
    made = SmallNetwork(lambda size: torch.nn.Linear(size, 1), 0.1, seed=3)
    first = made.net(2).weight.detach().clone()
    made.update(made.net(2)(torch.ones(1, 2)).sum())
    assert not torch.equal(made.net(2).weight, first)
    made.restore({})
    assert torch.equal(made.net(2).weight, first)


def test_errors_of_implicit_rewards_are_finite_however_sure_they_are():
    sums, rewarded = np.array([800.0, -800.0]), np.array([False, True])
    for judged in (_cross_entropy(sums, rewarded, [0, 0]), _dpo(sums, rewarded, [0, 0])):
        assert 800 <= judged.error <= 1600
        assert np.isfinite(judged.gradients).all()


async def test_feedback_draws_other_labels_in_each_step_also_where_nothing_new_is_known(monkeypatch):
    t = told(trajectory(np.random.default_rng(0), turns=4), ["begin", "one", "two", "three"])
    of, seeds = passes([group([t])], [[scored(t, 1.0)]]), []
    monkeypatch.setattr(Feedback, "_distil", lambda self, seed: seeds.append(seed))
    stream = Feedback(reward_model="classification", capacity=2, updates=1)
    for _ in range(3):
        await stream.learn(of)
    other = Feedback(reward_model="classification", capacity=2, updates=1)
    other.restore(stream.state())
    await other.learn(of)
    assert seeds == [0, 1, 2, 3]


async def test_feedback_forgets_the_oldest_and_a_single_message_waits_to_be_compared():
    t = told(trajectory(np.random.default_rng(0), turns=4), ["begin", "one", "a\0b", "three"])
    of = passes([group([t])], [[scored(t, 1.0)]])
    stream = Feedback(reward_model="ranking", messages_per_step=2, capacity=2, updates=1)
    await stream.learn(of)
    assert list(stream._labels) == [("three", "a\0b")]
    assert list(stream._waiting) == ["one"]
    await stream.learn(of)
    assert list(stream._waiting) == ["one"]  # there is nothing to compare it with
    assert len(stream._known) <= 2


async def test_states_are_in_the_order_of_turns():
    """A second window between the turns of the first: places come path by path, turns as they were taken."""
    rng = np.random.default_rng(0)
    made = group([trajectory(rng, parents=[-1, -1, 0])])
    of = passes([made], [[scored(made.trajectories[0], 1.0)]])
    [[states]] = await of.states()
    assert states.turns == [0, 1, 2]
    model = loading.load(NAME, "fp32", 0).model
    for turn in range(3):
        seen = made.trajectories[0].prompt(turn)
        with torch.no_grad():
            hidden = model(torch.from_numpy(seen)[None], output_hidden_states=True).hidden_states[-1][0, -1]
        np.testing.assert_allclose(states.before[turn], hidden.numpy(), atol=1e-4)


async def test_what_nobody_said_is_scored_in_parts_where_it_is_long(monkeypatch):
    of = passes(*step())
    prompts, replies = [np.arange(5) + n for n in range(3)], [np.array([7, 8])] * 3
    whole = await score_replies(of.trainer, prompts, replies)
    monkeypatch.setattr("sojourn.streams.replies.MAX_PROMPT_TOKENS", 6)
    for one, other in zip(whole, await score_replies(of.trainer, prompts, replies), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_reward_model_has_no_end_in_sight():
    with pytest.raises(ValueError, match="use constant"):
        ImplicitReward(optim=Optim(schedule=Linear()))
