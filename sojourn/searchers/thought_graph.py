"""An agent that makes actions of actions: it tries, improves and combines them, as it thinks best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, Tried
from sojourn.searchers.tree_search import TreeSearch
from sojourn.types import Turn

CHOOSE = (
    "Before you act, you may think about what to do. Actions that were tried in a copy of the world, and what they "
    "were worth:\n{actions}\nSay what comes next: `new` for another action, `refine 1` for a better form of action 1, "
    "`combine 1 2` for one action made of two, or `stop` to take the best."
)
REFINE = "This action was tried in a copy of the world, and was worth {worth}:\n{action}\nSay a better action."
COMBINE = "These actions were tried in a copy of the world:\n{actions}\nSay one action that has the best of them."
OPERATION = re.compile(r"\b(new|refine|combine|stop)\b[^\w]*(\d{1,4})?\W*(\d{1,4})?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ThoughtGraph(TreeSearch):
    """Begins with `width` sampled actions, and then `operations` times asks the policy what to make of those that it
    has: a new one, a better form of one (refine), one made of two (combine), or no more (ARIES: Gimenes et al. 2025,
    arXiv:2502.21208, by accounts: a model chooses the next transformation of a graph of thoughts, which another one
    carries out). It takes the action that was worth most.

    An action is worth what `rollouts` plays after it earn in the mean (0: the reward so far), of equal ones the first
    that was found. An answer that names no operation counts as `new`. The questions and answers stay out of the play,
    and their tokens count as tokens of the search. What was refined or combined was sampled after another prompt than
    the play's, so that it cannot be trained. Of the authors' transformations, decomposing a problem and reducing the
    graph have no counterpart; they sample the choice several times.
    """

    operations: Annotated[int, Range(1)] = 4

    @property
    def unsampled(self) -> bool:
        return True

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        found: list[tuple[Tried, float]] = []
        waiting = await ahead.expand(ahead.root, self.width)
        for asked in range(self.operations + 1):
            for tried in waiting:
                valued = await ahead.valued(tried.position, self.rollouts, self.critic)
                found.append((tried, worth := valued.worths[ahead.name]))
                ahead.consider(tried.text, worth, tried.times)
                if self.ends_search(ahead, valued):
                    return ahead.plan(valued.best)
            if asked == self.operations or not found or not ahead.left:
                break
            operation = await self._chosen(ahead, found)
            if operation is None:
                break
            waiting = await self._made(ahead, found, operation)
        best = max(found, key=lambda one: one[1], default=None)
        return ahead.plan(best[0].position if best is not None else None)[:1]

    async def _chosen(self, ahead: Ahead, found: Sequence[tuple[Tried, float]]) -> list[int] | None:
        """Returns the indices of the actions to make one of, none for a new action; `None` to stop."""
        listed = "\n".join(f"{n}. {tried.text} ({worth:.2f})" for n, (tried, worth) in enumerate(found, 1))
        match = OPERATION.search(await ahead.ask(ahead.root, CHOOSE.replace("{actions}", listed)))
        if match is None:
            return []
        name = match[1].lower()
        count = {"refine": 1, "combine": 2}.get(name, 0)
        indices = [int(number) - 1 for number in match.groups()[1:] if number is not None][:count]
        known = len(indices) == count and all(0 <= index < len(found) for index in indices)
        return None if name == "stop" else indices if known else []

    async def _made(self, ahead: Ahead, found: Sequence[tuple[Tried, float]], of: Sequence[int]) -> list[Tried]:
        """Returns what an operation makes, none where it comes to nothing or to what there was."""
        if not of:
            made = await ahead.expand(ahead.root, 1)
        else:
            texts = [found[index][0].text for index in of]
            if len(of) == 1:
                question = REFINE.replace("{worth}", f"{found[of[0]][1]:.2f}").replace("{action}", texts[0])
            else:
                question = COMBINE.replace("{actions}", "\n".join(texts))
            text = (await ahead.ask(ahead.root, question)).strip()
            position = await ahead.play_on(ahead.root, 1, text) if text else None
            made = [] if position is None else [Tried(position, ahead.name, text, 1)]
        known = {tried.text for tried, _ in found}
        return [tried for tried in made if tried.text not in known]
