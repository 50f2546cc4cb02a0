"""Divergences from a teacher's distributions, for distillation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch

from sojourn.abilities import Compared
from sojourn.config.fields import Range
from sojourn.config.unused import refuse_unused
from sojourn.protocols import PassOutput, SelectedTokens

IMPOSSIBLE = -1e30  # finite, so that probability 0 times its logarithm is 0
RESOLUTION = 2.0**-24  # below which what is left of 1 is rounding error of log-probabilities in fp32


@dataclass(frozen=True, kw_only=True)
class Distill:
    """`coef` times the divergence between the teacher's distribution p and the policy's q in the place of each token,
    over the whole vocabulary and with the exact gradient; the stream `teacher` says who teaches.

    `divergence` = "reverse_kl" is KL(q || p): on tokens that the policy samples it is on-policy distillation without
    sampling noise, the single-step part of the gradient of MiniLLM (Gu et al. 2023, arXiv:2306.08543). "forward_kl" is
    KL(p || q), as in supervised distillation on the teacher's or an expert's tokens. "jsd" is the generalised
    Jensen-Shannon divergence beta KL(p || m) + (1 - beta) KL(q || m), where m = beta p + (1 - beta) q (GKD: Agarwal et
    al. 2023, arXiv:2306.13649, by what Liger's code quotes of it; TRL's mixes log-probabilities, and the text was not
    read); `beta` near 0 acts like the forward KL, near 1 like the reverse. GKD's lambda, the fraction of tokens that
    the student samples, is that of the source `mixed`. Gradients do not flow through sampling, as in both codes.

    With `top_k` above 0, only the teacher's so many likeliest tokens are told apart and all others count as one event,
    so that the divergence stays one of distributions, and is 0 only where both agree on these tokens. A teacher behind
    an endpoint gives only the `top_k` likeliest tokens of `[models.NAME.endpoint]`; the loss may tell no more apart.
    """

    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    beta: Annotated[float, Range(above=0, below=1)] = 0.5
    top_k: Annotated[int, Range(0)] = 0
    coef: float = 1.0

    zero_at_zero_advantage = False
    valid_for = frozenset({"lag", "updates", "unsampled"})

    def __post_init__(self) -> None:
        if self.divergence != "jsd":
            refuse_unused(self, ["beta"], f'with divergence = "{self.divergence}", which mixes nothing')

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"teacher", self.divergence})

    @property
    def column(self) -> str:
        return self.divergence

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        value = out.columns[self.column]
        gap = out.logprobs.detach() - batch.streams["teacher"]
        return self.coef * value, {self.divergence: value.detach(), "teacher_gap": gap}

    def compare(self, policy: torch.Tensor, teacher: torch.Tensor) -> Compared:
        if not 0 < self.top_k < teacher.shape[1]:
            value, mass = self._events(policy, teacher)
            return Compared(value, mass - policy.exp() * mass.sum(1, keepdim=True))
        likeliest = teacher.topk(self.top_k, 1).indices
        other = torch.cat([teacher.gather(1, likeliest), _rest(teacher, likeliest)], 1)
        return self._among_likeliest(policy, other, likeliest)

    def compare_likeliest(self, policy: torch.Tensor, tokens: torch.Tensor, logprobs: torch.Tensor) -> Compared:
        """Compares with a teacher of which its likeliest tokens are known, and all others as what is left of 1, at
        least `RESOLUTION`."""
        tokens, logprobs = tokens[:, : self.top_k], logprobs[:, : self.top_k].float()
        logprobs = logprobs.masked_fill(tokens < 0, IMPOSSIBLE)
        rest = (1 - logprobs.double().exp().sum(1, keepdim=True)).clamp(min=RESOLUTION).log().float()
        return self._among_likeliest(policy, torch.cat([logprobs, rest], 1), tokens)

    def _among_likeliest(self, policy: torch.Tensor, teacher: torch.Tensor, tokens: torch.Tensor) -> Compared:
        """Compares the probabilities of some tokens (r, k), likeliest first, and of all others together, with the
        teacher's of these events (r, k + 1). A token below 0 is none, an event that cannot be for either."""
        absent, first = tokens < 0, tokens[:, :1]
        likeliest = torch.where(absent, first, tokens)  # as often as needed: each time with the same values
        chosen = policy.gather(1, likeliest).masked_fill(absent, IMPOSSIBLE)
        own = torch.cat([chosen, _rest(policy, likeliest)], 1)
        value, mass = self._events(own, teacher)
        of_rest = (policy - own[:, -1:]).clamp(max=0).exp() * mass[:, -1:]  # each token's share of what they have
        of_token = of_rest.scatter(1, likeliest, torch.where(absent, mass[:, :1], mass[:, :-1]))
        return Compared(value, of_token - policy.exp() * mass.sum(1, keepdim=True))

    def _events(self, policy: torch.Tensor, teacher: torch.Tensor) -> Events:
        """Returns the divergence over events of these log-probabilities."""
        if self.divergence == "forward_kl":
            p = teacher.exp()
            return Events((p * (teacher - policy)).sum(1), -p)
        if self.divergence == "reverse_kl":
            parts = policy.exp() * (policy - teacher)
            return Events(parts.sum(1), parts)
        mixed = torch.logaddexp(teacher + math.log(self.beta), policy + math.log1p(-self.beta))
        parts = (1 - self.beta) * policy.exp() * (policy - mixed)
        return Events((self.beta * teacher.exp() * (teacher - mixed)).sum(1) + parts.sum(1), parts)


class Events(NamedTuple):
    """A divergence D (r,), and q dD/dq for each event, up to a constant times q (r, E)."""

    value: torch.Tensor
    mass: torch.Tensor


def _rest(logs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the log-probability of all tokens but these: (r, 1)."""
    return logs.scatter(1, tokens, IMPOSSIBLE).logsumexp(1, keepdim=True)
