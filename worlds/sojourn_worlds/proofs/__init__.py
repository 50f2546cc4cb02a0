"""Proofs of propositional logic: the agent proves a goal from hypotheses by tactics, one a turn.

A task is a theorem drawn from its seed, whose shortest proof has a known length. The observation is the first of the
goals that are left, with its hypotheses; an action is a tactic. The reward is 1 when no goal is left, else 0. A tactic
that does not fit takes a turn, changes nothing, and is answered with the reason, as a proof assistant does (info
`error`); where no tactic fits any more, the episode ends.

Ours, in the manner of proving step by step in a proof assistant, as language models do in Lean (GPT-f: Polu and
Sutskever 2020, arXiv:2009.03393; BFS-Prover: Xin et al. 2025, arXiv:2502.03438). It differs in that the logic is that
of implication, "and" and "or" alone, intuitionistic and without quantifiers, so that it is decided for every theorem
how long its shortest proof is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from sojourn.config.fields import Range
from sojourn.envs.about import About
from sojourn.envs.fields import Count, check_fields
from sojourn.errors import ActionError, ConfigError
from sojourn.tasks.splits import draw_for_split, make_tasks_by_kind
from sojourn.types import Task
from sojourn_worlds.proofs.tactics import ALONE, NUMBERED, Sequent, Tactic, TacticError, fitting
from sojourn_worlds.proofs.theorem import Theorem, draw
from sojourn_worlds.turn_based import TurnBasedEnv, plain

SYSTEM = (
    "Prove the goal from the numbered hypotheses. & is and, | is or, > is implies. Say one tactic: "
    "intro, split, left, right, apply 2, cases 1."
)
TACTIC = re.compile(rf"(?:({'|'.join(ALONE)})|({'|'.join(NUMBERED)}) ([0-9]{{1,2}}))")


@dataclass(frozen=True, kw_only=True)
class Proofs:
    """Theorems of propositional logic, to be proved by tactics.

    Tasks alternate between the lengths of their shortest proofs, from `shortest` to `longest` tactics, and have the tag
    of theirs: "steps-2", "steps-3" ... `extra` is how many hypotheses are added that the proof does not take, some of
    which lead nowhere. `turns` ends the episode, without success, after so many tactics, those that do not fit included
    (0: never, so that only the rollout's budget ends it). `choices` lists the tactics that fit.

    A theorem belongs to one split by its own hash: none of the test split is ever seen in training.
    """

    about: ClassVar[About] = About(
        source="ours; after GPT-f (Polu and Sutskever 2020, arXiv:2009.03393) and BFS-Prover (arXiv:2502.03438)",
        licence="Apache-2.0",
        smallest={"shortest": 3, "longest": 3},
    )

    shortest: Annotated[int, Range(1, 10)] = 2
    longest: Annotated[int, Range(1, 10)] = 6
    extra: Annotated[int, Range(0, 4)] = 2
    turns: Annotated[int, Range(0, 1_000)] = 0
    choices: bool = False
    train: Count = 100_000
    test: Count = 1_000

    def __post_init__(self) -> None:
        check_fields("proofs", self)
        if self.longest < self.shortest:
            raise ConfigError(
                f"proofs: longest = {self.longest}, but proofs have at least shortest = {self.shortest} tactics: "
                "ask for longer ones, or lower shortest"
            )
        if 0 < self.turns < self.longest:
            raise ConfigError(
                f"proofs: turns = {self.turns}, but some proofs have {self.longest} tactics: allow as many turns, or 0 "
                "for no end"
            )

    def tasks(self, split: str) -> Sequence[Task]:
        data = {f"steps-{steps}": self._data(steps) for steps in range(self.shortest, self.longest + 1)}
        return make_tasks_by_kind("proofs", self, split, list(data), data.__getitem__)

    def _data(self, steps: int) -> dict[str, Any]:
        return {"steps": steps, "extra": self.extra, "turns": self.turns, "choices": self.choices}

    def make(self, task: Task) -> TurnBasedEnv:
        theorem = theorem_of_task(task.split, task.seed, task.data["steps"], task.data["extra"])
        proof = Proof(theorem, [theorem.sequent], task.data["turns"])
        return TurnBasedEnv(proof, policy_seat="agent", choices=task.data["choices"])


@lru_cache(256)  # a group plays one task many times, and a search copies it
def theorem_of_task(split: str, seed: int, steps: int, extra: int) -> Theorem:
    """Returns the first theorem of a seed whose hash belongs to the split."""
    return draw_for_split(
        Task("proofs", {}, seed, split),
        f"proofs {steps} {extra}",
        lambda rng: draw(rng, steps, extra),
        lambda theorem: theorem.sequent.text().encode(),
    )


@dataclass
class Proof:
    """The state of one episode: the goals that are left, the one to prove next first."""

    theorem: Theorem
    left: list[Sequent]
    turns: int = 0
    taken: int = 0
    error: str = ""  # of the last tactic

    @property
    def stuck(self) -> bool:
        return bool(self.left) and not any(fitting(self.left[0]))

    @property
    def current_seat(self) -> str | None:
        return None if not self.left or self.stuck or 0 < self.turns <= self.taken else "agent"

    def system_prompt(self, seat: str) -> str:
        return SYSTEM

    def observe(self, seat: str) -> str:
        error = [f"error: {self.error}"] if self.error else []
        more = [f"goals left: {len(self.left)}"] if len(self.left) > 1 else []
        return "\n".join([*error, *more, self.left[0].text()])

    def choices(self) -> Sequence[str]:
        return [str(tactic) for tactic, _ in fitting(self.left[0])]

    def act(self, action: str) -> Mapping[str, float]:
        tactic = parse(action)
        self.taken += 1
        try:
            self.left, self.error = [*tactic.of(self.left[0]), *self.left[1:]], ""
        except TacticError as error:
            self.error = str(error)
        return {"agent": float(not self.left)}

    def success(self) -> bool:
        return not self.left

    def info(self) -> Mapping[str, float]:
        return {"error": float(bool(self.error)), "stuck": float(self.stuck)}

    def state_key(self) -> str:
        """Returns the goals that are left, by which plays of several theorems may come to the same state."""
        left = f"/{self.turns - self.taken}" if self.turns else ""
        return "proofs/" + "/".join(sequent.text().replace("\n", ",") for sequent in self.left) + left

    def expert(self) -> str:
        """Returns the first tactic of a shortest proof; any that fits where the goal cannot be proved any more."""
        return str(self.theorem.shortest(self.left[0]))


def parse(action: str) -> Tactic:
    """Returns the tactic that an action names; raises `ActionError` where it names none."""
    match = TACTIC.fullmatch(plain(action))
    if match is None:
        raise ActionError(f'"{plain(action)[:30]}" is no tactic, say one of: {", ".join(ALONE)}, apply 2, cases 1.')
    return Tactic(match[1]) if match[1] else Tactic(match[2], int(match[3]))
