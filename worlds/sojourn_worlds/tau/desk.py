"""The state of one episode: the tools of a domain, the conversation with the customer, and the judgement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from sojourn.envs.user_seat import AWAITED, STOP, SeatUser
from sojourn_worlds.answers import number_of, said_of, so_many_numbers
from sojourn_worlds.tau import calls
from sojourn_worlds.tau.data import Action, Problem, Source
from sojourn_worlds.tau.tables import Tables

LONGEST = 2_000  # characters of a sentence to the customer


class Gold(NamedTuple):
    """The right outcome: the digest of the database as it should be, the published actions that the tools accept, and
    the id of the caller, empty where the notes do not tell it.
    """

    digest: str
    plan: tuple[Action, ...]
    customer: str


@dataclass(frozen=True)
class Caller:
    """A scripted customer, who quotes the notes of the task: all at once if `solo`, else what the question is about."""

    problem: Problem
    solo: bool

    def open(self) -> str:
        return self.problem.notes if self.solo else self.problem.reason

    def reply(self, text: str) -> str:
        low, problem = text.lower(), self.problem
        if self.solo:
            return "You know all that I know. If the policy allows it, yes, go on."
        if re.search(r"\b(confirm|proceed|go ahead|correct|yes)\b", low):
            return "Yes."
        if re.search(r"\b(name|zip|e-?mail|id|identity|identify|verify|who)\b", low):
            return " ".join(filter(None, (problem.known, problem.unknown))) or problem.reason
        return problem.manner or problem.reason


@dataclass
class Desk:
    """One talk. The tools of the domain are called by their names, as methods."""

    source: Source
    problem: Problem
    gold: Gold
    user: Caller | SeatUser
    turns: int
    tables: Tables
    turns_taken: int = 0
    plan_steps_taken: frozenset[int] = frozenset()  # indices of the plan's actions that were taken
    facts_told: frozenset[str] = frozenset()  # facts in words that the customer was told
    last_numbers: tuple[float, ...] = ()  # the numbers that the customer was told last
    done: bool = False
    info: dict[str, float] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Desk:
        """Shares what is never changed, the tables among it."""
        return replace(self)

    def __getattr__(self, name: str) -> Callable[..., str]:
        """Returns a tool of the domain."""
        if name.startswith("_") or name not in calls.methods(self.source.domain):
            raise AttributeError(f"there is no {name} here")
        return partial(self._call, name)

    def goal(self) -> str:
        return AWAITED if isinstance(self.user, SeatUser) else f"Customer: {self.user.open()}"

    def say(self, text: str) -> str:
        """Say or ask the customer something."""
        if not 0 < len(text.strip()) <= LONGEST:
            raise ValueError(f"{len(text)} characters, but from 1 to {LONGEST} can be said at once")
        if isinstance(self.user, SeatUser):
            self.user, answer = self.user.told(text), AWAITED
        else:
            answer = f"Customer: {self.user.reply(text)}"
        before = self._right_answers()
        self.facts_told |= set(said_of(text, self._facts()[1]))
        if numbers := so_many_numbers(text, len(self._facts()[0])):
            self.last_numbers = tuple(sorted(numbers))
        self.info = {"subgoal": float(self._right_answers() > before)}
        self.turns_taken += 1
        return answer

    def hear(self, text: str) -> str:
        assert isinstance(self.user, SeatUser)
        self.user, self.done = self.user.answered(text), STOP in text
        return f"Customer: {text.replace(STOP, '').strip()}"

    def user_expert(self) -> str:
        """Returns what the scripted customer says."""
        assert isinstance(self.user, SeatUser)
        caller = Caller(self.problem, solo=False)
        return caller.reply(self.user.waiting) if self.user.talk else caller.open()

    def finish(self) -> None:
        """End the talk."""
        self.turns_taken += 1
        self.done = True
        self.info = {"database": float(self._right()), "told": float(self._all_told())}

    def reward(self) -> float | None:
        if not self.done:
            return None if self.turns_taken < self.turns else 0.0
        return float(self.success())

    def success(self) -> bool:
        return self.done and self._all_told() and self._right() and self._looked()

    def expert(self) -> str:
        """Returns the published actions in their order, then what has to be told; reads a record of the customer where
        none was.
        """
        for number, action in enumerate(self.gold.plan):
            if number not in self.plan_steps_taken and self._possible(action):
                return action.said()
        if not self._looked():
            return Action("get_user_details", {"user_id": self.gold.customer}).said()
        if not self._all_told():
            words = [fact for fact in self._facts()[1] if fact not in self.facts_told]
            facts = ", ".join(words or [fact for fact in self.problem.facts if number_of(fact) is not None])
            return f"say(text={f'This is what you wanted to know: {facts}'!r})"
        return "finish()"

    def state_key(self) -> str:
        talk = [self.user.talk, self.user.waiting] if isinstance(self.user, SeatUser) else []
        known = [
            sorted(self.plan_steps_taken),
            sorted(self.facts_told),
            self.last_numbers,
            sorted(self.tables.read),
            self.turns_taken,
            self.done,
            talk,
        ]
        return json.dumps([self.source.domain, self.problem.id, self.tables.digest(self.source.database), known])

    def _call(self, name: str, **arguments: Any) -> str:
        before = self.tables.digest(self.source.database)
        self.tables, text = calls.call(self.source.domain, self.tables, name, arguments)
        same = [n for n, a in enumerate(self.gold.plan) if (a.name, dict(a.arguments)) == (name, arguments)]
        new = next((number for number in same if number not in self.plan_steps_taken), None)
        self.info = {"subgoal": float(new is not None)}
        if self.tables.digest(self.source.database) != before:  # it wrote something
            self.info |= {"tool_score": 1.0 if same else -1.0, "verified": float(bool(same))}
        self.plan_steps_taken |= {new} if new is not None else set()
        self.turns_taken += 1
        return text

    def _possible(self, action: Action) -> bool:
        try:
            calls.call(self.source.domain, self.tables, action.name, action.arguments)
        except ValueError:
            return False
        return True

    def _right(self) -> bool:
        return self.tables.digest(self.source.database) == self.gold.digest

    def _looked(self) -> bool:
        """Returns whether a record of the customer was read: their own, or one of their orders or reservations."""
        if not self.gold.customer:
            return True
        records = [(key, self.source.database[table].get(key, {})) for table, key in self.tables.read]
        return any(self.gold.customer in (key, record.get("user_id")) for key, record in records)

    def _facts(self) -> tuple[list[float], list[str]]:
        """Returns what has to be told: the different numbers, sorted, and the words."""
        numbers = {value for fact in self.problem.facts if (value := number_of(fact)) is not None}
        return sorted(numbers), [fact for fact in self.problem.facts if number_of(fact) is None]

    def _right_answers(self) -> int:
        """Returns how many of the facts that have to be told were told."""
        return len(self.facts_told) + len(set(self.last_numbers) & set(self._facts()[0]))

    def _all_told(self) -> bool:
        numbers, words = self._facts()
        return list(self.last_numbers) == numbers and self.facts_told == frozenset(words)
