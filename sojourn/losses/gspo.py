"""The clipped surrogate with sequence-level ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from sojourn.config.fields import Range
from sojourn.losses.ratios import log_ratio, mean_by, sampler_kl
from sojourn.protocols import PassOutput, SelectedTokens


@dataclass(frozen=True, kw_only=True)
class GSPO:
    """-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), where s is the geometric mean of the token ratios of a
    sequence (Zheng et al. 2025, arXiv:2507.18071, eq. 5-7).

    It is meant for `aggregate.by = "sequence"`, which weighs trajectories alike. `token_form` is GSPO-token (eq.
    13-14), in which the gradient goes through each token's own probability only: it is the same where a sequence has
    one advantage, and meant for turn-level credit. Here, a sequence is a path of turns; `level = "turn"` takes the
    ratio of each turn, which is the paper's case of a single answer.
    """

    clip_low: Annotated[float, Range(0, 1)] = 3e-4
    clip_high: Annotated[float, Range(0)] = 4e-4
    level: Literal["sequence", "turn"] = "sequence"
    token_form: bool = False
    coef: float = 1.0

    needs = frozenset[str]()
    zero_at_zero_advantage = True

    @property
    def whole_trajectories(self) -> bool:
        return self.level == "sequence"

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        log_r = log_ratio(out, batch)
        log_s = mean_by(log_r, batch.sequence if self.level == "sequence" else batch.turn)
        if self.token_form:
            log_s = log_s.detach() + out.logprobs - out.logprobs.detach()
        ratio = log_s.exp()
        unclipped = ratio * batch.advantages
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * batch.advantages
        metrics = {"clip_fraction": (clipped < unclipped).float(), "kl": sampler_kl(log_r)}
        return -self.coef * torch.minimum(unclipped, clipped), metrics
