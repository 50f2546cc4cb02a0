"""Says what a step's metrics tell of the models that learn beside the policy, and of its snapshots in other seats."""

from __future__ import annotations

from collections.abc import Mapping

from sojourn.terminal.numbers import number, percent

PUBLISHED = "_version"  # ends the metric by which a model that learns is known
WON = "_won"


def of_other_models(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Returns the name of each model or pool of snapshots with what is known of it, in words."""
    learners = sorted(name.removesuffix(PUBLISHED) for name in values if name.endswith(PUBLISHED))
    told: list[tuple[str, str]] = []
    for model in learners:
        parts = [f"success {percent(values, f'{model}_success')}"] if f"{model}_success" in values else []
        parts += [f"{of} {number(values[f'{model}_{of}'])}" for of in ("reward", "loss") if f"{model}_{of}" in values]
        told.append((model, ", ".join(parts)))
    pools = sorted(name.removesuffix(WON) for name in values if name.endswith(WON))
    return [*told, *((pool, f"won {percent(values, f'{pool}{WON}')} against it") for pool in pools)]
