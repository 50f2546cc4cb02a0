"""Groups of several origins in one step: losses and estimators for each, refusals, and a run that mixes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from trained_run import final_weights, train

from sojourn.backends.torch.trainer.pass_io import select_tokens
from sojourn.batch import Aggregate, to_batch
from sojourn.checks import synthetic
from sojourn.checks.synthetic import Shape
from sojourn.config.toml import Tables
from sojourn.credit.by_origin import ByOrigin
from sojourn.credit.constant import Constant
from sojourn.credit.grpo import GRPO
from sojourn.errors import ConfigError
from sojourn.losses.clip_cov import ClipCov
from sojourn.losses.dpo import DPO
from sojourn.losses.nll import NLL
from sojourn.losses.of_origin import OfOrigin
from sojourn.losses.papers.positive_nll import PositiveNLL
from sojourn.losses.papers.st_ppo import STPPO
from sojourn.losses.ppo import PPO
from sojourn.losses.weighted import Weighted
from sojourn.protocols import PassOutput
from sojourn.streams.origins import number_of, origin_numbers
from sojourn.train.resolve import resolve
from sojourn.types import Credit

SHAPES = ((Shape(turns=1), Shape(turns=2)), (Shape(turns=1),))
RUN = """
name = "mixed"
[model]
name = "tiny:layers=1,hidden=64"
dtype = "fp32"
[backend]
name = "torch"
threads = 1
kernel = false
[env]
name = "toy"
rooms = 2
side_rooms = 0
doors = 0
choices = true
[agent]
name = "plain"
choices = true
[rollout]
concurrency = 1
[rollout.limits]
turns = 4
[evaluation]
tasks = 2
[[stages]]
name = "rl"
steps = 3
optim = { lr = 3e-3 }
"""
LIVE = '{name="slots", width=2, size=4}'
MIXED = f'stages.rl.groups={{name="mixed", parts=[{LIVE}, {{name="experts", width=2, distinct_tasks=4}}]}}'
BY_ORIGIN = 'stages.rl.estimator={name="by_origin", of={experts={name="constant"}}}'
ORIGINS = 'stages.rl.streams=[{name="origins"}]'
BOTH = (
    'stages.rl.losses=[{name="of_origin"}, {name="of_origin", origins=["experts"], base={name="nll"}, mean="origins"}]'
)


def step(origins: tuple[str, ...] = ("policy", "experts"), shapes=SHAPES):
    made = synthetic.step(shapes, frozenset())
    groups = [replace(group, origin=origin) for group, origin in zip(made.groups, origins, strict=True)]
    return groups, made.scores


def called(losses: list[Any], groups, streams=None):
    """The sum of losses per token, its gradient by log-probabilities, the batch, and all metrics."""
    credit = [[Credit.uniform(t, 1.0 + n) for n, t in enumerate(g.trajectories)] for g in groups]
    streams = {"origins": origin_numbers(groups), **(streams or {})}
    batch = to_batch(groups, credit, streams, aggregate=Aggregate(), losses=losses)
    logprobs = (batch.logprobs + np.linspace(-0.4, 0.4, len(batch))).astype(np.float32)
    for loss in losses:
        if getattr(loss, "chooses", False):
            batch = replace(batch, streams={**batch.streams, **loss.choose(batch, logprobs)})
    where = np.flatnonzero(batch.weight)
    now = torch.from_numpy(logprobs[where]).requires_grad_()
    out = PassOutput(now, torch.ones(len(where)), torch.zeros(0))
    results = [loss(out, select_tokens(batch, where)) for loss in losses]
    total = cast(torch.Tensor, sum(value for value, _ in results))
    [gradient] = torch.autograd.grad(total.sum(), [now])
    metrics = {name: values for _, of_loss in results for name, values in of_loss.items()}
    own = batch.streams["origins"][where]
    return total.detach().numpy(), gradient.numpy(), batch.weight[where], own, metrics


def test_each_loss_is_that_of_its_groups_tokens_alone():
    groups, _ = step()
    losses = [OfOrigin(base=PPO()), OfOrigin(base=NLL(), origins=("experts",))]
    value, gradient, _, own, metrics = called(losses, groups)
    [ppo, nll] = [called([loss], groups) for loss in (PPO(), NLL())]
    played, shown = own == number_of("policy"), own == number_of("experts")
    assert played.any()
    assert shown.any()
    assert (played | shown).all()
    for found, of_ppo, of_nll in ((value, ppo[0], nll[0]), (gradient, ppo[1], nll[1])):
        assert np.array_equal(found[played], of_ppo[played])
        assert np.array_equal(found[shown], of_nll[shown])
    assert {"policy_kl", "policy_clip_fraction", "experts_nll"} == metrics.keys()


def test_the_mean_over_an_origin_does_not_depend_on_how_many_tokens_others_have():
    groups, _ = step()
    both = called([OfOrigin(base=NLL(), origins=("experts",), mean="origins")], groups)
    value, _, weight, own, metrics = both
    shown = own == number_of("experts")
    alone = called([NLL()], groups)[0][shown].mean()
    assert (value * weight).sum() == pytest.approx(alone)
    plain = called([NLL()], groups)[4]["nll"].numpy()[shown].mean()
    assert float((metrics["experts_nll"].numpy() * weight).sum()) == pytest.approx(plain)
    third = called([OfOrigin(base=NLL(), origins=("experts",))], groups)
    assert (third[0] * weight).sum() == pytest.approx(alone * shown.mean())


@pytest.mark.parametrize("mean", ["step", "origins"])
def test_a_base_with_a_mean_of_its_own_counts_for_as_much_beside_many_others(mean):
    """Its mean is over pairs, of which other origins have none."""
    groups, _ = step(("experts", "policy"))
    pairs = [[tuple(turn * 0 for turn in t) for t in g] for g in zeros(groups)]
    for sign, place in ((1.0, 0), (-1.0, 1)):
        pairs[0][place] = tuple(np.full(len(turn), sign, np.float32) for turn in pairs[0][place])
    streams = {"pairs": pairs, "ref_logprobs": zeros(groups)}
    plain = called([DPO()], groups, streams)
    wrapped = called([OfOrigin(base=DPO(), origins=("experts",), mean=mean)], groups, streams)
    np.testing.assert_allclose(wrapped[1] * wrapped[2], plain[1] * plain[2], rtol=1e-5)
    assert np.abs(plain[1]).max() > 0
    base = Weighted(base=DPO(), stream="one")
    streams |= {"one": [[tuple(turn + 1 for turn in t) for t in g] for g in zeros(groups)]}
    weighed = called([OfOrigin(base=base, origins=("experts",), mean=mean)], groups, streams)
    np.testing.assert_allclose(weighed[1] * weighed[2], plain[1] * plain[2], rtol=1e-5)


@pytest.mark.parametrize("mean", ["step", "origins"])
@pytest.mark.parametrize("base", [PPO(), NLL(), ClipCov(fraction=0.5, min_covariance=-9), PositiveNLL()])
def test_with_a_single_origin_it_is_the_base_itself(base, mean):
    """The law of origins, bit for bit, also where the base chooses tokens or averages over a step."""
    groups, _ = step(("experts", "experts"))
    success = {"success": [[tuple(turn + 1 for turn in t) for t in g] for g in zeros(groups)]}
    plain = called([base], groups, success)
    wrapped = called([OfOrigin(base=base, origins=("experts",), mean=mean)], groups, success)
    assert np.array_equal(plain[0], wrapped[0])
    assert np.array_equal(plain[1], wrapped[1])


def test_a_base_that_averages_sees_its_tokens_alone():
    """`positive_nll` is a mean over successful tokens: here those of the first played trajectory, and the shown one."""
    groups, _ = step()
    first = len(groups[0].trajectories[0].turns[0].sample.tokens)
    success = zeros(groups)
    success[0][0][0][:] = success[1][0][0][:] = 1
    losses = [OfOrigin(base=PositiveNLL(coef=1.0), origins=(origin,)) for origin in ("policy", "experts")]
    value, *_, own, _ = called(losses, groups, {"success": success})
    loss = called([NLL()], groups)[4]["nll"].numpy()
    played = int((own == number_of("policy")).sum())
    assert value[:first] == pytest.approx(loss[:first] * played / first)
    assert not value[first:played].any()
    assert value[played:] == pytest.approx(loss[played:])


def test_the_same_base_for_two_origins_keeps_their_columns_apart():
    groups, _ = step()
    base = ClipCov(fraction=1.0, min_covariance=-9, max_covariance=9)
    both = called([OfOrigin(base=base), OfOrigin(base=base, origins=("experts",))], groups)
    one = called([OfOrigin(base=base)], groups)
    played = both[3] == number_of("policy")
    assert np.array_equal(both[0][played], one[0][played])
    assert not one[0][~played].any()


def test_without_tokens_of_its_origins_a_loss_is_zero_and_has_a_gradient():
    groups, _ = step(("policy", "policy"))
    value, gradient, *_, metrics = called([OfOrigin(base=NLL(), origins=("experts",))], groups)
    assert not value.any()
    assert not gradient.any()
    assert metrics == {}


def test_estimators_by_origin_see_their_groups_alone():
    groups, scores = step(("policy", "experts", "policy"), (*SHAPES, (Shape(turns=1), Shape(turns=2))))
    credit = ByOrigin(base=GRPO(), of={"experts": Constant(value=3.0)})(groups, scores, {})
    apart = GRPO()([groups[0], groups[2]], [scores[0], scores[2]], {})
    assert [c.tokens[0][0] for c in credit[1]] == [3.0]
    for found, expected in zip((credit[0], credit[2]), apart, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one.tokens, other.tokens, strict=True))


def test_a_loss_of_no_origin_or_that_divides_the_gradient_is_refused():
    with pytest.raises(ValueError, match=r"origins = \[\]: name at least one"):
        OfOrigin(origins=())
    with pytest.raises(ValueError, match="STPPO divides the gradient of the whole step"):
        OfOrigin(base=STPPO())


EXPERTS = {"name": "mixed", "parts": [{"name": "slots"}, {"name": "experts"}]}
REPLAY = {"name": "mixed", "parts": [{"name": "slots"}, {"name": "replay"}]}
OF_EXPERTS = {"name": "of_origin", "origins": ["experts"], "base": {"name": "nll"}}
CONSTANT = {"name": "by_origin", "of": {"experts": {"name": "constant"}}}
OF_PLAYED = {"name": "of_origin", "base": {"name": "reinforce"}}
OF_REPLAYED = {"name": "of_origin", "origins": ["replay"], "base": {"name": "reinforce"}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"groups": EXPERTS}, "GRPO compares the episodes .* from Experts, .* or by_origin with another for 'experts'"),
        (
            {"groups": {"name": "slots"}, "losses": [{"name": "ppo"}, OF_EXPERTS]},
            "OfOrigin names the origin 'experts', of which the stage has no groups: use one of policy",
        ),
        (
            {"groups": EXPERTS, "estimator": CONSTANT, "losses": [{"name": "of_origin"}]},
            "no loss is applied to the groups of Experts",
        ),
        ({"groups": REPLAY, "estimator": CONSTANT}, "ByOrigin names the origin 'experts'"),
        (
            {
                "groups": REPLAY,
                "losses": [{"name": "of_origin", "origins": ["policy", "replay"], "base": {"name": "reinforce"}}],
            },
            "Reinforce is valid only for samples of the current weights, but Replay gives other ones",
        ),
        (
            {
                "groups": REPLAY,
                "losses": [
                    {"name": "of_origin", "base": {"name": "reinforce"}},
                    {"name": "of_origin", "origins": ["replay"]},
                ],
            },
            "",
        ),
        ({"groups": EXPERTS, "estimator": CONSTANT, "losses": [{"name": "of_origin"}, OF_EXPERTS]}, ""),
        (
            {
                "groups": EXPERTS,
                "estimator": CONSTANT,
                "losses": [
                    {"name": "clip_cov"},
                    {"name": "of_origin", "origins": ["experts"], "base": {"name": "clip_cov"}},
                ],
            },
            "losses has ClipCov twice",
        ),
        (
            {"losses": [{"name": "ppo"}, {"name": "weighted", "base": OF_EXPERTS}]},
            "OfOrigin names the origin 'experts', of which the stage has no groups",
        ),
        (
            {"estimator": {"name": "whitened", "base": CONSTANT}},
            "ByOrigin names the origin 'experts', of which the stage has no groups",
        ),
        (
            {"groups": EXPERTS, "estimator": CONSTANT, "losses": [{"name": "weighted", "base": OF_EXPERTS}]},
            "no loss is applied to the groups of Slots",
        ),
        (
            {"groups": REPLAY, "losses": [{"name": "weighted", "base": {"name": "of_origin"}}, OF_REPLAYED]},
            "Reinforce is valid only for samples of the current weights, but Replay gives other ones",
        ),
        (
            {"groups": REPLAY, "losses": [{"name": "weighted", "base": OF_PLAYED}, {"name": "ppo"}]},
            "",
        ),
        (
            {"groups": EXPERTS, "estimator": {"name": "whitened", "base": CONSTANT}, "losses": [{"name": "ppo"}]},
            "",
        ),
        (
            {"estimator": {"name": "by_origin", "of": {"policy": {"name": "mgrpo", "main_agent": "captain"}}}},
            "MGRPO is for the seat 'captain', but those who act are agent",
        ),
    ],
)
def test_what_is_applied_to_an_origin_must_fit_its_groups(changes: dict[str, Any], sentence: str):
    stage = {"name": "rl", "steps": 1, "losses": [{"name": "ppo"}], **changes}
    if "of_origin" in str(stage["losses"]):
        stage["streams"] = [{"name": "origins"}]
    if "weighted" in str(stage["losses"]):
        stage["streams"] += [{"name": "success"}]
    data = Tables({"name": "x", "env": {"name": "toy"}, "stages": [stage]})
    if not sentence:
        resolve(data)
        return
    with pytest.raises(ConfigError, match=sentence):
        resolve(data)


def test_one_step_reinforces_what_was_played_and_imitates_what_was_shown(tmp_path: Path):
    """Four fifths of the episodes are the policy's, one fifth are demonstrations, which become likelier."""
    parts = (MIXED, BY_ORIGIN, ORIGINS, BOTH, "stages.rl.steps=6", "record.drift_groups=9")
    run = train(tmp_path / "run", *parts, recipe=RUN)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["episodes"] for line in lines] == [10] * 6
    assert lines[-1]["experts_nll"] < lines[0]["experts_nll"] - 0.05
    drift = [line["drift"] for line in lines]  # of the policy's own groups: 0 before the first update
    assert drift[0] == pytest.approx(0, abs=1e-6)
    assert all(value > 1e-4 for value in drift[1:])
    assert all("policy_kl" in line for line in lines if line["zero_signal"] < 1)


def test_origins_change_nothing_in_a_run_of_one_origin(tmp_path: Path):
    """The law of origins in a whole run: losses and estimators by origin are the plain ones, bit for bit."""
    groups = f"stages.rl.groups={LIVE}"
    plain = train(tmp_path / "plain", groups, 'stages.rl.losses=[{name="ppo"}]', recipe=RUN)
    by_origin = 'stages.rl.estimator={name="by_origin", of={policy={name="grpo"}}}'
    wrapped = 'stages.rl.losses=[{name="of_origin"}]'
    other = train(tmp_path / "other", groups, wrapped, by_origin, ORIGINS, recipe=RUN)
    one, two = final_weights(plain), final_weights(other)
    assert all(np.array_equal(one[name], two[name]) for name in one)


def zeros(groups):
    return [
        [tuple(np.zeros(len(turn.sample.tokens), "f4") for turn in t.turns) for t in g.trajectories] for g in groups
    ]
