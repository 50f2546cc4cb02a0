"""Every estimator with every loss, on-policy and lagging: it works, in one part and, for each kind of batch, in many,
or is refused."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from sojourn.abilities import provided
from sojourn.backends.torch.backend import Torch
from sojourn.backends.torch.models import loading
from sojourn.backends.torch.trainer.copies import CopyableTrainer
from sojourn.backends.torch.trainer.critic import Critic, Head
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.batch import Aggregate, choose, to_batch
from sojourn.batch.flatten import flatten, scatter
from sojourn.checks import synthetic
from sojourn.checks.synthetic import FORKED, UNSTARTED, Shape
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.config.toml import Tables
from sojourn.errors import ConfigError
from sojourn.optim import Optim
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.train.requirements import PASS_COLUMNS
from sojourn.train.resolve import resolve

ESTIMATORS = list(COMPONENTS["estimator"])
LOSSES = list(COMPONENTS["loss"])
OF_PASS = PASS_COLUMNS | Torch.pass_columns
LAGS = (0, 2)
WHOLE = 100_000  # a budget of tokens that divides no step
EAGER = {  # else they say nothing at the first step
    "utterance_advantage": {"warmup": 0},
    "teacher": {"model": "other"},
}
SEATS = {"foresight": {"planner": "agent", "executor": "agent"}}  # those of the world
SHAPES = (
    (Shape(), FORKED, Shape(turns=1, tokens=1), Shape(turns=2)),
    (Shape(turns=4), Shape(turns=1)),
    (Shape(turns=2), UNSTARTED),
    (Shape(turns=3),),
)


async def nowhere(weights, version):
    """Takes published weights and forgets them."""


@cache
def trainer(token_budget: int) -> CopyableTrainer:
    """With a critic whose head has learnt something, so that a gradient reaches what is under it."""
    model = loading.load("tiny:layers=1,hidden=64", "fp32", 0).model
    head = Head(64, 0)
    torch.nn.init.normal_(head.out.weight, generator=torch.Generator().manual_seed(0))
    critic = Critic(head, Optim(), detach=False)
    made = CopyableTrainer(ModelPasses(model, bf16=False, token_budget=token_budget, critic=critic), nowhere)
    made.begin(Optim(lr=1e-3), 10, reference=True)
    if token_budget == WHOLE:
        other = loading.load("tiny:layers=1,hidden=64", "fp32", 1).model
        made.teachers.frozen["other"] = ModelPasses(other, bf16=False, token_budget=token_budget)
    else:
        made.teachers = trainer(WHOLE).teachers  # those that streams ask
    return made


async def played(lag: int):
    """A step whose sampler was the trainer, or where it lags, another policy near it."""
    step = synthetic.step(SHAPES, frozenset())
    batch, places = flatten(step.groups)
    logprobs = (await trainer(WHOLE).forward(batch)).logprobs
    gap = np.random.default_rng(lag).normal(0, 0.3, len(batch)) if lag else np.zeros(len(batch))
    drawn = scatter(step.groups, np.minimum(logprobs + gap, -1e-3).astype(np.float32), places)
    groups = [
        replace(group, episodes=tuple(sampled(e, d) for e, d in zip(group.episodes, known, strict=True)))
        for group, known in zip(step.groups, drawn, strict=True)
    ]
    return groups, step.scores


def sampled(episode, logprobs):
    [one] = episode.trajectories
    turns = [
        replace(turn, sample=replace(turn.sample, logprobs=known))
        for turn, known in zip(one.turns, logprobs, strict=True)
    ]
    won = float(len(turns) > 1)  # some episodes, as a loss may look at those that succeed alone
    turns[-1:] = [replace(turn, info={**turn.info, "success": won}) for turn in turns[-1:]]
    return replace(episode, trajectories=(replace(one, turns=tuple(turns)),))


def recipe(estimator: str, loss: str, lag: int, critic: bool):
    """Resolved with the streams that they ask for; a critic is trained by its loss."""
    names = [loss, *(["value"] if critic and loss != "value" else [])]
    own, *losses = [build("estimator", {"name": estimator}).value, *(build("loss", {"name": n}).value for n in names)]
    needs = sorted(own.needs.union(*(loss.needs - OF_PASS for loss in losses)) - {"targets"})
    stage = {"name": "rl", "steps": 1, "groups": {"name": "slots", "max_lag": lag}}
    stage |= {"estimator": {"name": estimator, **SEATS.get(estimator, {})}, "losses": [{"name": n} for n in names]}
    stage |= {"streams": [{"name": n, **EAGER.get(n, {})} for n in needs]}
    data = {"name": "all", "env": {"name": "toy"}, "stages": [stage], **({"critic": {}} if critic else {})}
    data |= {"models": {"other": {"name": "tiny"}}} if "teacher" in needs else {}
    return resolve(Tables(data)).recipe.stages[0]


async def told(stream, passes):
    """What a stream says; made up for one that reads the tasks' right answers, as these tasks have none."""
    if not hasattr(stream, "task_data"):
        return await stream(passes)
    return synthetic.step_of(passes.groups, frozenset({stream.provides}), np.random.default_rng(0)).streams[
        stream.provides
    ]


