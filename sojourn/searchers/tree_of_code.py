"""An agent that tries programs until some run, and goes on from what most of these came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, Position
from sojourn.searchers.search import Search
from sojourn.types import Turn


@dataclass(frozen=True, kw_only=True)
class TreeOfCode(Search):
    """Samples `width` actions, and after each that went wrong, which sees its error, as many further ones, down to
    `depth` actions in a row; then it goes on from one that came to what most came to, of those that went well
    (Tree-of-Code: Ni et al. 2024, arXiv:2412.15305, by accounts: programs grow a tree until they run, without any
    knowledge of the truth, and their outputs are voted on).

    An action went wrong if the world reports an `error` of it or refuses it (`malformed`). Two came to the same if the
    world shows the same after them or, where the play is over, if they are the same. Each way to the same counts as
    often as it was sampled; of equal counts the first that was found wins. No reward is asked. Where all went wrong,
    the policy acts alone.

    The authors' nodes are programs for the whole task, written by a model drawn from ten after a prompt drawn from six;
    here they are actions of the policy, at the temperature of the run.
    """

    width: Annotated[int, Range(1)] = 3
    depth: Annotated[int, Range(1)] = 3

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        growing, went_well = [(ahead.root, -1)], dict[str, Position]()
        votes: Counter[str] = Counter()
        for _ in range(self.depth):
            failed: list[tuple[Position, int]] = []
            for position, parent in growing:
                for tried in await ahead.expand(position, self.width) if ahead.left else ():
                    wrong = _went_wrong(ahead, tried.position)
                    number = ahead.consider(tried.text, float(not wrong), tried.times, parent, tried.agent)
                    if wrong:
                        failed.append((tried.position, number))
                    else:
                        outcome = _outcome(tried.position, tried.text)
                        votes[outcome] += tried.times
                        went_well.setdefault(outcome, tried.position)
            growing = [one for one in failed if not one[0].over]
        return ahead.plan(went_well[votes.most_common(1)[0][0]]) if votes else []


def _went_wrong(ahead: Ahead, position: Position) -> bool:
    """Returns whether the seat's last action failed."""
    last = ahead.new_turns(position, ahead.root, ahead.name)[-1:]
    return any(turn.info.get(name, 0) > 0 for turn in last for name in ("error", "malformed"))


def _outcome(position: Position, action: str) -> str:
    """Returns what an action came to."""
    if position.over:
        return f"over: {action}"
    return "shown: " + "\n".join(message.text for message in position.moment.seen.messages)
