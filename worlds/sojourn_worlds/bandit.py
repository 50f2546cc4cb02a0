"""A bandit with several arms: explore, then keep to the best, and be judged by regret.

Ours, after the bandits that Krishnamurthy et al. 2024 (arXiv:2403.15371) put to language models. It differs in what is
paid: not the luck of the draws, but the expected payoff of the arms that were chosen, on a scale where the best arm
throughout is 1 and the worst is 0 (one minus the normalised pseudo-regret).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.tasks.splits import of_task, tasks_of
from sojourn.types import Task
from sojourn_worlds.table import Table, pick

ARMS = ("red", "blue", "green", "yellow", "purple", "orange", "white", "black", "brown", "pink")


@dataclass(frozen=True, kw_only=True)
class Bandit:
    """Bandits with `arms` arms, played for `rounds`. `kind`: "bernoulli" arms pay 1 or 0, "gaussian" ones their mean
    with noise of standard deviation `noise`.

    The best arm's mean is at least `gap` above every other's. A play succeeds with a reward of `threshold` or more.
    What an arm pays the nth time it is pulled is decided by the task alone: every play of a task has the same luck.
    """

    about: ClassVar[About] = About(
        source="ours, after Krishnamurthy et al. 2024, arXiv:2403.15371",
        licence="Apache-2.0",
        smallest={"arms": 2, "rounds": 10, "gap": 0.6},
    )

    arms: int = 4
    rounds: int = 20
    kind: Literal["bernoulli", "gaussian"] = "bernoulli"
    gap: float = 0.3
    noise: float = 0.2
    threshold: float = 0.8
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        limits = {"arms": (2, len(ARMS)), "rounds": (1, 10_000), "gap": (0.01, 0.8), "noise": (0, 10)}
        require_within("bandit", self, {**limits, "threshold": (0, 1), **SIZES})
        require_one_of("bandit", self, {"kind": ("bernoulli", "gaussian")})

    def tasks(self, split: str) -> Sequence[Task]:
        return tasks_of("bandit", self, split)

    def make(self, task: Task) -> Table:
        own = of_task(self, task)
        return Table(Arms(own, task.seed), alone="agent", choices=own.choices)


@dataclass
class Arms:
    config: Bandit
    seed: int
    pulled: list[int] = field(default_factory=list)  # the arms, in order
    last: str = ""

    @cached_property
    def means(self) -> tuple[float, ...]:
        """From 0.1 to 0.9; the best is anywhere, the others are spread below it."""
        rng = random.Random(f"bandit {self.seed}")
        best = rng.uniform(0.1 + self.config.gap, 0.9)
        others = [rng.uniform(0.1, best - self.config.gap) for _ in range(self.config.arms - 1)]
        others.insert(rng.randrange(self.config.arms), best)
        return tuple(others)

    @property
    def names(self) -> tuple[str, ...]:
        return ARMS[: self.config.arms]

    @property
    def regret(self) -> float:
        """What was missed so far, in expected payoff."""
        return sum(max(self.means) - self.means[arm] for arm in self.pulled)

    @property
    def mover(self) -> str | None:
        return "agent" if len(self.pulled) < self.config.rounds else None

    def brief(self, seat: str) -> str:
        pays = "1 or 0" if self.config.kind == "bernoulli" else "about its own average"
        return (
            f"There are {self.config.arms} levers. Each pull of a lever pays {pays}, some levers more than others. "
            f"Earn as much as you can in {self.config.rounds} pulls. Say the lever to pull: {', '.join(self.names)}."
        )

    def view(self, seat: str) -> str:
        round_ = f"Pull {len(self.pulled) + 1} of {self.config.rounds}."
        return f"{self.last} {round_}" if self.last else round_

    def choices(self) -> Sequence[str]:
        return self.names

    def play(self, said: str) -> Mapping[str, float]:
        arm = pick(said, self.names)
        paid = self._pays(arm, self.pulled.count(arm))
        self.pulled.append(arm)
        self.last = f"{self.names[arm]} paid {paid:g}."
        return {"agent": self.reward if self.mover is None else 0.0}

    @property
    def reward(self) -> float:
        worst = self.config.rounds * (max(self.means) - min(self.means))
        return 1.0 - self.regret / worst

    def success(self) -> bool:
        return self.reward >= self.config.threshold

    def info(self) -> Mapping[str, float]:
        return {"regret": self.regret}

    def key(self) -> str:
        """How often each arm was pulled says what each has paid: the order does not matter."""
        counts = ",".join(str(self.pulled.count(arm)) for arm in range(self.config.arms))
        return f"bandit/{self.seed}/{counts}"

    def expert(self) -> str:
        """Knows the means."""
        return self.names[self.means.index(max(self.means))]

    def _pays(self, arm: int, number: int) -> float:
        rng = random.Random(f"bandit {self.seed} {arm} {number}")
        if self.config.kind == "bernoulli":
            return float(rng.random() < self.means[arm])
        return round(rng.gauss(self.means[arm], self.config.noise), 2)
