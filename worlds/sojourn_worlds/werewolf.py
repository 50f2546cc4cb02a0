"""Werewolf in one night: a hidden wolf among villagers, one of whom saw something; all speak once, and then vote.

At night the seer looks at one player, and learns whether it is the wolf. By day each player says one thing that all
hear, in order, and then names a player, unseen by the others. Whoever is named most often is driven out; if two are
named equally often, nobody is. The village wins if that is the wolf.

Ours: the smallest game that has what the game of Werewolf is played for in the literature (Xu et al. 2025,
arXiv:2502.04686, with seven players and several nights): hidden roles, knowledge that can be told or feigned, talk, and
votes.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_within
from sojourn.errors import ActionError
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Task
from sojourn_worlds.turn_based import TurnBasedEnv, pick

NAMES = ("ann", "bob", "cid", "dora", "emil", "fay")
WOLF, SEER, VILLAGER = "wolf", "seer", "villager"
RULES = (
    "Werewolf: among {names} one is the wolf, one the seer, all others are villagers; roles are secret. At "
    "night the seer looks at one player, and learns whether it is the wolf. By day each says one thing that all hear, "
    "and then all name a player in secret. The village wins if the wolf is named more often than anyone else, and else "
    "the wolf wins. "
)


@dataclass(frozen=True, kw_only=True)
class Werewolf:
    """Werewolf in one night for `players` players, with a seat for each, in which the policy, or models, sit.

    The seed draws the roles. The actions are, in this order: the seer names whom it looks at, every player says one
    thing, in the order of the seats, and every player names another one, to drive it out. With `choices` the possible
    actions are listed, and what can be said are a few sentences (to be a villager, to be the seer who saw someone, to
    accuse someone); without, players say what they like. `rules` explains the game; a model from scratch learns faster
    without.

    All of the winning side get 1, and the others -1, at the end; turns tell whether the wolf was driven out (`caught`).
    """

    about: ClassVar[About] = About(
        source="ours, after the party game",
        licence="Apache-2.0",
        seats="3-6",
        smallest={"players": 3, "choices": True, "rules": False},
    )

    players: int = 4
    choices: bool = False
    rules: bool = True
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        require_within("werewolf", self, {"players": (3, len(NAMES)), **SIZES})

    @property
    def seats(self) -> tuple[str, ...]:
        return NAMES[: self.players]

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_from_fields("werewolf", self, split)

    def make(self, task: Task) -> TurnBasedEnv:
        config = family_of_task(self, task)
        names = config.seats
        wolf, seer = random.Random(f"werewolf {task.seed}").sample(names, 2)
        roles = {name: {wolf: WOLF, seer: SEER}.get(name, VILLAGER) for name in names}
        return TurnBasedEnv(Night(config, task.seed, roles), choices=config.choices, has_expert=False)


@dataclass
class Night:
    """The state of one episode: what was seen, said and voted so far."""

    config: Werewolf
    seed: int
    roles: Mapping[str, str]
    seen: str = ""  # whom the seer looked at
    said: dict[str, str] = field(default_factory=dict[str, str])
    votes: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def current_seat(self) -> str | None:
        if not self.seen:
            return next(name for name, role in self.roles.items() if role == SEER)
        for done in (self.said, self.votes):
            if waiting := [name for name in self.roles if name not in done]:
                return waiting[0]
        return None

    def system_prompt(self, seat: str) -> str:
        rules = RULES.format(names=", ".join(self.roles)) if self.config.rules else ""
        return f"{rules}You are {seat}, the {self.roles[seat]}."

    def observe(self, seat: str) -> str:
        if not self.seen:
            return "Night. Whom do you look at?"
        names = list(self.roles)
        if seat not in self.said:
            heard = names[: names.index(seat)]
            end = "What do you say?"
        else:
            heard = names[names.index(seat) + 1 :]
            end = "Who is to go?"
        lines = [f"{name}: {self.said[name]}" for name in heard]
        if self.roles[seat] == SEER and seat not in self.said:
            lines.insert(0, f"{self.seen} is {'the' if self.roles[self.seen] == WOLF else 'not the'} wolf.")
        return "\n".join([*lines, end])

    def choices(self) -> Sequence[str]:
        seat = self.current_seat
        others = [name for name in self.roles if name != seat]
        if not self.seen or seat in self.said:
            return others
        saw = [f"I am the seer, {name} is {what} wolf." for name in others for what in ("the", "not the")]
        return ["I am a villager.", *saw, *(f"I accuse {name}." for name in others)]

    def act(self, action: str) -> Mapping[str, float]:
        seat = self.current_seat
        assert seat is not None
        others = [name for name in self.roles if name != seat]
        if not self.seen:
            self.seen = others[pick(action, others)]
        elif seat not in self.said:
            words = " ".join(action.split())
            if not words:
                raise ActionError("Say something: an empty line is no statement.")
            self.said[seat] = self.choices()[pick(words, self.choices())] if self.config.choices else words
        else:
            self.votes[seat] = others[pick(action, others)]
        if self.current_seat is not None:
            return {}
        village = 1.0 if self.caught() else -1.0
        return {name: -village if role == WOLF else village for name, role in self.roles.items()}

    def caught(self) -> bool:
        """Returns whether the wolf has more votes than anyone else."""
        votes = Counter(self.votes.values())
        most = max(votes.values(), default=0)
        return [self.roles[name] for name, count in votes.items() if count == most] == [WOLF]

    def info(self) -> Mapping[str, float]:
        return {"caught": float(self.caught())} if self.current_seat is None else {}

    def state_key(self) -> str:
        done = repr((self.seen, list(self.said.items()), list(self.votes.items())))
        return f"werewolf/{self.seed}/{hashlib.sha256(done.encode()).hexdigest()[:16]}"
