"""Forks failed plays where they left the way of the world's expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from sojourn.branching.budget import TreeBudget
from sojourn.branching.rule import BranchPoint, Fork
from sojourn.config.fields import Range
from sojourn.same_action import same_action, same_kind


@dataclass(frozen=True, kw_only=True)
class ExpertDecisions(TreeBudget):
    """Forks a play that did not succeed, at its end, before the first `count` of its own turns in which it did not do
    what the world's expert would have done.

    The expert is asked before each turn, and only compared with: all that is played is the policy's own. By `differs`,
    an action differs as an "action", or only by its "kind": another tool, or another first word. A turn that could not
    be read differs. `width` - 1 branches begin before each of these turns, which do the same, up to `depth` forks on a
    path.

    CSO (Li et al. 2026, arXiv:2602.03412, of which the abstract was read) also goes back into failed plays to the steps
    at which an expert would do better: a process reward model chooses them, the expert acts, and the policy goes on; if
    that succeeds, the step was critical. ATLaS (Chen et al. 2025, arXiv:2503.02197, accounts read) has a large model
    choose the critical steps of an expert's own plays. Here no model is asked: the first departures are the choice.
    """

    width: Annotated[int, Range(2)] = 2
    count: Annotated[int, Range(1)] = 1
    depth: Annotated[int, Range(1)] = 1
    differs: Literal["action", "kind"] = "action"

    env_needs = frozenset({"expert"})

    def __call__(self, point: BranchPoint) -> Sequence[Fork]:
        if not point.over or point.forks >= self.depth or point.success:
            return ()
        same = same_action if self.differs == "action" else same_kind
        left: list[int] = []
        for number, (turn, expert) in enumerate(zip(point.turns(), point.experts, strict=False)):
            if expert is not None and (turn.message is None or not same(turn.message, expert)):
                left.append(number)
        own = [number for number in left if number >= point.began][: self.count]
        return [Fork(number, self.width - 1, "not as the expert") for number in own]
