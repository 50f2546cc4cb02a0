"""Theorems with the lengths of their shortest proofs, drawn together with a proof."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from sojourn_worlds.proofs.tactics import AND, IMPLIES, OR, Formula, Sequent, Tactic, fitting

MOST_HYPOTHESES = 9  # so that numbers have one digit
MOST_SEQUENTS = 400  # that tactics can make of a theorem: larger ones are not used
ATOMS = "abcdefgh"
COMPOUND = 0.35  # how many formulas that are asked for have parts
Unordered = tuple[frozenset[Formula], Formula]


@dataclass(frozen=True)
class Theorem:
    """A sequent to prove. `lengths` has, for each sequent that tactics can make of it and that can be proved, the
    number of tactics of its shortest proof."""

    sequent: Sequent
    lengths: dict[Unordered, int]

    def __deepcopy__(self, memo: object) -> Theorem:
        return self

    def length(self, sequents: Sequence[Sequent]) -> int | None:
        """Returns how many tactics the shortest proof of all the sequents takes; None where one cannot be proved."""
        lengths = [self.lengths.get(sequent.unordered) for sequent in sequents]
        known = [length for length in lengths if length is not None]
        return sum(known) if len(known) == len(lengths) else None

    def shortest(self, sequent: Sequent) -> Tactic | None:
        """Returns the first tactic of a shortest proof; any that fits where there is no proof, None where none fits."""
        found = [(self.length(left), tactic) for tactic, left in fitting(sequent)]
        proofs = [(length, number) for number, (length, _) in enumerate(found) if length is not None]
        return found[min(proofs)[1] if proofs else 0][1] if found else None


def theorem_of(sequent: Sequent) -> Theorem | None:
    """Returns a sequent as a theorem; None where tactics make too many others of it."""
    ways, waiting = dict[Unordered, list[list[Unordered]]](), [sequent]
    while waiting:
        one = waiting.pop()
        if one.unordered in ways:
            continue
        if len(ways) == MOST_SEQUENTS:
            return None
        after = [left for _, left in fitting(one)]
        ways[one.unordered] = [[sub.unordered for sub in left] for left in after]
        waiting += [sub for left in after for sub in left]
    return Theorem(sequent, _lengths(ways))


def _lengths(ways: dict[Unordered, list[list[Unordered]]]) -> dict[Unordered, int]:
    """Returns the least number of tactics for each sequent that can be proved, by sweeps until nothing changes."""
    lengths, changed = dict[Unordered, int](), True
    while changed:
        changed = False
        for sequent, after in ways.items():
            known = [1 + sum(lengths[one] for one in left) for left in after if all(one in lengths for one in left)]
            if known and min(known) < lengths.get(sequent, min(known) + 1):
                lengths[sequent], changed = min(known), True
    return lengths


def draw(rng: random.Random, steps: int, extra: int) -> Theorem:
    """Returns a theorem whose shortest proof has `steps` tactics, with up to `extra` hypotheses that it does not take,
    but that seem to help.

    A random proof of that length is walked through backwards: whatever hypothesis a tactic asks for is made up. What
    turns out to have a shorter proof, such as by a hypothesis that was made up for another goal, is drawn again.
    """
    while True:
        walk = Walk(rng)
        goal = walk.formula(steps)
        walk.prove(goal, steps, ())
        aims = [atom for atom in ATOMS if atom in walk.proved] or list(ATOMS)
        misleading = [
            rule(rng.choice([atom for atom in ATOMS if atom != aim]), aim) for aim in rng.choices(aims, k=extra)
        ]
        hypotheses = list(dict.fromkeys([*walk.invented, *misleading]))
        rng.shuffle(hypotheses)
        if len(hypotheses) > MOST_HYPOTHESES:
            continue
        sequent = Sequent(tuple(hypotheses), goal)
        theorem = theorem_of(sequent)
        if theorem is not None and theorem.length([sequent]) == steps:
            return theorem


def rule(premise: Formula, conclusion: Formula) -> Formula:
    return IMPLIES, premise, conclusion


@dataclass
class Walk:
    """A proof while it is made up, with the hypotheses that were `invented` for it."""

    rng: random.Random
    invented: list[Formula] = field(default_factory=list[Formula])
    proved: set[Formula] = field(default_factory=set[Formula])  # atoms, which are not asked for again if that can be

    def formula(self, steps: int) -> Formula:
        """Returns a formula whose proof may have so many tactics."""
        new = [atom for atom in ATOMS if atom not in self.proved]
        one, other = self.rng.sample(new if len(new) > 1 else ATOMS, 2)
        kinds = [AND] * (steps >= 3) + [OR, IMPLIES] * (steps >= 2)
        return (self.rng.choice(kinds), one, other) if kinds and self.rng.random() < COMPOUND else one

    def prove(self, goal: Formula, steps: int, known: tuple[Formula, ...]) -> None:
        """Makes up a proof of a goal, with exactly so many tactics, where some formulas are known."""
        if steps == 1:
            self.invented += [] if goal in known else [goal]
        elif isinstance(goal, str):
            self.proved.add(goal)
            self._prove_atom(goal, steps, known)
        elif goal[0] == AND:
            self._prove_both((goal[1], goal[2]), steps - 1, known)
        elif goal[0] == OR:
            self.prove(self.rng.choice(goal[1:]), steps - 1, known)
        else:
            self.prove(goal[2], steps - 1, (*known, goal[1]))

    def _prove_both(self, goals: tuple[Formula, Formula], steps: int, known: tuple[Formula, ...]) -> None:
        first = self.rng.randint(1, steps - 1)
        self.prove(goals[0], first, known)
        self.prove(goals[1], steps - first, known)

    def _prove_atom(self, goal: str, steps: int, known: tuple[Formula, ...]) -> None:
        kind = self.rng.choice(["rule", "rule", "and", *["rules"] * (steps >= 3), *["or"] * (steps >= 5)])
        if kind == "rules":  # apply one that has two premises
            first = self.rng.randint(1, steps - 2)
            premises = self.formula(first), self.formula(steps - 1 - first)
            self.invented.append(rule(premises[0], rule(premises[1], goal)))
            self.prove(premises[0], first, known)
            self.prove(premises[1], steps - 1 - first, known)
        elif kind == "or":  # cases, and the goal from either
            one, other = self.formula(1), self.formula(1)
            self.invented.append((OR, one, other))
            first = self.rng.randint(2, steps - 3)
            self.prove(goal, first, (*known, one))
            self.prove(goal, steps - 1 - first, (*known, other))
        else:
            left = steps - 1 - (kind == "and")  # for the premise; 0 where the goal itself is one side
            premise = self.rng.choice(known) if known and left == 1 else self.formula(left) if left else None
            gives = rule(premise, goal) if premise is not None else goal
            one, other = self.rng.sample([gives, self.formula(1)], 2)
            self.invented.append((AND, one, other) if kind == "and" else gives)
            if premise is not None:
                self.prove(premise, left, known)
