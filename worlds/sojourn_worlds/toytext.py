"""Tabular environments, from a table of transition probabilities: frozen lake, taxi and cliff walking share it.

The tables are those of gymnasium's toy-text environments (Towers et al. 2024, arXiv:2407.17032). It differs in this:
the randomness of an episode is drawn from its task's seed and the number of actions so far, so that the same actions
always lead to the same state; an action that can change nothing is refused; and the reward is 1 for reaching the goal,
else nothing, with the sum of the original rewards in the info.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step

DISCOUNT = 0.99  # of the expert's policy, so that it prefers short paths
MAX_SWEEPS = 2_000


def require_time(world: str, turns: int, least: int) -> None:
    """Raises `ConfigError` where a play has fewer turns than the shortest play that wins, in either split."""
    if turns < least:
        raise ConfigError(
            f"{world}: turns = {turns}, but the shortest way to the goal takes {least}, so that nothing could be won: "
            f"set turns to {least} or more"
        )


class Transition(NamedTuple):
    probability: float
    state: int
    reward: float  # gymnasium's
    terminated: bool
    success: bool


@dataclass(frozen=True, eq=False)
class TransitionTable:
    """`outcomes[state][action]`, with the actions' names in order. `goal` is the system prompt; `describe` puts a state
    into words, and `remarks` says what an action with that original reward did.
    """

    name: str
    actions: tuple[str, ...]
    outcomes: Sequence[Sequence[tuple[Transition, ...]]]
    goal: str
    describe: Callable[[int], str]
    remarks: Mapping[float, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, actions: Sequence[str], table: Any, is_success: Callable[[float], bool], **fields: Any
    ) -> TransitionTable:
        """Makes the table from gymnasium's P[state][action], lists of (probability, state, reward, terminated); `won`
        judges the last reward.
        """
        outcomes = [
            [
                tuple(
                    Transition(p, int(s), float(r), bool(e), bool(e and is_success(r)))
                    for p, s, r, e in table[state][action]
                )
                for action in range(len(actions))
            ]
            for state in range(len(table))
        ]
        return cls(name, tuple(actions), outcomes, **fields)

    def possible(self, state: int) -> list[int]:
        """Returns the actions that may change something."""
        return [
            a for a, known in enumerate(self.outcomes[state]) if any(o.state != state or o.terminated for o in known)
        ]

    def draw(self, state: int, action: int, uniform: float) -> Transition:
        known = self.outcomes[state][action]
        edges = accumulate(outcome.probability for outcome in known)
        return next((outcome for outcome, edge in zip(known, edges, strict=True) if uniform < edge), known[-1])

    @cached_property
    def policy(self) -> list[int]:
        """Returns the action of each state that reaches the goal most likely and soonest, by value iteration."""
        states, actions = len(self.outcomes), len(self.actions)
        width = max(len(known) for row in self.outcomes for known in row)
        probability, next_state, success, continues = (np.zeros((states, actions, width)) for _ in range(4))
        for state, row in enumerate(self.outcomes):
            for action, known in enumerate(row):
                for number, outcome in enumerate(known):
                    here = (state, action, number)
                    probability[here], next_state[here] = outcome.probability, outcome.state
                    success[here], continues[here] = outcome.success, not outcome.terminated
        impossible = np.ones((states, actions), dtype=bool)
        for state in range(states):
            impossible[state, self.possible(state)] = False
        values = np.zeros(states)
        q_values = np.zeros((states, actions))
        for _ in range(MAX_SWEEPS):
            q_values = (probability * (success + DISCOUNT * continues * values[next_state.astype(int)])).sum(-1)
            q_values[impossible] = -1
            new_values = np.maximum(q_values.max(-1), 0)
            if np.abs(new_values - values).max() < 1e-12:
                break
            values = new_values
        return [int(action) for action in q_values.argmax(-1)]


@dataclass
class TabularEnv:
    """One episode on a table, from `state`, for at most `turns` actions; `seed` decides its randomness."""

    table: TransitionTable
    state: int
    seed: str
    turns: int
    choices: bool = False
    turns_taken: int = 0
    original_return: float = 0.0  # the sum of the original rewards
    done: bool = False
    uniforms: list[float] = field(default_factory=list)  # one random number per action; forks share them

    def __post_init__(self) -> None:
        if not self.uniforms:
            rng = random.Random(self.seed)
            self.uniforms = [rng.random() for _ in range(self.turns)]

    async def start(self) -> Observation:
        system = f"{self.table.goal} Say one action: {', '.join(self.table.actions)}."
        return self._observe((Message(Role.SYSTEM, system),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError(f"{self.table.name} was given an action after its end: play each world once")
        outcome = self.table.draw(self.state, self._parse(action.text), self.uniforms[self.turns_taken])
        self.state, self.turns_taken = outcome.state, self.turns_taken + 1
        self.original_return += outcome.reward
        if outcome.terminated or self.turns_taken >= self.turns:
            self.done = True
            info = {f"{self.table.name}/return": self.original_return}
            return Step(None, {agent: float(outcome.success)}, done=True, success=outcome.success, info=info)
        return Step(self._observe(remark=self.table.remarks.get(outcome.reward, "")), {agent: 0.0})

    async def close(self) -> None:
        pass

    async def fork(self) -> TabularEnv:
        return TabularEnv(
            self.table,
            self.state,
            self.seed,
            self.turns,
            self.choices,
            self.turns_taken,
            self.original_return,
            self.done,
            self.uniforms,
        )

    def state_key(self) -> str:
        return f"{self.seed}/{self.state}"

    def expert(self) -> str:
        """Returns the best action for a player who knows the probabilities; where it would lose in this episode, one
        that will not.
        """
        best = self.table.policy[self.state]
        return self.table.actions[best if self._policy_wins() else self._winning_action(best)]

    def winnable(self) -> bool:
        """Returns whether some actions win this episode, given its random draws."""
        return self._policy_wins() or self._winning_action(-1) >= 0

    def _policy_wins(self) -> bool:
        state = self.state
        for uniform in self.uniforms[self.turns_taken :]:
            outcome = self.table.draw(state, self.table.policy[state], uniform)
            if outcome.terminated:
                return outcome.success
            state = outcome.state
        return False

    def _winning_action(self, otherwise: int) -> int:
        """Returns the first action of a shortest episode that wins, given its random draws; `otherwise` where none
        does.
        """
        first: Mapping[int, int] = {}
        for turns_taken in range(self.turns_taken, self.turns):
            reached: dict[int, int] = {}
            for state in first or (self.state,):
                for action in self.table.possible(state):
                    outcome = self.table.draw(state, action, self.uniforms[turns_taken])
                    opening = first.get(state, action)
                    if outcome.success:
                        return opening
                    if not outcome.terminated:
                        reached.setdefault(outcome.state, opening)
            if not reached:
                break
            first = reached
        return otherwise

    def _parse(self, text: str) -> int:
        name = " ".join(text[:200].lower().split())
        if name not in self.table.actions or len(text) > 200:
            raise ActionError(f'"{name[:30]}" is no action, say one of {", ".join(self.table.actions)}.')
        action = self.table.actions.index(name)
        if action not in self.table.possible(self.state):
            raise ActionError(f'"{name}" is not possible here.')
        return action

    def _observe(self, system: tuple[Message, ...] = (), remark: str = "") -> Observation:
        text = f"{remark} {self.table.describe(self.state)}".strip()
        choices = tuple(self.table.actions[a] for a in self.table.possible(self.state)) if self.choices else ()
        return Observation((Message(Role.USER, text),), system=system, choices=choices)
