"""Every loss of ours keeps its promises; every broken one here breaks one, and that one is reported."""

from dataclasses import dataclass

import pytest
import torch

from sojourn.checks.loss import PROMISES, check_loss
from sojourn.checks.report import Outcome
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.losses.ppo import PPO


@pytest.mark.parametrize("name", COMPONENTS["loss"])
def test_ours_keep_every_promise(name):
    report = check_loss(build("loss", {"name": name}).value)
    assert {v.outcome for v in report.verdicts} == {Outcome.PASSED}, report.verdicts
    assert len(report.verdicts) == len(PROMISES)


@pytest.mark.parametrize("loss", [PPO(clip_low=0.0, clip_high=0.0), PPO(clip_low=0.01, clip_high=0.5)])
def test_tight_clips_still_let_a_gradient_through(loss):
    assert check_loss(loss).passed


@dataclass(frozen=True)
class Sound:
    """The ratio times the advantage; the broken ones change one thing."""

    needs = frozenset[str]()
    zero_at_zero_advantage = True

    def __call__(self, out, batch):
        ratio = (out.logprobs - batch.logprobs).exp()
        return self.loss(ratio, out, batch), self.metrics(ratio)

    def loss(self, ratio, out, batch):
        return -ratio * batch.advantages

    def metrics(self, ratio):
        return {"ratio": ratio.detach()}


class Averages(Sound):
    def loss(self, ratio, out, batch):
        return super().loss(ratio, out, batch).mean()


class Squeezes(Sound):
    def loss(self, ratio, out, batch):
        return super().loss(ratio, out, batch).squeeze()


class Spreads(Sound):
    """The mean again, hidden in the right shape."""

    def loss(self, ratio, out, batch):
        return super().loss(ratio, out, batch).mean().expand(len(ratio))


class Whitens(Sound):
    def loss(self, ratio, out, batch):
        return -ratio * (batch.advantages - batch.advantages.mean())


class Weighs(Sound):
    def loss(self, ratio, out, batch):
        return super().loss(ratio, out, batch) * batch.weight


class Undeclared(Sound):
    def loss(self, ratio, out, batch):
        return super().loss(ratio, out, batch) + batch.streams["ref_logprobs"]


class MeanMetric(Sound):
    def metrics(self, ratio):
        return {"ratio": ratio.detach().mean()}


class Graph(Sound):
    def metrics(self, ratio):
        return {"ratio": ratio}


class Number(Sound):
    def metrics(self, ratio):
        return {"ratio": 1.0}


class Bare(Sound):
    def __call__(self, out, batch):
        return -batch.advantages * out.logprobs


class Detached(Sound):
    def loss(self, ratio, out, batch):
        return -batch.advantages * out.logprobs.detach()


class Overflows(Sound):
    def loss(self, ratio, out, batch):
        return -(ratio**4) * batch.advantages


class NoGradientAtOverflow(Sound):
    """Its values are finite, the gradient of what is not chosen is not: 0 * inf."""

    def loss(self, ratio, out, batch):
        return torch.where(ratio < 2, ratio**4, ratio.detach().clamp(max=2)) * -batch.advantages


class NotProportional(Sound):
    def loss(self, ratio, out, batch):
        return super().loss(ratio, out, batch) + 0.01 * ratio


class Mutates(Sound):
    def loss(self, ratio, out, batch):
        batch.advantages.clamp_(-1, 1)
        return super().loss(ratio, out, batch)


class SaysNothing(Sound):
    zero_at_zero_advantage = None  # type: ignore[assignment]


BROKEN = {
    Averages: "one value per token, never a mean",
    Squeezes: "one value per token, never a mean",
    Spreads: "a divided batch gives the same loss",
    Whitens: "a divided batch gives the same loss",
    Weighs: "weights are left to the trainer",
    Undeclared: "it reads what it declares",
    Bare: "it reads what it declares",
    MeanMetric: "metrics are per token, without a graph",
    Graph: "metrics are per token, without a graph",
    Number: "metrics are per token, without a graph",
    Detached: "a gradient reaches what is trained",
    Overflows: "it is finite at extreme ratios",
    NoGradientAtOverflow: "it is finite at extreme ratios",
    NotProportional: "zero_at_zero_advantage is correct",
    Mutates: "its inputs are not modified",
    SaysNothing: "it declares what it needs",
}
ALSO = {
    Overflows: {
        "a divided batch gives the same loss",
        "zero_at_zero_advantage is correct",
    },  # infinities have no difference
    NoGradientAtOverflow: {"a divided batch gives the same loss", "zero_at_zero_advantage is correct"},
    Weighs: {"a divided batch gives the same loss"},
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_loss_is_caught_by_the_promise_it_breaks(kind):
    report = check_loss(kind())
    assert BROKEN[kind] in report.failed, report.verdicts
    assert report[BROKEN[kind]].detail
    assert set(report.failed) <= {BROKEN[kind]} | ALSO.get(kind, set()), report.verdicts


def test_a_sound_one_passes_and_the_details_say_what_happened():
    assert check_loss(Sound()).passed
    assert "expected (" in check_loss(Averages())["one value per token, never a mean"].detail
    detail = check_loss(Undeclared())["it reads what it declares"].detail
    assert "'ref_logprobs', which its needs do not name" in detail
    assert check_loss(Averages())["weights are left to the trainer"].outcome is Outcome.NOT_JUDGED


class Unread(Sound):
    needs = frozenset({"ref_logprobs"})


class FollowsEntropy(Sound):
    def loss(self, ratio, out, batch):
        return super().loss(ratio, out, batch) * out.entropy


class IdleEntropy(Sound):
    needs = frozenset({"entropy"})


class Modest(Sound):
    zero_at_zero_advantage = False


@pytest.mark.parametrize(
    ("kind", "promise", "detail"),
    [
        (Unread, "it reads what it declares", "'ref_logprobs'"),
        (FollowsEntropy, "it reads what it declares", "name it in needs"),
        (IdleEntropy, "it reads what it declares", "no gradient flows to it"),
        (Modest, "zero_at_zero_advantage is correct", "zero_at_zero_advantage = True"),
    ],
)
def test_what_is_kept_but_costs_is_a_warning(kind, promise, detail):
    report = check_loss(kind())
    assert report.passed
    assert report[promise].outcome is Outcome.WARNED
    assert detail in report[promise].detail
