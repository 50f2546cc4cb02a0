"""Sequents of intuitionistic propositional logic, and the tactics that take their proofs apart.

A formula is an atom, a lower-case letter, or a triple of a connective and two formulas. A tactic turns a sequent into
those that are left to prove; a proof is complete when none is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

Formula = str | tuple[str, "Formula", "Formula"]
AND, OR, IMPLIES = "&", "|", ">"
ALONE, NUMBERED = ("intro", "split", "left", "right"), ("apply", "cases")  # tactics without and with a number


class TacticError(Exception):
    """A tactic does not fit the sequent; the message says why, in words for the agent."""


class Sequent(NamedTuple):
    """A goal that is to be proved from hypotheses, which are numbered from 1."""

    hypotheses: tuple[Formula, ...]
    goal: Formula

    def text(self) -> str:
        lines = [f"{number} {show(formula)}" for number, formula in enumerate(self.hypotheses, 1)]
        return "\n".join([*lines, f"goal {show(self.goal)}"])

    @property
    def unordered(self) -> tuple[frozenset[Formula], Formula]:
        """Returns what decides how long a proof is: neither the order of hypotheses nor equal ones matter."""
        return frozenset(self.hypotheses), self.goal

    def with_hypotheses(self, new: tuple[Formula, ...], without: int = 0) -> Sequent:
        """Returns the sequent with further hypotheses, unless it has them, and without that of a number."""
        kept = [formula for number, formula in enumerate(self.hypotheses, 1) if number != without]
        kept += [formula for formula in dict.fromkeys(new) if formula not in kept]
        return self._replace(hypotheses=tuple(kept))


class Tactic(NamedTuple):
    name: str
    number: int = 0  # of a hypothesis; 0 for tactics that take none

    def __str__(self) -> str:
        return f"{self.name} {self.number}" if self.number else self.name

    def of(self, sequent: Sequent) -> tuple[Sequent, ...]:
        """Returns the sequents that are left to prove; raises `TacticError` where the tactic does not fit."""
        if self.name in NUMBERED:
            if not 1 <= self.number <= len(sequent.hypotheses):
                raise TacticError(f"there is no hypothesis {self.number}")
            return _apply(sequent, self.number) if self.name == "apply" else _cases(sequent, self.number)
        connective = {"intro": IMPLIES, "split": AND, "left": OR, "right": OR}[self.name]
        if isinstance(sequent.goal, str) or sequent.goal[0] != connective:
            raise TacticError(f"{self.name} needs a goal with {connective}")
        _, one, other = sequent.goal
        if self.name == "intro":
            return (sequent._replace(goal=other).with_hypotheses((one,)),)
        goals = {"left": (one,), "right": (other,)}.get(self.name, (one, other))
        return tuple(sequent._replace(goal=goal) for goal in goals)


def _apply(sequent: Sequent, number: int) -> tuple[Sequent, ...]:
    """Uses a hypothesis that is the goal, or that implies it: what it takes for granted is left to prove."""
    formula, premises = sequent.hypotheses[number - 1], list[Formula]()
    while formula != sequent.goal:
        if isinstance(formula, str) or formula[0] != IMPLIES:
            raise TacticError(f"hypothesis {number} does not give the goal")
        premises.append(formula[1])
        formula = formula[2]
    return tuple(sequent._replace(goal=premise) for premise in premises)


def _cases(sequent: Sequent, number: int) -> tuple[Sequent, ...]:
    """Takes a hypothesis apart: of "and" both sides are known, of "or" the goal is to be proved from either."""
    formula = sequent.hypotheses[number - 1]
    if isinstance(formula, str) or formula[0] == IMPLIES:
        raise TacticError(f"hypothesis {number} has neither & nor | to take apart")
    connective, one, other = formula
    sides = [(one, other)] if connective == AND else [(one,), (other,)]
    return tuple(sequent.with_hypotheses(side, without=number) for side in sides)


def fitting(sequent: Sequent) -> Iterator[tuple[Tactic, tuple[Sequent, ...]]]:
    """Yields each tactic that fits a sequent, with what it leaves to prove."""
    numbered = [Tactic(name, number) for name in NUMBERED for number in range(1, len(sequent.hypotheses) + 1)]
    for tactic in [*map(Tactic, ALONE), *numbered]:
        with suppress(TacticError):
            yield tactic, tactic.of(sequent)


def show(formula: Formula) -> str:
    """Returns a formula as text, with brackets around each part that has parts of its own."""
    if isinstance(formula, str):
        return formula
    connective, one, other = formula
    return connective.join(part if isinstance(part, str) else f"({show(part)})" for part in (one, other))
