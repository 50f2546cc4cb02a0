"""Recorded episodes, each of which is told a balance of imitation and improvement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sojourn.agents.balance_conditioned import BalanceConditioned
from sojourn.protocols import Agent
from sojourn.sources.retold import Retold
from sojourn.types import Score


@dataclass(frozen=True, kw_only=True)
class WithBalances(Retold):
    """The groups of `base`, which were recorded, with the agent `balance_conditioned` told in each episode one of its
    `balances`, drawn anew whenever the episode is taken (the universal model of FamO2O: Wang et al. 2023,
    arXiv:2310.17966, whose abstract and authors' code were read).

    The estimator `awr` with `scale = "balance"` weighs each episode's actions by the balance that it was told. The
    episodes are played again with their recorded actions, in the same tasks, so that the world must be one that the
    actions and the task determine. An episode that then takes another course, gets other rewards, or no longer fits
    into the context is left out and counted in `balances_refused`; `balances_shown` counts the others. Each time they
    are other episodes, with ids of their own, and are recorded. Their log-probabilities are those of what was recorded
    first, without the balance: they are for `nll`.
    """

    name = "with_balances"
    what = "balances"
    agent_name = "balance_conditioned"
    agent_type = BalanceConditioned
    new_each_step = True

    def told(self, agent: Agent, score: Score, seed: int) -> Agent:
        assert isinstance(agent, BalanceConditioned)
        return replace(agent, balance=agent.drawn(seed))
