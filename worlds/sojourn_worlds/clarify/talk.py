"""A play whose user sits in a seat: questions and answers are in free text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sojourn.envs.user_seat import AWAITED, LONGEST, STOP, SeatUser
from sojourn_worlds.clarify.order import Order
from sojourn_worlds.clarify.wish import Wish

NOBODY = SeatUser("")


@dataclass
class Talk(Order):
    """Order what the user wants. A question costs a little, a wrong order much: ask only about what you have to know.

    Ask in your own words. Order with a value for every attribute that applies, such as order("small, blue").
    """

    user: SeatUser = NOBODY

    def ask(self, question: str) -> str:  # type: ignore[override]  # as the tool's parameter is called here
        """Ask the user a question."""
        if not 0 < len(question.strip()) <= LONGEST:
            raise ValueError(f"{len(question)} characters, but from 1 to {LONGEST} can be asked at once")
        self.user = self.user.told(question.strip())
        self.asked += (question.strip().lower(),)
        self.info = {}
        return AWAITED

    def state_key(self) -> str:
        return json.dumps([super().state_key(), self.user.talk, self.user.waiting])

    def _times(self, name: str) -> int:
        return sum(_names(question, name) for question in self.asked)


@dataclass
class SeatTalk(Talk):
    """The same, with what the seat of the user needs; this is no part of the agent's tools."""

    @classmethod
    def of(cls, wish: Wish, data: Mapping[str, Any]) -> SeatTalk:
        talk = cls(wish, data)
        talk.user = SeatUser(instructions(wish), talk._request())
        return talk

    def hear(self, text: str) -> str:
        self.user = self.user.answered(text)
        return f"User: {text.replace(STOP, '').strip()}"

    def user_expert(self) -> str:
        """Returns what the scripted user says about the attributes that the question names."""
        asked = self.user.waiting.lower()
        answers = [self._answer(a.name) for a in self.wish.attributes if _names(asked, a.name)]
        return " ".join(answers) or "What do you mean?"


def instructions(wish: Wish) -> str:
    """Returns the wish in words, for the seat of the user."""
    wanted = [
        f"- {a.name}: {wish.values[a.name]}" for a in wish.applying(wish.values) if a.name not in wish.indifferent
    ]
    minds = [f"You do not mind the {a.name}." for a in wish.attributes if a.name in wish.indifferent]
    needless = [f"You need no {a.name}." for a in wish.attributes if a not in wish.applying(wish.values)]
    lines = [f"You want to order a {wish.thing}. You want:", *wanted, *minds, *needless]
    if hints := [a.name for a in wish.attributes if a.name in wish.indirect]:
        lines.append(f"When you are asked about {', '.join(hints)}: name one option that you do not want, no more.")
    return "\n".join(lines)


def _names(question: str, attribute: str) -> bool:
    return re.search(rf"\b{attribute}\b", question) is not None
