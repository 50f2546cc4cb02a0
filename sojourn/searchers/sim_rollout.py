"""An agent that sees what its own next turns would lead to before it acts, and may then do something else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sojourn.call_text import action_text
from sojourn.config.fields import Range
from sojourn.searchers.ahead import Ahead, Position
from sojourn.searchers.search import Search
from sojourn.types import Message, Turn

QUESTION = (
    "Before you act: this is what would really happen if you went on as you would now.\n{simulated}\n"
    "Say what you do now, which may be the same or something else."
)
REFINED = "refined"  # the number in a turn's info that says so


@dataclass(frozen=True, kw_only=True)
class SimRollout(Search):
    """Goes on for `turns` turns in a copy of the play, shows the policy what that led to, and does what it says then;
    with `rounds` above 1 this is shown in the same way, as long as it says something else (SimRollout of Dyna-Mind: Yu
    et al. 2025, arXiv:2510.09577, by accounts: the plan in the policy's reasoning is carried out in the world, and the
    policy refines its response by the states that it really leads to).

    The `question` follows what the seat is shown, and has the simulated turns in the place of `{simulated}`: each
    action, and the first `shown` characters of what the world answered. The policy sees no reward. A turn that says
    something else than the first simulation has the info `refined` = 1, which is what the estimator `dyna_grpo` reads;
    it was sampled after another prompt than the play's, so that it can be imitated only. An answer that is empty, or
    the same, changes nothing. The authors read the plan from the policy's thoughts; here it is what the policy does.
    """

    turns: Annotated[int, Range(1)] = 3
    rounds: Annotated[int, Range(1)] = 1
    shown: Annotated[int, Range(1)] = 200
    question: str = QUESTION

    unverified = "the paper's text could not be read, its abstract and accounts of it were"

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{simulated}" not in self.question:
            raise ValueError(
                f"question = {self.question!r} does not show the turns: put {{simulated}} where they are to stand"
            )

    @property
    def unsampled(self) -> bool:
        return True

    async def search(self, ahead: Ahead) -> Sequence[Turn]:
        chosen = first = await ahead.play_on(ahead.root, self.turns)
        for _ in range(self.rounds):
            if chosen is None or not ahead.left:
                break
            ahead.consider(ahead.first_text(chosen), math.nan)
            question = self.question.replace("{simulated}", self._told(ahead, chosen))
            answer = (await ahead.ask(ahead.root, question)).strip()
            if answer in ("", ahead.first_text(chosen)):
                break
            chosen = await ahead.play_on(ahead.root, self.turns, answer) or chosen
        if chosen is not first:
            ahead.info[REFINED] = 1.0
        return ahead.plan(chosen)[:1]

    def _told(self, ahead: Ahead, position: Position) -> str:
        """Returns what a seat did in a copy, and what the world showed it after each action."""
        turns = ahead.new_turns(position, ahead.root, ahead.name)
        seen = [turn.observed for turn in turns[1:]] + [() if position.over else position.moment.seen.messages]
        lines = list[str]()
        for turn, messages in zip(turns, seen, strict=True):
            action = "(malformed)" if turn.message is None else action_text(turn.message)
            lines.append(f"{len(lines) + 1}. {action}\n   {self._shortened(messages)}")
        return "\n".join(lines)

    def _shortened(self, messages: Sequence[Message]) -> str:
        text = " ".join(" ".join(message.text for message in messages).split())
        return f"shows: {text[: self.shown]}" if messages else "ends the episode"
