"""Blackjack: the agent draws cards to come closer to 21 than the dealer, but not above it.

A task is a deal. An action is hit or stick; an observation is the cards in words. The reward, at the end of the hand,
is 1 for a win, 0 for a draw, -1 for a loss.

Cards and rules are gymnasium's Blackjack (MIT; Towers et al. 2024, arXiv:2407.17032), after example 5.1 of Sutton &
Barto 2018: an endless deck, a dealer who draws below 17, no extra for a natural. It differs in that the cards are
decided by the task's seed, so that the same actions always lead to the same end.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, ClassVar

from sojourn.envs.about import About, require_module
from sojourn.envs.fields import Count, check_fields
from sojourn.errors import ActionError, InfrastructureError
from sojourn.tasks.splits import make_tasks_from_data
from sojourn.types import Message, Observation, Role, Step, Task

ACTIONS = ("stick", "hit")  # in gymnasium's order
SYSTEM_PROMPT = (
    "Play blackjack: come closer to 21 than the dealer, but not above it. Face cards count 10, an ace 1 or 11. "
    "The dealer draws until 17. Say one action: hit (take a card), stick (take no more)."
)


@dataclass(frozen=True, kw_only=True)
class Blackjack:
    """One hand of blackjack for each task: the reward is 1 for a win, 0 for a draw, -1 for a loss.

    About a third of all hands is lost whatever one does: `winnable` leaves them out, so that 1 can always be earned
    (the expert, who knows the cards to come, earns it). Without it they are dealt at random.
    """

    winnable: bool = True
    choices: bool = False
    train: Count = 100_000
    test: Count = 1_000

    about: ClassVar[About] = About(
        source="Blackjack of gymnasium (Towers et al. 2024, arXiv:2407.17032; Sutton & Barto 2018), told in words",
        licence="MIT",
        extra="gymnasium",
    )

    def __post_init__(self) -> None:
        check_fields("blackjack", self)

    def tasks(self, split: str) -> Sequence[Task]:
        data = {"winnable": self.winnable}
        return make_tasks_from_data("blackjack", self, split, data)

    def make(self, task: Task) -> BlackjackPlay:
        return BlackjackPlay(_deal(task.seed, task.data["winnable"]), task.id, self.choices)


@lru_cache(256)
def _deal(seed: int, winnable: bool) -> Any:
    """Returns the hand after the deal: the first of the seed's hands that can be won."""
    rules = require_module("gymnasium.envs.toy_text.blackjack", "sojourn-worlds[gymnasium]", "blackjack")
    for attempt in count():
        hand = rules.BlackjackEnv()
        hand.reset(seed=int.from_bytes(hashlib.sha256(f"blackjack {seed} {attempt}".encode()).digest()[:4]))
        if not winnable or _best(hand)[0] > 0:
            return hand
    raise AssertionError("unreachable: count() does not end")


def _best(hand: Any) -> tuple[float, str]:
    """Returns the most that can still be earned, given the cards to come, and the action that leads to it."""
    outcomes = []
    for hits in range(22):
        trial = copy.deepcopy(hand)
        if any(trial.step(1)[2] for _ in range(hits)):
            break
        outcomes.append((trial.step(0)[1], -hits))
    earned, hits = max(outcomes)
    return earned, ACTIONS[hits < 0]


class BlackjackPlay:
    """One episode; `table` is the game after the deal, and is not changed."""

    def __init__(self, table: Any, key: str, choices: bool) -> None:
        self.hand = copy.deepcopy(table)
        self.key = key
        self.choices = choices
        self.done = False

    async def start(self) -> Observation:
        return self._observe((Message(Role.SYSTEM, SYSTEM_PROMPT),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("blackjack was given an action after its end: play each hand once")
        action_name = action.text[:30].strip().lower()
        if action_name not in ACTIONS:
            raise ActionError(f'"{action_name}" is no action, say hit or stick.')
        _, reward, self.done, _, _ = self.hand.step(ACTIONS.index(action_name))
        if not self.done:
            return Step(self._observe(), {agent: 0.0})
        return Step(None, {agent: float(reward)}, done=True, success=bool(reward > 0))

    async def close(self) -> None:
        pass

    async def fork(self) -> BlackjackPlay:
        twin = BlackjackPlay(self.hand, self.key, self.choices)
        twin.done = self.done
        return twin

    def state_key(self) -> str:
        return f"{self.key}/{','.join(map(str, self.hand.player))}"

    def expert(self) -> str:
        """Returns the best action for a player who knows the cards to come."""
        return _best(self.hand)[1]

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        total, dealer_card, soft = self.hand._get_obs()
        cards = ", ".join(_name(card) for card in self.hand.player)
        with_ace = " with an ace as 11" if soft else ""
        text = f"Your cards: {cards}: {total} in all{with_ace}. The dealer shows {_name(dealer_card)}."
        return Observation((Message(Role.USER, text),), system=system, choices=ACTIONS if self.choices else ())


def _name(card: int) -> str:
    return "ace" if card == 1 else str(card)
