"""A sampler that asks the model which a request names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sojourn.abilities import Forgets, Measured, PartLoad, ReportsParts, Tell, sample_telling, since_now
from sojourn.protocols import Sampler
from sojourn.train.snapshots import POLICY
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams


@dataclass(frozen=True)
class OfModel:
    """Reports the parts of a model, under its name unless it is the policy (`ReportsParts`)."""

    model: str
    parts: ReportsParts

    async def part_loads(self) -> list[PartLoad]:
        found = await self.parts.part_loads()
        return [one if self.model == POLICY else replace(one, name=f"{one.name} of {self.model}") for one in found]


@dataclass
class RoutedSampler:
    """Samples from the policy, or from that of `others` which `SamplingParams.model` names; snapshots of the policy
    come and go among these. What steers the policy is not added to others. What it says of itself is the policy's; it
    is closed with all of them."""

    policy: Sampler
    others: Mapping[str, Sampler]

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        return await self.sample_telling(prompt, params)

    async def sample_telling(self, prompt: Prompt, params: SamplingParams, tell: Tell | None = None) -> Sample:
        if params.model == POLICY:
            return await sample_telling(self.policy, prompt, params, tell)
        own = replace(params, model=POLICY, steering=None)  # a vector is of the policy's model
        return await sample_telling(self.others[params.model], prompt, own, tell)

    def since_now(self) -> RoutedSampler:
        """Returns a sampler of the models that are open now, by weights of now or newer ones (`AllowsOlder`)."""
        return RoutedSampler(since_now(self.policy), {name: since_now(one) for name, one in self.others.items()})

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.policy.score(prompt)

    async def forget(self) -> None:
        for sampler in (self.policy, *self.others.values()):
            if isinstance(sampler, Forgets):
                await sampler.forget()

    def metrics(self) -> Mapping[str, float]:
        return self.policy.metrics() if isinstance(self.policy, Measured) else {}

    async def part_loads(self) -> list[PartLoad]:
        named = {POLICY: self.policy, **self.others}
        return [
            load
            for name, sampler in named.items()
            if isinstance(sampler, ReportsParts)
            for load in await OfModel(name, sampler).part_loads()
        ]

    async def close(self) -> None:
        for sampler in (self.policy, *self.others.values()):  # some of which may be samplers of the policy's engine
            await sampler.close()
