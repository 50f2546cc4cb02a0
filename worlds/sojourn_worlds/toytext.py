"""Worlds with a table of states: what each action leads to, with which chance. Frozen lake, taxi and cliff share it.

The tables are those of gymnasium's toy-text worlds (Towers et al. 2024, arXiv:2407.17032). What differs: the chance of
a play is drawn from its task's seed and the number of actions so far, so that the same actions always lead to the same
place; an action that can change nothing is refused; and the reward is 1 for reaching the goal, else nothing, with the
worlds' own costs added up in the info.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step

DISCOUNT = 0.99  # of the expert's plan, so that it does not dawdle
SWEEPS = 2_000


class Outcome(NamedTuple):
    chance: float
    state: int
    cost: float  # the reward of the original
    ended: bool
    won: bool


@dataclass(frozen=True, eq=False)
class Table:
    """`outcomes[state][action]`, with the actions' names in order. `goal` is the system messages; `describe` words a
    state, and `remarks` what an action of that cost did."""

    name: str
    actions: tuple[str, ...]
    outcomes: Sequence[Sequence[tuple[Outcome, ...]]]
    goal: str
    describe: Callable[[int], str]
    remarks: Mapping[float, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, actions: Sequence[str], table: Any, won: Callable[[float], bool], **said: Any) -> Table:
        """From a gymnasium table P[state][action] of (chance, state, reward, ended); `won` judges the last reward."""
        outcomes = [
            [
                tuple(Outcome(p, int(s), float(r), bool(e), bool(e and won(r))) for p, s, r, e in table[state][action])
                for action in range(len(actions))
            ]
            for state in range(len(table))
        ]
        return cls(name, tuple(actions), outcomes, **said)

    def possible(self, state: int) -> list[int]:
        """The actions that may change something."""
        return [a for a, known in enumerate(self.outcomes[state]) if any(o.state != state or o.ended for o in known)]

    def draw(self, state: int, action: int, chance: float) -> Outcome:
        known = self.outcomes[state][action]
        edges = accumulate(outcome.chance for outcome in known)
        return next((outcome for outcome, edge in zip(known, edges, strict=True) if chance < edge), known[-1])

    @cached_property
    def policy(self) -> list[int]:
        """The action of each state that reaches the goal likeliest and soonest, by value iteration."""
        states, actions = len(self.outcomes), len(self.actions)
        width = max(len(known) for row in self.outcomes for known in row)
        chance, then, won, on = (np.zeros((states, actions, width)) for _ in range(4))
        for state, row in enumerate(self.outcomes):
            for action, known in enumerate(row):
                for number, outcome in enumerate(known):
                    here = (state, action, number)
                    chance[here], then[here] = outcome.chance, outcome.state
                    won[here], on[here] = outcome.won, not outcome.ended
        impossible = np.ones((states, actions), dtype=bool)
        for state in range(states):
            impossible[state, self.possible(state)] = False
        values = np.zeros(states)
        worth = np.zeros((states, actions))
        for _ in range(SWEEPS):
            worth = (chance * (won + DISCOUNT * on * values[then.astype(int)])).sum(-1)
            worth[impossible] = -1
            better = np.maximum(worth.max(-1), 0)
            if np.abs(better - values).max() < 1e-12:
                break
            values = better
        return [int(action) for action in worth.argmax(-1)]


@dataclass
class TablePlay:
    """One play of a table, from `state`, for at most `turns` actions; `seed` decides what chance does in it."""

    table: Table
    state: int
    seed: str
    turns: int
    choices: bool = False
    turns_taken: int = 0
    cost: float = 0.0
    done: bool = False
    chances: list[float] = field(default_factory=list)  # one for each action; forks share them

    def __post_init__(self) -> None:
        if not self.chances:
            rng = random.Random(self.seed)
            self.chances = [rng.random() for _ in range(self.turns)]

    async def start(self) -> Observation:
        system = f"{self.table.goal} Say one action: {', '.join(self.table.actions)}."
        return self._observe((Message(Role.SYSTEM, system),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError(f"{self.table.name} was given an action after its end: play each world once")
        outcome = self.table.draw(self.state, self._parse(action.text), self.chances[self.turns_taken])
        self.state, self.cost, self.turns_taken = outcome.state, self.cost + outcome.cost, self.turns_taken + 1
        if outcome.ended or self.turns_taken >= self.turns:
            self.done = True
            info = {f"{self.table.name}/return": self.cost}
            return Step(None, {agent: float(outcome.won)}, done=True, success=outcome.won, info=info)
        return Step(self._observe(remark=self.table.remarks.get(outcome.cost, "")), {agent: 0.0})

    async def close(self) -> None:
        pass

    async def fork(self) -> TablePlay:
        return TablePlay(
            self.table,
            self.state,
            self.seed,
            self.turns,
            self.choices,
            self.turns_taken,
            self.cost,
            self.done,
            self.chances,
        )

    def state_key(self) -> str:
        return f"{self.seed}/{self.state}"

    def expert(self) -> str:
        """The best action for one who knows the chances; where it would lose in this play, one that will not."""
        best = self.table.policy[self.state]
        return self.table.actions[best if self._wins() else self._lucky(best)]

    def _wins(self) -> bool:
        state = self.state
        for chance in self.chances[self.turns_taken :]:
            outcome = self.table.draw(state, self.table.policy[state], chance)
            if outcome.ended:
                return outcome.won
            state = outcome.state
        return False

    def _lucky(self, otherwise: int) -> int:
        """The first action of a shortest play that wins, given what chance will do; `otherwise` where none does."""
        first: Mapping[int, int] = {}
        for turns_taken in range(self.turns_taken, self.turns):
            reached: dict[int, int] = {}
            for state in first or (self.state,):
                for action in self.table.possible(state):
                    outcome = self.table.draw(state, action, self.chances[turns_taken])
                    opening = first.get(state, action)
                    if outcome.won:
                        return opening
                    if not outcome.ended:
                        reached.setdefault(outcome.state, opening)
            if not reached:
                break
            first = reached
        return otherwise

    def _parse(self, text: str) -> int:
        said = " ".join(text[:200].lower().split())
        if said not in self.table.actions or len(text) > 200:
            raise ActionError(f'"{said[:30]}" is no action, say one of {", ".join(self.table.actions)}.')
        action = self.table.actions.index(said)
        if action not in self.table.possible(self.state):
            raise ActionError(f'"{said}" is not possible here.')
        return action

    def _observe(self, system: tuple[Message, ...] = (), remark: str = "") -> Observation:
        text = f"{remark} {self.table.describe(self.state)}".strip()
        choices = tuple(self.table.actions[a] for a in self.table.possible(self.state)) if self.choices else ()
        return Observation((Message(Role.USER, text),), system=system, choices=choices)
