"""Divides the policy's gradient by a number that losses derive from the gradients of further objectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from sojourn.abilities import DividesGradient
from sojourn.backends.torch.trainer.shards import full
from sojourn.backends.torch.trainer.team import Team
from sojourn.protocols import Loss, PassOutput, SelectedTokens

Gradients = Sequence[torch.Tensor | None]  # one for each trained parameter, None where nothing flows


class GradientDivision:
    """The further objectives of an update (`abilities.DividesGradient`) and their gradients so far."""

    def __init__(self) -> None:
        self._losses: list[DividesGradient] = []
        self._sums: dict[str, dict[str, torch.Tensor]] = {}  # by objective and parameter

    def begin(self, losses: Sequence[Loss]) -> None:
        """Takes the losses of the update whose micro-batches follow."""
        self._losses = [loss for loss in losses if isinstance(loss, DividesGradient) and loss.further_objectives]

    def objectives(self, out: PassOutput, batch: SelectedTokens) -> dict[str, torch.Tensor]:
        """Returns each further objective of a micro-batch as a scalar: the weighted sum over its tokens."""
        sums: dict[str, torch.Tensor] = {}
        for loss in self._losses:
            for name in loss.further_objectives:
                total = (loss.objective(name, out, batch) * batch.weight).sum()
                sums[name] = sums[name] + total if name in sums else total
        return sums

    def add(self, name: str, parameters: Iterable[str], gradients: Gradients) -> None:
        """Adds a micro-batch's gradient of the objective of this name."""
        sums = self._sums.setdefault(name, {})
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                sums[parameter] = sums[parameter].add_(gradient) if parameter in sums else gradient

    def add_up(self, team: Team, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        """Adds up the gradients of the processes of a team."""
        for name in dict.fromkeys(name for loss in self._losses for name in loss.further_objectives):
            own = self._sums.get(name, {})
            sums = team.sum_tensors([own.get(parameter) for parameter in parameters], list(parameters.values()))
            self._sums[name] = {p: sum for p, sum in zip(parameters, sums, strict=True) if sum is not None}

    @torch.no_grad()
    def divide(self, parameters: Iterable[torch.nn.Parameter]) -> dict[str, float]:
        """Divides the gradients of parameters by the greatest divisor that a loss gives; returns the norms as metrics.

        Afterwards the sums begin anew. Without a loss that divides, nothing happens.
        """
        sums, self._sums = self._sums, {}
        if not self._losses:
            return {}
        norms = {name: _norm(sums.get(name, {})) for loss in self._losses for name in loss.further_objectives}
        divisor = max(loss.divisor(norms) for loss in self._losses)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(divisor)
        return {f"{name}_norm": norm for name, norm in norms.items()}


def gradients_of(
    objectives: Mapping[str, torch.Tensor], parameters: Sequence[torch.nn.Parameter]
) -> dict[str, Gradients]:
    """Returns the gradient of each objective, a scalar, all through one graph, which is freed after the last."""
    *_, last = objectives
    return {
        name: torch.autograd.grad(objective, parameters, allow_unused=True, retain_graph=name != last)
        for name, objective in objectives.items()
    }


def _norm(gradients: Mapping[str, torch.Tensor]) -> float:
    return float(full(torch.nn.utils.get_total_norm(list(gradients.values())))) if gradients else 0.0
