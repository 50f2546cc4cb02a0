"""Recorded episodes, each of which is told the return that it got."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sojourn.agents.return_conditioned import ReturnConditioned
from sojourn.protocols import Agent
from sojourn.sources.retold import Retold
from sojourn.types import Score


@dataclass(frozen=True, kw_only=True)
class WithReturns(Retold):
    """The groups of `base`, which were recorded, with the agent `return_conditioned` told in each episode the return
    that it got, to be imitated (after Decision Transformer: Chen et al. 2021, arXiv:2106.01345, and upside-down
    reinforcement learning: Srivastava et al. 2019, arXiv:1912.02877).

    So all episodes are learned from, bad ones too, as examples of what they got; then the agent's `target` asks for
    better ones. An episode's return is its whole reward in the recipe. The episodes are played again with their
    recorded actions, in the same tasks, so that the world must be one that the actions and the task determine. An
    episode that then takes another course, gets other rewards, or no longer fits into the context is left out and
    counted in `returns_refused`; `returns_shown` counts the others.
    """

    unverified = "the abstracts of both papers and accounts of them were read, not their texts"
    name = "with_returns"
    what = "returns"
    agent_name = "return_conditioned"
    agent_type = ReturnConditioned

    def told(self, agent: Agent, score: Score, seed: int) -> Agent:
        assert isinstance(agent, ReturnConditioned)
        return replace(agent, target=score.total)
