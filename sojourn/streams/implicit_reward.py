"""Implicit process rewards of tokens, by a copy of the policy that learns to prefer rewarded trajectories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sojourn.abilities import Copies
from sojourn.batch.flatten import flatten, gather, scatter
from sojourn.config.fields import Range
from sojourn.errors import ConfigError
from sojourn.optim import Optim
from sojourn.protocols import PassOutput, PerTurn, SelectedTokens, StepContext
from sojourn.schedules import Constant
from sojourn.whole_plays import without_branches

Values = NDArray[np.float64]


def _default_optim() -> Optim:
    return Optim(lr=1e-6)


class LinearLoss:
    """-A log p per token, whose gradient with respect to the log-probability is minus the advantage, exactly."""

    needs = frozenset[str]()
    zero_at_zero_advantage = True

    def __call__(self, out: PassOutput, batch: SelectedTokens) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -batch.advantages * out.logprobs, {}


@dataclass(frozen=True, kw_only=True)
class ImplicitReward:
    """`beta` times the log-ratio of each token between an implicit process reward model, a policy copy that
    learns from which trajectories were rewarded, and a reference: the policy at the beginning of the step
    (`reference_model` = "policy", OPRL: Liu et al. 2025, arXiv:2509.19199, version 1, eq. 1) or the weights that the
    copy began with ("start", PRIME: Cui et al. 2025, arXiv:2502.01456).

    With Q the sum over a trajectory, the model learns by `loss`: "dpo", -log sigmoid(Q+ - Q-), over all pairs of a
    rewarded and an unrewarded trajectory of a group and seat (OPRL's eq. 2), or "ce", the cross-entropy of sigmoid(Q)
    with whether the trajectory was rewarded (PRIME). There is one update per step, after the stream was read; OPRL's
    text has both orders, and this is PRIME's default, the "single forward" of its section on single and double forward.
    PRIME's code divides the rewards by the largest absolute sum from a token on, over the step, which is left out here.
    Rewarded means a return above 0. The stream takes the memory of a second policy and its optimiser.
    """

    beta: Annotated[float, Range(above=0)] = 0.05
    loss: Literal["dpo", "ce"] = "dpo"
    reference_model: Literal["policy", "start"] = "policy"
    optim: Optim = field(default_factory=_default_optim)
    _memory: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    provides = "implicit_reward"
    reference = False

    def __post_init__(self) -> None:
        if not isinstance(self.optim.schedule, Constant):
            raise ValueError("optim.schedule: a reward model learns for an unknown number of steps: use constant")

    async def __call__(self, context: StepContext) -> PerTurn:
        batch, places = flatten(without_branches(context.groups))
        model = self._model(context)
        own = (await model.forward(batch)).logprobs
        if self.reference_model == "start":
            other = (await model.forward(batch, reference=True)).logprobs
        else:
            other = gather(await context.read(lambda forward: forward.logprobs), places, len(batch))
        self._memory["rewards"] = (self.beta * (own - other) * (batch.weight > 0)).astype(np.float32)
        return scatter(context.groups, self._memory["rewards"], places)

    async def learn(self, context: StepContext) -> Mapping[str, float]:
        """Trains the reward model on the step. Returns its `error`, the loss before the update, and its `accuracy`, the
        fraction of pairs, or trajectories, that it ranked or judged rightly."""
        batch, _ = flatten(without_branches(context.groups))
        rewarded = np.array([score.total > 0 for judged in context.scores for score in judged], dtype=bool)
        seats = [(number, t.agent) for number, group in enumerate(context.groups) for t in group.trajectories]
        sums = np.bincount(batch.trajectory, self._memory["rewards"], len(rewarded)).astype(np.float64)
        judged = (_dpo if self.loss == "dpo" else _cross_entropy)(sums, rewarded, seats)
        if not judged.gradients.any():
            return {}
        weight = (batch.weight > 0).astype(np.float32)
        advantages = (-self.beta * judged.gradients)[batch.trajectory].astype(np.float32) * weight
        model = self._model(context)
        await model.forward_backward(replace(batch, weight=weight, advantages=advantages), [LinearLoss()])
        await model.optim_step()
        return {"error": judged.error, "accuracy": judged.accuracy}

    def state(self) -> Mapping[str, Any]:
        model = self._memory.get("model")
        return model.state() if model is not None else self._memory.get("restored", {})

    def restore(self, state: Mapping[str, Any]) -> None:
        if "model" in self._memory and state:
            self._memory["model"].restore(state)
        else:
            self._memory["restored"] = state

    def close(self) -> None:
        """Ends the model's threads, and frees its memory."""
        if (model := self._memory.pop("model", None)) is not None:
            model.close()

    def _model(self, context: StepContext) -> Any:
        """Returns the reward model, which is copied from the policy at the first step."""
        if "model" not in self._memory:
            if not isinstance(context.trainer, Copies):
                raise ConfigError(
                    f"implicit_reward trains a copy of the policy, which {type(context.trainer).__name__} does not "
                    "make: use backend = {name = 'torch'}, or another stream"
                )
            model = context.trainer.copy(self.optim, reference=self.reference_model == "start")
            self._memory["model"] = model
            if restored := self._memory.pop("restored", None):
                model.restore(restored)
        return self._memory["model"]


class Judged(NamedTuple):
    """The mean loss, the fraction that is ranked or judged correctly, and the gradient of the loss with respect to the
    sum of each trajectory."""

    error: float
    accuracy: float
    gradients: Values


def _cross_entropy(sums: Values, rewarded: Any, seats: Sequence[Hashable]) -> Judged:
    """Computes the cross-entropy of sigmoid(Q) with whether each trajectory was rewarded."""
    probability = np.exp(-np.logaddexp(0, -sums))
    error = np.logaddexp(0, np.where(rewarded, -sums, sums)).mean() if len(sums) else 0.0
    accuracy = float(((sums > 0) == rewarded).mean()) if len(sums) else 0.0
    return Judged(float(error), accuracy, (probability - rewarded) / max(len(sums), 1))


def _dpo(sums: Values, rewarded: Any, seats: Sequence[Hashable]) -> Judged:
    """Computes the loss over the pairs of a rewarded and an unrewarded trajectory of the same seat of a group."""
    gradients, errors, ranked = np.zeros(len(sums)), [], []
    members = defaultdict[Hashable, list[int]](list)
    for number, seat in enumerate(seats):
        members[seat].append(number)
    for places in map(np.array, members.values()):
        for better in places[rewarded[places]]:
            for worse in places[~rewarded[places]]:
                gap = float(sums[better] - sums[worse])
                gradient = np.exp(-np.logaddexp(0, gap))
                gradients[better] -= gradient
                gradients[worse] += gradient
                errors.append(np.logaddexp(0, -gap))
                ranked.append(gap > 0)
    count = max(len(errors), 1)
    return Judged(float(np.sum(errors) / count), float(np.mean(ranked)) if ranked else 0.0, gradients / count)
