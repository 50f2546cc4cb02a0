"""The critic in the trainer: what it reads, what its gradient moves, that it is kept; and what a recipe refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made import batch as made_batch

from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.critic import Critic, Head
from sojourn.backends.torch.trainer.decoder import Decoder
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.pass_columns import COLUMNS, OF_DISTRIBUTIONS
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.config.toml import Tables
from sojourn.errors import ConfigError, ModelError, RecordError
from sojourn.losses.papers.bcoder import BCoder
from sojourn.losses.ppo import PPO
from sojourn.losses.value import Value
from sojourn.models.spec import Critic as Config
from sojourn.models.spec import Lora, Model
from sojourn.optim import Optim
from sojourn.render.auto import Auto
from sojourn.train.requirements import check_needs
from sojourn.train.resolve import resolve
from sojourn.types import Batch

HIDDEN = 64
NAME = f"tiny:layers=1,hidden={HIDDEN}"
PLAIN = Optim(lr=1e-2)


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


def head(width: int = 0, seed: int = 0) -> Head:
    """One that says something already."""
    torch.manual_seed(seed)
    made = Head(HIDDEN, width)
    torch.nn.init.normal_(made.out.weight)
    return made


def trainer(detach: bool = False, own: bool = False, token_budget: int = 100_000, critic: bool = True) -> TorchTrainer:
    model = loading.load(NAME, "fp32", 0).model
    other = loading.load(NAME, "fp32", 1).model if own else None
    decoder = Decoder(other, bf16=False) if own else None
    found = Critic(head(8), PLAIN, detach=detach, model=other, decoder=decoder) if critic else None
    made = TorchTrainer(ModelPasses(model, bf16=False, token_budget=token_budget, critic=found), nowhere)
    made.begin(PLAIN, 10, reference=True)
    return made


def step(seed: int = 0) -> Batch:
    """With targets for the critic, and what it is said to have said before."""
    batch, rng = made_batch(np.random.default_rng(seed)), np.random.default_rng(seed)
    targets, values = rng.normal(size=(2, len(batch))).astype(np.float32)
    streams = {"targets": targets, "values": values}
    streams |= Value().columns(Batch(**{**vars(batch), "streams": streams}))
    return Batch(**{**vars(batch), "streams": streams})


@pytest.mark.parametrize("own", [False, True])
async def test_values_are_the_heads_of_the_states_before_and_after_each_token(own):
    """By transformers' own pass over each sequence alone."""
    batch, made = step(), trainer(own=own)
    found = await made.forward(batch, critic=True)
    model = loading.load(NAME, "fp32", 1 if own else 0).model
    for a, b in zip(batch.offsets, batch.offsets[1:], strict=False):
        with torch.no_grad():
            hidden = model(torch.from_numpy(batch.tokens[a:b])[None], output_hidden_states=True).hidden_states[-1][0]
            each = made.critic.head(hidden).numpy()
        places = np.flatnonzero(batch.weight[a:b])
        np.testing.assert_allclose(found.values[a:b][places], each[places - 1], atol=1e-4)
        np.testing.assert_allclose(found.next_values[a:b][places], each[places], atol=1e-4)
        assert np.ptp(each[places]) > 0.1
        assert not found.values[a:b][batch.weight[a:b] == 0].any()


async def test_values_are_not_computed_unasked():
    found = await trainer().forward(step())
    assert not found.values.any()
    with pytest.raises(ValueError, match="there is no critic"):
        await trainer(critic=False).forward(step(), critic=True)


