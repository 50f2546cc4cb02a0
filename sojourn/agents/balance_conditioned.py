"""An agent that tells the model how far it is to go beyond imitation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated
from zlib import crc32

import numpy as np

from sojourn.agents.plain import Plain
from sojourn.agents.told import ToldSeat, require_base
from sojourn.config.fields import Kind, Range
from sojourn.protocols import Agent, AgentContext
from sojourn.types import Message, Observation

BALANCE = "balance"  # names it in `Turn.info`
Balance = Annotated[float, Range(0)]


@dataclass(frozen=True, kw_only=True)
class BalanceConditioned:
    """Has the agent `base` act, and shows the model a balance between imitation and improvement, as the text
    "Balance: 3." at the end of the system message (after FamO2O: Wang et al. 2023, arXiv:2310.17966, whose abstract and
    authors' code were read).

    Each turn has the number in `Turn.info`, as "balance", by which the estimator `awr` with `scale = "balance"`
    multiplies advantages before it makes weights of them: at 0 every action is imitated alike, and the larger it is,
    the more the better ones. Each episode draws one of `balances`, by its seed, so that one model learns all of them;
    recorded episodes get theirs by the source `with_balances`. With `balance`, every episode is told that one.

    In the paper a balance is drawn from an interval, for each action by itself, and encoded by sines; and a second
    model, which is not here, chooses it online and in evaluations, in each state so that Q is highest.
    """

    balance: Balance | None = None
    balances: tuple[Balance, ...] = (0.0, 1.0, 3.0, 10.0)
    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_base(self.base)
        if isinstance(self.base, BalanceConditioned):
            raise ValueError("base is balance_conditioned, too: name the agent that is to act, such as plain")
        if not self.balances:
            raise ValueError("balances = []: name at least one number, such as 0")

    def seat(self, context: AgentContext) -> BalanceConditionedSeat:
        told = self.drawn(context.params.seed) if self.balance is None else self.balance
        return BalanceConditionedSeat(
            agent="balance_conditioned",
            acting=self.base,
            base=self.base.seat(context),
            text=f"Balance: {told:g}.",
            balance=told,
        )

    def drawn(self, seed: int) -> float:
        """Returns the balance that a seed draws."""
        rng = np.random.default_rng((seed, crc32(BALANCE.encode())))
        return self.balances[int(rng.integers(len(self.balances)))]


@dataclass(kw_only=True)
class BalanceConditionedSeat(ToldSeat):
    """A participant of one episode, which is shown a balance, and notes it with each turn."""

    balance: float

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        try:
            return await super().act(observation, state)
        finally:
            self.base.add_reward(0.0, {BALANCE: self.balance})  # also where the action cannot be read
