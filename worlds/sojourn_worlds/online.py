"""Online learning against a sequence of losses: each round the agent follows one of several advisors, and is judged by
its regret.

A task draws the advisors' losses in all rounds from its seed. An action names the advisor to follow (or, with `mixed`,
weights over all of them); the observation tells the losses of the last round. The episode ends after `rounds` rounds,
with the only reward: 1 - regret / the largest possible regret, clipped to [0, 1]. Regret is the agent's loss minus that
of the best single advisor.

Ours, after the non-stochastic problems of Park et al. 2024, "Do LLM Agents Have Regret?" (arXiv:2403.16843), whose
kinds of loss sequences it takes: random, with a trend, periodic, and adversarial against those who follow the last
winner. It differs in that an action is one advisor (the paper asks for a distribution over them, which `mixed` allows),
and in the reward.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ActionError
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Task
from sojourn_worlds.turn_based import TurnBasedEnv, pick, plain

NAMES = ("ann", "bob", "cid", "dora", "emil", "fay", "gus", "hana")
STREAMS = ("steady", "trend", "periodic", "alternating", "adaptive")


@dataclass(frozen=True, kw_only=True)
class Online:
    """Prediction with expert advice for `rounds` rounds, where each expert's loss is between 0 and 1.

    `losses`: "steady" (each expert has its own mean), "trend" (the means cross over on the way), "periodic" (waves),
    "alternating" (the expert that has just done well does badly next, except for one that is a little better than all
    in the long run), "adaptive" (the expert that was followed last round loses 1 this round, and no other loses
    anything), or "any" (one of these, by seed). `feedback`: "full" tells every expert's loss after the round, "bandit"
    only one's own. `mixed` also accepts weights such as `ann 0.7, bob 0.3`.

    Regret is one's loss minus that of the best single expert. An episode is a success with a reward of `threshold` or
    more.
    """

    about: ClassVar[About] = About(
        source="ours, after Park et al. 2024, arXiv:2403.16843",
        licence="Apache-2.0",
        smallest={"experts": 2, "rounds": 8, "losses": "steady"},
    )

    experts: int = 3
    rounds: int = 20
    losses: Literal["any", "steady", "trend", "periodic", "alternating", "adaptive"] = "any"
    feedback: Literal["full", "bandit"] = "full"
    mixed: bool = False
    threshold: float = 0.85
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        require_within(
            "online", self, {"experts": (2, len(NAMES)), "rounds": (4, 10_000), "threshold": (0, 1), **SIZES}
        )
        require_one_of("online", self, {"losses": ("any", *STREAMS), "feedback": ("full", "bandit")})

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_from_fields("online", self, split)

    def make(self, task: Task) -> TurnBasedEnv:
        config = family_of_task(self, task)
        return TurnBasedEnv(Stream(config, task.seed), policy_seat="agent", choices=config.choices)


@dataclass
class Stream:
    """The state of one episode: the weights that the agent gave, and the losses that followed."""

    config: Online
    seed: int
    weights: list[tuple[float, ...]] = field(default_factory=list)  # the agent's weights over the experts, by round
    losses_so_far: list[tuple[float, ...]] = field(default_factory=list)  # the losses of all experts, by round
    loss: float = 0.0
    totals: tuple[float, ...] = ()  # of the experts' losses so far
    digest: str = ""  # of the weights so far

    @cached_property
    def kind(self) -> str:
        chosen = random.Random(f"online {self.seed}").choice(STREAMS)
        return chosen if self.config.losses == "any" else self.config.losses

    @cached_property
    def table(self) -> tuple[tuple[float, ...], ...]:
        """Returns the losses of every round, where they do not depend on the actions: (rounds, experts)."""
        return draw(random.Random(f"online {self.seed} losses"), self.kind, self.config.rounds, self.config.experts)

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES[: self.config.experts]

    @property
    def regret(self) -> float:
        return self.loss - min(self.totals, default=0.0)

    @cached_property
    def worst_regret(self) -> float:
        """Returns the regret of an agent that follows the worst expert in every round."""
        if self.kind == "adaptive":
            return self.config.rounds - 1.0
        return sum(map(max, self.table)) - min(sum(column) for column in zip(*self.table, strict=True))

    @property
    def current_seat(self) -> str | None:
        return "agent" if len(self.weights) < self.config.rounds else None

    def system_prompt(self, seat: str) -> str:
        feedback = "every advisor's loss" if self.config.feedback == "full" else "the loss of the one you followed"
        split = f", or split your trust: {self.names[0]} 0.7, {self.names[1]} 0.3" if self.config.mixed else ""
        return (
            f"Follow one of the advisors {', '.join(self.names)} in each of {self.config.rounds} rounds, and suffer "
            f"its loss, between 0 and 1. After a round you hear {feedback}. Lose as little as you can. "
            f"Say a name{split}."
        )

    def observe(self, seat: str) -> str:
        round_ = f"Round {len(self.weights) + 1} of {self.config.rounds}."
        return f"{self._feedback()} {round_}" if self.weights else round_

    def choices(self) -> Sequence[str]:
        return self.names

    def act(self, action: str) -> Mapping[str, float]:
        shares = self._shares(action)
        losses = self._losses(len(self.weights))
        self.weights.append(shares)
        self.losses_so_far.append(losses)
        for share, loss in zip(shares, losses, strict=True):
            self.loss += share * loss
        totals = self.totals or (0.0,) * len(losses)
        self.totals = tuple(total + loss for total, loss in zip(totals, losses, strict=True))
        self.digest = sha256(f"{self.digest};{','.join(f'{share:g}' for share in shares)}".encode()).hexdigest()[:16]
        return {"agent": self.reward if self.current_seat is None else 0.0}

    @property
    def reward(self) -> float:
        return min(1.0, max(0.0, 1.0 - self.regret / self.worst_regret))

    def success(self) -> bool:
        return self.reward >= self.config.threshold

    def info(self) -> Mapping[str, float]:
        return {"regret": self.regret, "loss": self.loss}

    def state_key(self) -> str:
        return f"online/{self.seed}/{len(self.weights)}/{self.digest}"

    def expert(self) -> str:
        """Returns the choice of a player who knows the loss sequence.

        It follows the best single expert where that is enough for no regret, else the best expert of each round.
        Against adaptive losses it follows the expert that was followed least, but not the last one.
        """
        number = len(self.weights)
        if self.kind == "adaptive":
            followed = [sum(shares[expert] for shares in self.weights) for expert in range(self.config.experts)]
            losses = self._losses(number)
            return self.names[min(range(self.config.experts), key=lambda expert: (losses[expert], followed[expert]))]
        totals = [sum(column) for column in zip(*self.table, strict=True)]
        best = totals.index(min(totals))
        if self.loss + sum(losses[best] for losses in self.table[number:]) <= totals[best] + 1e-9:
            return self.names[best]
        return self.names[self.table[number].index(min(self.table[number]))]

    def _losses(self, number: int) -> tuple[float, ...]:
        if self.kind != "adaptive":
            return self.table[number]
        return self.weights[-1] if self.weights else (0.0,) * self.config.experts

    def _shares(self, action: str) -> tuple[float, ...]:
        words = plain(action)
        if not self.config.mixed or words in self.names:
            chosen = pick(action, self.names)
            return tuple(float(number == chosen) for number in range(len(self.names)))
        parts = [re.fullmatch(r"([a-z]+):? ([01]?\.\d{1,6}|[01])", part.strip()) for part in words.split(",")]
        weight_of = {part[1]: float(part[2]) for part in parts if part is not None and part[1] in self.names}
        if len(weight_of) < len(parts) or abs(sum(weight_of.values()) - 1) > 1e-3:
            raise ActionError(f'"{action[:40]}" is no split of trust that adds up to 1, such as ann 0.7, bob 0.3.')
        total = sum(weight_of.values())
        return tuple(weight_of.get(name, 0.0) / total for name in self.names)

    def _feedback(self) -> str:
        shares, losses = self.weights[-1], self.losses_so_far[-1]
        own_loss = sum(share * loss for share, loss in zip(shares, losses, strict=True))
        if self.config.feedback == "full":
            return f"Losses: {', '.join(f'{n} {x:.2f}' for n, x in zip(self.names, losses, strict=True))}."
        return f"You lost {own_loss:.2f}."


def draw(rng: random.Random, kind: str, rounds: int, experts: int) -> tuple[tuple[float, ...], ...]:
    """Returns the losses of all rounds, between 0 and 1, of a kind that does not adapt; one expert is the best in the
    end.
    """
    best = rng.randrange(experts)
    level = [rng.uniform(0.55, 0.8) for _ in range(experts)]
    phase = [rng.random() for _ in range(experts)]
    late = rng.uniform(0.25, 0.45)  # where the trends cross

    def mean(number: int, expert: int) -> float:
        time = number / (rounds - 1)
        match kind:
            case "steady":
                return 0.25 if expert == best else level[expert]
            case "trend":  # the best starts as the worst and falls steeply
                return max(0.9 - 0.9 * time / (2 * late), 0.1) if expert == best else 0.4 + 0.4 * time
            case "periodic":
                wave = 0.25 * math.sin(2 * math.pi * (3 * time + phase[expert]))
                return (0.3 if expert == best else 0.6) + wave
            case "alternating":
                if expert == best:
                    return 0.35
                return 0.05 if (number + expert) % 2 else 0.95
        raise AssertionError(f"no losses are drawn for {kind}")

    def noisy(value: float) -> float:
        return round(min(1.0, max(0.0, value + rng.uniform(-0.1, 0.1))), 2)

    return tuple(tuple(noisy(mean(number, expert)) for expert in range(experts)) for number in range(rounds))