async def test_the_likeliest_tokens_and_their_gradient():
    """By transformers' own pass over each sequence alone; the loss of B-Coder is (Q - 0)^2 here."""
    batch, made = step(), trainer(detach=True)
    batch = Batch(**{**vars(batch), "streams": {**batch.streams, "targets": np.zeros(len(batch), dtype=np.float32)}})
    found = await made.forward(batch, columns=["top_token", "top_logprob"])
    await made.forward_backward(batch, [BCoder(advantage_coef=0.0, likelihood_coef=0.0)])
    model, total = loading.load(NAME, "fp32", 0).model, torch.zeros(())
    for a, b in zip(batch.offsets, batch.offsets[1:], strict=False):
        passed = model(torch.from_numpy(batch.tokens[a:b])[None], output_hidden_states=True)
        logp, said = passed.logits[0].log_softmax(-1), torch.from_numpy(batch.tokens[a:b])
        places = np.flatnonzero(batch.weight[a:b])
        top = logp[places - 1].max(1)
        np.testing.assert_array_equal(found.columns["top_token"][a:b][places], top.indices)
        np.testing.assert_allclose(found.columns["top_logprob"][a:b][places], top.values.detach(), atol=1e-4)
        values = made.critic.head(passed.hidden_states[-1][0].detach())[places - 1].detach()
        gain = logp[places - 1].gather(1, said[places][:, None])[:, 0] - top.values
        total = total + ((gain + values).square() * torch.from_numpy(batch.weight[a:b][places])).sum()
    expected = torch.autograd.grad(total, list(model.parameters()))
    for (name, p), grad in zip(made.trainable.items(), expected, strict=True):
        torch.testing.assert_close(p.grad, grad, atol=1e-4, rtol=1e-3, msg=name)


async def test_a_new_critic_says_nothing():
    assert Head(HIDDEN, 8)(torch.randn(5, HIDDEN)).tolist() == [0.0] * 5


def gradients(made):
    return {name: p.grad for name, p in made.parameters.items() if p.grad is not None}


@pytest.mark.parametrize(
    ("detach", "own", "reaches"), [(False, False, True), (True, False, False), (False, True, False)]
)
async def test_what_the_critics_gradient_moves(detach, own, reaches):
    made = trainer(detach, own)
    await made.forward_backward(step(), [Value()])
    found = gradients(made)
    assert {name for name in found if name.startswith("critic.")} == set(made.critic.parameters)
    assert any(found[name].any() for name in found if not name.startswith("critic.")) == reaches
    before = {name: p.detach().clone() for name, p in made.parameters.items()}
    metrics = await made.optim_step()
    moved = {name for name, p in made.parameters.items() if not torch.equal(p, before[name])}
    assert moved >= set(made.critic.parameters)
    assert bool(moved - set(made.critic.parameters)) == reaches
    assert metrics["critic_grad_norm"] > 0
    assert (metrics["grad_norm"] > 0) == reaches


@pytest.mark.parametrize("own", [False, True])
async def test_splitting_a_batch_changes_nothing(own):
    whole, parts = trainer(own=own), trainer(own=own, token_budget=1)
    said = [await made.forward_backward(step(), [PPO(), Value(clip=0.1)]) for made in (whole, parts)]
    for name in ("value_error", "explained_variance", "value", "loss"):
        assert said[0][name] == pytest.approx(said[1][name], abs=1e-4), name
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(parts)[name], gradient, atol=1e-5, rtol=1e-3, msg=name)


async def test_a_critic_learns():
    made, batch = trainer(detach=True), step()
    errors = []
    for _ in range(60):
        errors.append((await made.forward_backward(batch, [Value()]))["value_error"])
        await made.optim_step()
    assert errors[-1] < 0.5 * errors[0]


async def test_the_critic_is_kept(tmp_path):
    first, batch = trainer(own=True), step()
    await first.forward_backward(batch, [PPO(), Value()])
    await first.optim_step()
    first.save(tmp_path)
    again = trainer(own=True)
    again.load(tmp_path)
    again.restore(first.state())
    for made in (first, again):
        await made.forward_backward(batch, [PPO(), Value()])
        await made.optim_step()
    for name, parameter in first.parameters.items():
        assert torch.equal(again.parameters[name], parameter), name


async def test_weights_of_a_run_without_a_critic_can_be_started_from(tmp_path):
    without = trainer(critic=False)
    without.save(tmp_path, weights_only=True)
    made = trainer()
    before = {name: p.detach().clone() for name, p in made.critic.parameters.items()}
    made.load(tmp_path, weights_only=True)
    assert all(torch.equal(p, before[name]) for name, p in made.critic.parameters.items())
    with pytest.raises(RecordError, match="has no critic"):
        made.load(tmp_path)
    made.save(tmp_path, weights_only=True)
    without.load(tmp_path, weights_only=True)


