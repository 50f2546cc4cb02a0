"""A stochastic multi-armed bandit: the agent explores the arms, then exploits the best one, and is judged by its
regret.

A task draws the arms' mean payoffs from its seed. An action names an arm; the observation tells what the pull paid and
which pull comes next. The episode ends after `rounds` pulls, with the only reward: one minus the normalised
pseudo-regret, that is the expected payoff of the chosen arms on a scale where always the best arm is 1 and always the
worst is 0.

Ours, after the bandits that Krishnamurthy et al. 2024 (arXiv:2403.15371) gave to language models. It differs in the
reward, which is not the luck of the draws.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Task
from sojourn_worlds.turn_based import TurnBasedEnv, pick

ARMS = ("red", "blue", "green", "yellow", "purple", "orange", "white", "black", "brown", "pink")


@dataclass(frozen=True, kw_only=True)
class Bandit:
    """Bandits with `arms` arms, played for `rounds` pulls.

    `kind`: "bernoulli" arms pay 1 or 0; "gaussian" arms pay their mean plus noise of standard deviation `noise`. The
    best arm's mean is at least `gap` above every other mean. An episode is a success with a reward of `threshold` or
    more. What an arm pays on its nth pull depends on the task alone, so all episodes of a task have the same luck.
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
        return make_tasks_from_fields("bandit", self, split)

    def make(self, task: Task) -> TurnBasedEnv:
        config = family_of_task(self, task)
        return TurnBasedEnv(Arms(config, task.seed), policy_seat="agent", choices=config.choices)


@dataclass
class Arms:
    """The state of one episode: which arms were pulled, in order."""

    config: Bandit
    seed: int
    pulled_arms: list[int] = field(default_factory=list)  # indices, in order
    last_result: str = ""  # a sentence for the next observation

    @cached_property
    def means(self) -> tuple[float, ...]:
        """Returns the mean payoff of each arm, between 0.1 and 0.9; the best arm is at a random place, the others are
        spread below it.
        """
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
        """Returns the expected payoff that was missed so far: the sum over pulls of the best mean minus the chosen
        arm's mean.
        """
        return sum(max(self.means) - self.means[arm] for arm in self.pulled_arms)

    @property
    def current_seat(self) -> str | None:
        return "agent" if len(self.pulled_arms) < self.config.rounds else None

    def system_prompt(self, seat: str) -> str:
        pays = "1 or 0" if self.config.kind == "bernoulli" else "about its own average"
        return (
            f"There are {self.config.arms} levers. Each pull of a lever pays {pays}, some levers more than others. "
            f"Earn as much as you can in {self.config.rounds} pulls. Say the lever to pull: {', '.join(self.names)}."
        )

    def observe(self, seat: str) -> str:
        round_ = f"Pull {len(self.pulled_arms) + 1} of {self.config.rounds}."
        return f"{self.last_result} {round_}" if self.last_result else round_

    def choices(self) -> Sequence[str]:
        return self.names

    def act(self, action: str) -> Mapping[str, float]:
        arm = pick(action, self.names)
        payoff = self._payoff(arm, self.pulled_arms.count(arm))
        self.pulled_arms.append(arm)
        self.last_result = f"{self.names[arm]} paid {payoff:g}."
        return {"agent": self.reward if self.current_seat is None else 0.0}

    @property
    def reward(self) -> float:
        worst = self.config.rounds * (max(self.means) - min(self.means))
        return 1.0 - self.regret / worst

    def success(self) -> bool:
        return self.reward >= self.config.threshold

    def info(self) -> Mapping[str, float]:
        return {"regret": self.regret}

    def state_key(self) -> str:
        """Counts the pulls of each arm: they determine what each arm has paid, and their order does not matter."""
        counts = ",".join(str(self.pulled_arms.count(arm)) for arm in range(self.config.arms))
        return f"bandit/{self.seed}/{counts}"

    def expert(self) -> str:
        """Returns the arm with the highest mean, which the expert knows."""
        return self.names[self.means.index(max(self.means))]

    def _payoff(self, arm: int, number: int) -> float:
        rng = random.Random(f"bandit {self.seed} {arm} {number}")
        if self.config.kind == "bernoulli":
            return float(rng.random() < self.means[arm])
        return round(rng.gauss(self.means[arm], self.config.noise), 2)
