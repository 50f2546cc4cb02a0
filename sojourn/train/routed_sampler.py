"""A sampler that asks the model which a request names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sojourn.abilities import Forgets, Measured, PartLoad, ReportsParts, Tell, sample_telling
from sojourn.protocols import Sampler
from sojourn.train.snapshots import POLICY
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams


@dataclass
class RoutedSampler:
    """Samples from the policy, or from that of `others` which `SamplingParams.model` names; snapshots of the policy
    come and go among these. What it says of itself is the policy's; it is closed with all of them."""

    policy: Sampler
    others: Mapping[str, Sampler]

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        return await self.sample_telling(prompt, params)

    async def sample_telling(self, prompt: Prompt, params: SamplingParams, tell: Tell | None = None) -> Sample:
        if params.model == POLICY:
            return await sample_telling(self.policy, prompt, params, tell)
        return await sample_telling(self.others[params.model], prompt, replace(params, model=POLICY), tell)

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
            load if name == POLICY else replace(load, name=f"{load.name} of {name}")
            for name, sampler in named.items()
            if isinstance(sampler, ReportsParts)
            for load in await sampler.part_loads()
        ]

    async def close(self) -> None:
        for sampler in (self.policy, *self.others.values()):  # some of which may be samplers of the policy's engine
            await sampler.close()