async def test_what_is_published_has_no_critic():
    sent = []

    async def keep(weights, version):
        sent.extend(name for name, _ in weights)

    model = loading.load(NAME, "fp32", 0).model
    made = TorchTrainer(
        ModelPasses(model, bf16=False, token_budget=999, critic=Critic(head(), PLAIN, detach=True)), keep
    )
    await made.publish()
    assert sorted(sent) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_the_backend_opens_a_critic_of_its_own(lora):
    opened = Torch(device="cpu").open(Model(name=NAME), Auto(), 0, critic=Config(model=NAME, lora=lora, hidden=4))
    named = opened.trainer.critic.parameters
    assert {name.split(".")[1] for name in named} > {"head"}
    assert any("lora" in name for name in named) == (lora is not None)
    opened.trainer.close()


def test_a_critic_that_reads_other_tokens_is_refused():
    with pytest.raises(ModelError, match="its tokenizer is not that of 'tiny"):
        Torch(device="cpu").open(Model(name=NAME), Auto(), 0, critic=Config(model="smollm2"))


def test_a_critic_without_a_tokenizer_is_refused(tmp_path):
    with loading.quiet():
        loading.load(NAME, "fp32", 0).model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"^critic.model = .* has no tokenizer: expected that of 'tiny"):
        Torch(device="cpu").open(Model(name=NAME), Auto(), 0, critic=Config(model=str(tmp_path)))


async def test_the_backend_names_the_columns_of_its_passes_and_others_are_refused():
    assert Torch.pass_columns == COLUMNS.keys() | OF_DISTRIBUTIONS
    with pytest.raises(ValueError, match="no column 'third_token': expected some of top_token, top_logprob"):
        await trainer().forward(step(), columns=["top_token", "third_token"])


def test_a_loss_that_needs_a_column_is_refused_with_a_backend_that_has_none():
    recipe = resolved({"estimator": {"name": "bcoder"}, "losses": [{"name": "bcoder"}], "streams": BCODER})
    check_needs(recipe)
    with pytest.raises(ConfigError, match="BCoder needs the stream 'top_logprob', which nothing provides"):
        check_needs(replace(recipe, backend=object()))


BCODER = [{"name": name} for name in ("values", "next_values", "greedy_gap")]
RL = {
    "name": "rl",
    "steps": 1,
    "estimator": {"name": "gae"},
    "losses": [{"name": "ppo"}, {"name": "value"}],
    "streams": [{"name": "values"}, {"name": "next_values"}],
}


def resolved(stage=None, **top):
    data = {"name": "c", "env": {"name": "toy"}, "critic": {}, "stages": [{**RL, **(stage or {})}], **top}
    return resolve(Tables({key: value for key, value in data.items() if value is not None})).recipe


GRPO = {"estimator": {"name": "grpo"}, "losses": [{"name": "ppo"}], "streams": []}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (lambda: resolved(critic=None), "Values needs a critic: add a table"),
        (lambda: resolved(GRPO), "no stage reads it"),
        (lambda: resolved({"losses": [{"name": "ppo"}]}), "a critic that nothing trains"),
        (
            lambda: resolved({"estimator": {"name": "grpo"}}),
            "Value needs an estimator that computes .* which GRPO does not",
        ),
        (lambda: resolved({"streams": [{"name": "values"}]}), "GAE needs the stream 'next_values'"),
        (lambda: resolved(critic={"model": "tiny", "detach": True}), "detach keeps a head"),
        (lambda: resolved(critic={"lora": {"rank": 2}}), "are for a critic's own model"),
        (lambda: resolved({"losses": [{"name": "ppo"}, {"name": "value"}, {"name": "value"}]}), "has Value twice"),
        (
            lambda: resolved({"streams": [{"name": n} for n in ("values", "next_values", "values")]}),
            "the same values: keep one",
        ),
        (lambda: resolved({"estimator": {"name": "gae", "lam": 0.9, "alpha": 0.5}}), "lam would change nothing"),
    ],
)
def test_what_cannot_be_is_refused(said, why):
    with pytest.raises(ConfigError, match=why):
        said()


def test_a_trained_critic_may_only_be_read():
    assert resolved({"losses": [{"name": "ppo"}]}, model={"weights": "runs/before"}).critic is not None
