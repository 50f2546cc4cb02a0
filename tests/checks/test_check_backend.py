"""The torch backend keeps its promises; each fault put into it breaks one, and that one is reported."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sojourn.backends.torch.backend import Torch
from sojourn.checks.backend import PROMISES, check_backend
from sojourn.checks.report import Outcome
from sojourn.config.components import COMPONENTS
from sojourn.config.registry import build
from sojourn.types import Versions


@pytest.mark.parametrize("name", COMPONENTS["backend"])
async def test_ours_keep_every_promise(name):
    report = await check_backend(build("backend", {"name": name}).value)
    assert {v.outcome for v in report.verdicts} == {Outcome.PASSED}, report.verdicts
    assert len(report.verdicts) == len(PROMISES)


@dataclass
class Trainer:
    """The real trainer with one fault."""

    real: object
    fault: str

    def __getattr__(self, name):
        return getattr(self.real, name)

    async def forward_backward(self, batch, losses):
        if self.fault == "averages":
            batch = batch.scaled(1 / batch.weight.sum())
        if self.fault == "forgets":
            self.real._optimizers["policy"].drop_gradient()
        return await self.real.forward_backward(batch, losses)

    async def optim_step(self):
        if self.fault == "never learns":
            return {}
        done = await self.real.optim_step()
        if self.fault == "leaks weights":
            await self.real.publish()
        return done

    async def publish(self):
        return 7 if self.fault == "keeps weights" else await self.real.publish()

    def load(self, folder):
        if self.fault != "loads nothing":
            self.real.load(folder, weights_only=self.fault == "loads weights only")

    def close(self):
        if self.fault != "stays open":
            self.real.close()


@dataclass
class Sampler:
    real: object
    fault: str
    count: int = 0
    version: int = field(default=0)

    def __getattr__(self, name):
        return getattr(self.real, name)

    async def sample(self, prompt, params):
        self.count += 1
        if self.fault == "forgets seeds":
            params = replace(params, seed=self.count)
        if self.fault == "one seed":
            params = replace(params, seed=0)
        sample = await self.real.sample(prompt, params)
        match self.fault:
            case "logprobs of temperature 1" if params.temperature == 0.6:
                whole = await self.real.score(type(prompt)(np.concatenate([prompt.tokens, sample.tokens])))
                return replace(sample, logprobs=whole[-len(sample.tokens) :])
            case "old versions":
                return replace(sample, versions=Versions(0, 0))
            case "talks on":
                tokens = np.concatenate([sample.tokens] * 13)
                return replace(sample, tokens=tokens, logprobs=np.concatenate([sample.logprobs] * 13), allowed=None)
        return sample

    async def score(self, prompt):
        scored = await self.real.score(prompt)
        return scored[1:] if self.fault == "scores one less" else scored


@dataclass(frozen=True)
class Faulty:
    fault: str
    opened: list = field(default_factory=list)  # holds on to them: a thread that nothing refers to ends by itself

    def open(self, model, renderer, seed, timeline):
        if self.fault == "does not open":
            raise RuntimeError("no device")
        opened = Torch().open(model, renderer, seed, timeline)
        self.opened.append(opened)
        return opened._replace(trainer=Trainer(opened.trainer, self.fault), sampler=Sampler(opened.sampler, self.fault))


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("does not open", "it opens"),
        ("talks on", "samples are what was asked for"),
        ("forgets seeds", "the same seed gives the same tokens"),
        ("one seed", "the same seed gives the same tokens"),
        ("logprobs of temperature 1", "sampler and trainer agree"),
        ("scores one less", "scores agree with sampling"),
        ("leaks weights", "only publish changes the sampler"),
        ("keeps weights", "only publish changes the sampler"),
        ("old versions", "only publish changes the sampler"),
        ("averages", "a divided batch gives the same update"),
        ("forgets", "a divided batch gives the same update"),
        ("loads nothing", "saved state is restored"),
        ("loads weights only", "saved state is restored"),
        ("stays open", "it closes"),
    ],
)
async def test_a_fault_is_caught_by_the_promise_it_breaks(fault, promise):
    faulty = Faulty(fault)
    report = await check_backend(faulty)
    for opened in faulty.opened:
        opened.trainer.close()
    assert report.failed == (promise,), report.verdicts
    assert report[promise].detail


async def test_a_trainer_that_never_learns_is_caught():
    report = await check_backend(Faulty("never learns"))
    assert "expected that the step changes the weights" in report["only publish changes the sampler"].detail
    assert report["sampler and trainer agree"].outcome is Outcome.PASSED
