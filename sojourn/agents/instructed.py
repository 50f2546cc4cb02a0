"""An agent that gives the model instructions of the user's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sojourn.agents.plain import Plain
from sojourn.agents.told import ToldSeat, require_base
from sojourn.config.fields import NONBLANK, Kind
from sojourn.protocols import Agent, AgentContext


@dataclass(frozen=True, kw_only=True)
class Instructed:
    """Has the agent `base` act, and shows the model `text` at the end of the world's system message: instructions,
    rules, or worked examples, as prompts with a few of them have (Brown et al. 2020, arXiv:2005.14165).

    Every context shows it, and all episodes share its computation. Training with it teaches the model to act with it.
    """

    text: Annotated[str, NONBLANK]
    base: Annotated[Agent, Kind("agent")] = field(default_factory=Plain)

    def __post_init__(self) -> None:
        require_base(self.base)

    def seat(self, context: AgentContext) -> ToldSeat:
        return ToldSeat(agent="instructed", acting=self.base, base=self.base.seat(context), text=self.text)