async def gradient(batch, losses, token_budget):
    made = trainer(token_budget)
    await made.forward_backward(batch, losses)
    found = {n: p.grad for n, p in made.parameters.items() if p.grad is not None}
    for parameter in made.parameters.values():
        parameter.grad = None
    return torch.cat([g.flatten() for g in found.values()]) if found else torch.zeros(1)


def without_gradient(estimator: str, loss: str, lag: int, batch) -> bool:
    """Returns whether a step may have no gradient: that of a KL at the reference; that of the regret-loss, where no
    play has any regret; or, behind, that of a loss which clips whole sequences closely, where none is to become less
    likely and all that are paid became likelier."""
    if estimator == "regret_loss" and not batch.advantages.any():
        return True
    return loss == "kl" or (bool(lag) and loss == "gspo" and bool((batch.advantages >= 0).all()))


def clash(estimator: str, loss: str, lag: int, critic: bool) -> str:
    """Why the pair must be refused; empty where it must work."""
    targets = "targets" in provided(build("estimator", {"name": estimator}).value)
    needs = build("loss", {"name": loss}).value.needs
    trains_critic = "critic" in needs
    if (critic or (trains_critic and "targets" in needs)) and not targets:
        return "needs an estimator that computes targets for the critic"
    if loss == "reinforce" and lag:
        return "Reinforce is valid only for samples of the current weights"
    return "needs a critic" if not critic and (targets or trains_critic) else ""


@pytest.mark.parametrize("critic", [True, False])
@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("loss", LOSSES)
async def test_every_pair_takes_a_step_or_is_refused(loss, lag, critic):
    groups, scores = await played(lag)
    passes = TrainerPasses(groups, scores, trainer(WHOLE), critic=critic)
    divided = set()  # what was in the batches that were trained in many parts, too
    for estimator in ESTIMATORS:
        if why := clash(estimator, loss, lag, critic):
            with pytest.raises(ConfigError, match=why):
                recipe(estimator, loss, lag, critic)
            continue
        stage = recipe(estimator, loss, lag, critic)
        streams = {stream.provides: await told(stream, passes) for stream in stage.streams}
        credit = stage.estimator(groups, scores, streams)
        batch = to_batch(groups, credit, streams, aggregate=Aggregate(by="turn"), losses=stage.losses)
        batch = await choose(batch, stage.losses, passes.trainer)
        whole = await gradient(batch, stage.losses, WHOLE)
        assert torch.isfinite(whole).all(), estimator
        if (columns := (frozenset(streams), bool((batch.advantages < 0).any()))) not in divided:
            divided.add(columns)
            parts = await gradient(batch, stage.losses, 1)
            torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-3, msg=lambda said, e=estimator: f"{e}: {said}")
        assert whole.norm() > 1e-4 or without_gradient(estimator, loss, lag, batch), estimator


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_step_of_nothing_is_a_step(loss):
    """A filter may leave no group; a critic's loss has no targets then, and no weight moves."""
    made = build("loss", {"name": loss}).value
    streams = {need: [] for need in made.needs - OF_PASS - {"targets"}}
    batch = to_batch([], [], streams, aggregate=Aggregate(), losses=[made])
    assert not (await gradient(batch, [made], WHOLE)).any()


async def test_importance_takes_no_loss_that_divides_its_gradient():
    with pytest.raises(ConfigError, match="STPPO divides its gradient"):
        build("loss", {"name": "importance", "base": {"name": "st_ppo"}})


async def test_importance_lets_a_loss_without_ratio_follow_a_lag():
    table = {"name": "importance", "base": {"name": "reinforce"}}
    stage = {"name": "rl", "steps": 1, "groups": {"name": "slots", "max_lag": 2}, "estimator": {"name": "rloo"}}
    stage |= {"losses": [table], "streams": [{"name": "policy_logprobs"}]}
    data = {"name": "all", "env": {"name": "toy"}, "stages": [stage]}
    assert resolve(Tables(data)).recipe.stages[0].losses[0].valid_for == {"lag"}
    with pytest.raises(ConfigError, match="after the first of 2 minibatches"):
        resolve(Tables({**data, "stages": [{**stage, "minibatches": 2}]}))


async def test_what_a_loss_asks_for_of_a_base_is_asked_for():
    stage = {"name": "rl", "steps": 1, "estimator": {"name": "aem", "base": {"name": "rloo"}}}
    with pytest.raises(ConfigError, match="AEM needs the stream 'entropy'"):
        resolve(Tables({"name": "all", "env": {"name": "toy"}, "stages": [{**stage, "losses": [{"name": "ppo"}]}]}))
