"""The desk of the agent: the tools of a domain, the talk with the customer, and the judgement."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sojourn.envs.chat import STOP, SpokenUser
from sojourn.envs.tau import calls
from sojourn.envs.tau.data import Action, Problem, Source
from sojourn.envs.tau.tables import Tables

LONGEST = 2_000  # characters of a sentence to the customer


@dataclass(frozen=True)
class Caller:
    """A customer by rule, who quotes the notes of the task: all at once if `solo`, else what the question is about."""

    problem: Problem
    solo: bool

    async def open(self) -> str:
        told = self.problem
        everything = (told.reason, told.known, told.unknown, told.manner)
        return "\n".join(filter(None, everything)) if self.solo else told.reason

    async def reply(self, text: str) -> str:
        low, told = text.lower(), self.problem
        if self.solo:
            return "You know all that I know. If the policy allows it, yes, go on."
        if re.search(r"\b(confirm|proceed|go ahead|correct|yes)\b", low):
            return "Yes."
        if re.search(r"\b(name|zip|e-?mail|id|identity|identify|verify|who)\b", low):
            return " ".join(filter(None, (told.known, told.unknown))) or told.reason
        return told.manner or told.reason


@dataclass
class Desk:
    """One talk. The tools of the domain are called by their names, as methods."""

    source: Source
    problem: Problem
    gold: str  # digest of the database as it should be
    plan: tuple[Action, ...]  # the right actions that can be taken
    user: Caller | SpokenUser
    turns: int
    tables: Tables
    used: int = 0
    taken: frozenset[int] = frozenset()  # which actions of the plan
    told: frozenset[str] = frozenset()  # facts
    over: bool = False
    info: dict[str, float] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Desk:
        """Shares what is never changed, the tables among it."""
        return replace(self, user=copy.deepcopy(self.user, memo) if isinstance(self.user, SpokenUser) else self.user)

    def __getattr__(self, name: str) -> Callable[..., str]:
        """The tools of the domain."""
        if name.startswith("_") or name not in calls.methods(self.source.domain):
            raise AttributeError(f"there is no {name} here")
        return partial(self._call, name)

    async def goal(self) -> str:
        return f"Customer: {await self.user.open()}"

    async def say(self, text: str) -> str:
        """Say or ask the customer something."""
        if not 0 < len(text.strip()) <= LONGEST:
            raise ValueError(f"{len(text)} characters, but from 1 to {LONGEST} can be said at once")
        answer = await self.user.reply(text)
        low = text.lower().replace(",", "")
        told = self.told | {fact for fact in self.problem.facts if fact.lower().replace(",", "") in low}
        self.info = {"subgoal": float(told > self.told)}
        self.told, self.over = told, STOP in answer
        self.used += 1
        return f"Customer: {answer.replace(STOP, '').strip()}"

    def finish(self) -> None:
        """End the talk."""
        self.used += 1
        self.over = True
        self.info = {"database": float(self._right()), "told": float(self._all_told())}

    def reward(self) -> float | None:
        if not self.over:
            return None if self.used < self.turns else 0.0
        return float(self.success())

    def success(self) -> bool:
        return self.over and self._all_told() and self._right()

    def expert(self) -> str:
        """The published actions in their order, then what has to be told."""
        for number, action in enumerate(self.plan):
            if number not in self.taken and self._possible(action):
                return action.said()
        if not self._all_told():
            said = ", ".join(fact for fact in self.problem.facts if fact not in self.told)
            return f"say(text={f'This is what you wanted to know: {said}'!r})"
        return "finish()"

    def state_key(self) -> str:
        talk = self.user.talk if isinstance(self.user, SpokenUser) else []
        known = [sorted(self.taken), sorted(self.told), self.used, self.over, talk]
        return json.dumps([self.source.domain, self.problem.id, self.tables.digest(self.source.database), known])

    def _call(self, name: str, **arguments: Any) -> str:
        before = self.tables.digest(self.source.database)
        self.tables, text = calls.call(self.source.domain, self.tables, name, arguments)
        same = [n for n, a in enumerate(self.plan) if (a.name, dict(a.arguments)) == (name, arguments)]
        new = next((number for number in same if number not in self.taken), None)
        self.info = {"subgoal": float(new is not None)}
        if self.tables.digest(self.source.database) != before:  # it wrote something
            self.info |= {"tool_score": 1.0 if same else -1.0, "verified": float(bool(same))}
        self.taken |= {new} if new is not None else set()
        self.used += 1
        return text

    def _possible(self, action: Action) -> bool:
        try:
            calls.call(self.source.domain, self.tables, action.name, action.arguments)
        except ValueError:
            return False
        return True

    def _right(self) -> bool:
        return self.tables.digest(self.source.database) == self.gold

    def _all_told(self) -> bool:
        return self.told == frozenset(self.problem.facts)


def instructions(problem: Problem) -> str:
    """The notes of the task, for a model that plays the customer."""
    return "\n".join(filter(None, (problem.reason, problem.known, problem.unknown, problem.manner)))
