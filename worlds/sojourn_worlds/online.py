"""Online learning against a stream of losses: follow one of several experts each round, and be judged by regret.

Ours, after the non-stochastic problems of Park et al. 2024, "Do LLM Agents Have Regret?" (arXiv:2403.16843), whose
streams of losses it takes up: random, with a trend, periodic, and the ones made against those who chase the last
winner. It differs in that an action is one expert (the paper asks for a distribution over them; `mixed` allows it), and
in the reward, 1 - regret / the most regret there could be, kept between 0 and 1.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ActionError
from sojourn.tasks.splits import of_task, tasks_of
from sojourn.types import Task
from sojourn_worlds.table import Table, pick, plain

NAMES = ("ann", "bob", "cid", "dora", "emil", "fay", "gus", "hana")
STREAMS = ("steady", "trend", "periodic", "alternating", "adaptive")


@dataclass(frozen=True, kw_only=True)
class Online:
    """Prediction with expert advice for `rounds`, each expert's loss between 0 and 1.

    `losses`: "steady" (each expert has its own average), "trend" (averages cross over on the way), "periodic" (waves),
    "alternating" (the expert that has just done well does badly next, but for one that is a little better than all in
    the long run), "adaptive" (who was followed last round loses 1 this round, nobody else anything), or "any" (one of
    these, by seed). `feedback`: "full" tells every expert's loss after the round, "bandit" only one's own. `mixed` also
    takes a split of trust such as `ann 0.7, bob 0.3`.

    Regret is one's loss minus that of the best single expert. A play succeeds with a reward of `threshold` or more.
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
        return tasks_of("online", self, split)

    def make(self, task: Task) -> Table:
        own = of_task(self, task)
        return Table(Stream(own, task.seed), alone="agent", choices=own.choices)


@dataclass
class Stream:
    config: Online
    seed: int
    trusted: list[tuple[float, ...]] = field(default_factory=list)  # the split of each round
    suffered: list[tuple[float, ...]] = field(default_factory=list)  # the losses of all in each round

    @cached_property
    def kind(self) -> str:
        chosen = random.Random(f"online {self.seed}").choice(STREAMS)
        return chosen if self.config.losses == "any" else self.config.losses

    @cached_property
    def table(self) -> tuple[tuple[float, ...], ...]:
        """The losses of every round, where they do not depend on what is done."""
        return draw(random.Random(f"online {self.seed} losses"), self.kind, self.config.rounds, self.config.experts)

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES[: self.config.experts]

    @property
    def own(self) -> float:
        rounds = zip(self.trusted, self.suffered, strict=True)
        return sum(share * loss for shares, losses in rounds for share, loss in zip(shares, losses, strict=True))

    @property
    def regret(self) -> float:
        return self.own - min((sum(column) for column in zip(*self.suffered, strict=True)), default=0.0)

    @property
    def most(self) -> float:
        """The regret of whoever follows the worst expert in every round."""
        if self.kind == "adaptive":
            return self.config.rounds - 1.0
        return sum(map(max, self.table)) - min(sum(column) for column in zip(*self.table, strict=True))

    @property
    def mover(self) -> str | None:
        return "agent" if len(self.trusted) < self.config.rounds else None

    def brief(self, seat: str) -> str:
        told = "every advisor's loss" if self.config.feedback == "full" else "the loss of the one you followed"
        split = f", or split your trust: {self.names[0]} 0.7, {self.names[1]} 0.3" if self.config.mixed else ""
        return (
            f"Follow one of the advisors {', '.join(self.names)} in each of {self.config.rounds} rounds, and suffer "
            f"its loss, between 0 and 1. After a round you hear {told}. Lose as little as you can. Say a name{split}."
        )

    def view(self, seat: str) -> str:
        round_ = f"Round {len(self.trusted) + 1} of {self.config.rounds}."
        return f"{self._told()} {round_}" if self.trusted else round_

    def choices(self) -> Sequence[str]:
        return self.names

    def play(self, said: str) -> Mapping[str, float]:
        shares = self._shares(said)
        losses = self._losses(len(self.trusted))
        self.trusted.append(shares)
        self.suffered.append(losses)
        return {"agent": self.reward if self.mover is None else 0.0}

    @property
    def reward(self) -> float:
        return min(1.0, max(0.0, 1.0 - self.regret / self.most))

    def success(self) -> bool:
        return self.reward >= self.config.threshold

    def info(self) -> Mapping[str, float]:
        return {"regret": self.regret, "loss": self.own}

    def key(self) -> str:
        said = ";".join(",".join(f"{share:g}" for share in shares) for shares in self.trusted)
        return f"online/{self.seed}/{said}"

    def expert(self) -> str:
        """Knows the stream. It follows the best single expert where that is enough for no regret, else the best of each
        round; against what adapts, whoever was followed least and not last."""
        number = len(self.trusted)
        if self.kind == "adaptive":
            followed = [sum(shares[expert] for shares in self.trusted) for expert in range(self.config.experts)]
            losses = self._losses(number)
            return self.names[min(range(self.config.experts), key=lambda expert: (losses[expert], followed[expert]))]
        totals = [sum(column) for column in zip(*self.table, strict=True)]
        best = totals.index(min(totals))
        if self.own + sum(losses[best] for losses in self.table[number:]) <= totals[best] + 1e-9:
            return self.names[best]
        return self.names[self.table[number].index(min(self.table[number]))]

    def _losses(self, number: int) -> tuple[float, ...]:
        if self.kind != "adaptive":
            return self.table[number]
        return self.trusted[-1] if self.trusted else (0.0,) * self.config.experts

    def _shares(self, said: str) -> tuple[float, ...]:
        words = plain(said)
        if not self.config.mixed or words in self.names:
            chosen = pick(said, self.names)
            return tuple(float(number == chosen) for number in range(len(self.names)))
        parts = [re.fullmatch(r"([a-z]+):? ([01]?\.\d{1,6}|[01])", part.strip()) for part in words.split(",")]
        found = {part[1]: float(part[2]) for part in parts if part is not None and part[1] in self.names}
        if len(found) < len(parts) or abs(sum(found.values()) - 1) > 1e-3:
            raise ActionError(f'"{said[:40]}" is no split of trust that adds up to 1, such as ann 0.7, bob 0.3.')
        total = sum(found.values())
        return tuple(found.get(name, 0.0) / total for name in self.names)

    def _told(self) -> str:
        shares, losses = self.trusted[-1], self.suffered[-1]
        own = sum(share * loss for share, loss in zip(shares, losses, strict=True))
        if self.config.feedback == "full":
            return f"Losses: {', '.join(f'{n} {x:.2f}' for n, x in zip(self.names, losses, strict=True))}."
        return f"You lost {own:.2f}."


def draw(rng: random.Random, kind: str, rounds: int, experts: int) -> tuple[tuple[float, ...], ...]:
    """The losses of all rounds, between 0 and 1, of a kind that does not adapt; one expert is the best in the end."""
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
