"""The state of a negotiation of two seats: their possible acts, and the outcome so far."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field, replace
from typing import Any

from sojourn_worlds.social.scene import SEATS, Scene, written

LONGEST = 300  # characters of a sentence
RUDE = frozenset({"idiot", "stupid", "liar", "fool", "moron", "loser", "hate", "damn"})
OTHER = {"ann": "bob", "bob": "ann"}


@dataclass
class Seat:
    """Holds what one of the two has done."""

    offers: int = 0
    learnt: set[str] = field(default_factory=set)  # issues of which it was truly told what the other likes best
    told: set[str] = field(default_factory=set)  # secrets of its own that it gave away
    wrongs: int = 0  # lies and rude words
    left: bool = False


@dataclass
class Talk:
    """You negotiate. Get a deal that is good for you and that the other accepts.

    Do not lie, do not insult, and never say your secret. With no deal you gain nothing.
    """

    scene: Scene
    turns: int
    turns_taken: int = 0
    current_seat: str = "ann"
    bid: dict[str, str] | None = None  # on the table, of the one who does not move
    asked: str = ""  # the issue that the current seat was asked about last
    deal: dict[str, str] | None = None
    seats: dict[str, Seat] = field(default_factory=lambda: {seat: Seat() for seat in SEATS})
    heard: str = ""  # what the current seat hears

    def __deepcopy__(self, memo: dict[int, Any]) -> Talk:
        return replace(self, seats=copy.deepcopy(self.seats, memo))

    @property
    def over(self) -> bool:
        return self.deal is not None or self.turns_taken >= self.turns or any(seat.left for seat in self.seats.values())

    def say(self, text: str) -> None:
        """Say something."""
        self._speak(text, least=1)
        self._pass(f'says "{text.strip()}"')

    def ask(self, issue: str) -> None:
        """Ask what the other likes best."""
        issue = self._issue(issue)
        self._pass(f"asks which {issue} you like best. Answer with tell")
        self.asked = issue

    def tell(self, issue: str, option: str) -> None:
        """Tell what you like best."""
        issue = self._issue(issue)
        option = option.strip().lower()
        if option not in self.scene.issues[issue]:
            raise ValueError(f"{option[:30]!r} is no {issue}, use one of {', '.join(self.scene.issues[issue])}")
        if option in self.scene.favourites(self.current_seat, issue):
            self.seats[OTHER[self.current_seat]].learnt |= {issue}
        else:
            self.seats[self.current_seat].wrongs += 1
        self._pass(f"likes {issue}={option} best")

    def offer(self, deal: str, text: str = "") -> None:
        """Offer a deal, with an option for every issue."""
        offered = self._deal(deal)
        self._speak(text)
        self.seats[self.current_seat].offers += 1
        self._pass(f"offers {written(offered)}" + (f' and says "{text.strip()}"' if text.strip() else ""))
        self.bid = offered

    def accept(self) -> None:
        """Accept what the other offered last."""
        if self.bid is None:
            raise ValueError("there is no offer on the table, make one")
        self.deal = self.bid
        self._pass("accepts")

    def leave(self) -> None:
        """Leave without a deal: this ends the talk."""
        self.seats[self.current_seat].left = True
        self._pass("leaves")

    @property
    def key(self) -> tuple[Any, ...]:
        seats = [(s.offers, sorted(s.learnt), sorted(s.told), s.wrongs, s.left) for s in self.seats.values()]
        return self.turns_taken, self.current_seat, self.bid, self.asked, self.deal, seats, self.heard

    def _issue(self, issue: str) -> str:
        name = issue.strip().lower()
        if name not in self.scene.issues:
            raise ValueError(f"there is no issue {issue[:30]!r}, use one of {', '.join(self.scene.issues)}")
        return name

    def _deal(self, text: str) -> dict[str, str]:
        given: dict[str, str] = {}
        for part in filter(None, (piece.strip() for piece in text.lower().split(","))):
            issue, _, option = (piece.strip() for piece in part.partition("="))
            if issue not in self.scene.issues or option not in self.scene.issues[issue]:
                expected = written(self.scene.deals[0])
                raise ValueError(f"{part[:30]!r} is no part of a deal, write it as in {expected}")
            if issue in given:
                raise ValueError(f"{issue} stands twice in the deal")
            given[issue] = option
        if missing := [issue for issue in self.scene.issues if issue not in given]:
            raise ValueError(f"the deal lacks {', '.join(missing)}")
        return {issue: given[issue] for issue in self.scene.issues}

    def _speak(self, text: str, least: int = 0) -> None:
        if not least <= len(text.strip()) <= LONGEST:
            raise ValueError(f"{len(text)} characters, but from {least} to {LONGEST} can be said at once")
        me = self.seats[self.current_seat]
        low = text.lower()
        me.told |= {self.scene.secrets[self.current_seat]} if self.scene.secrets[self.current_seat] in low else set()
        me.wrongs += len(RUDE & set(re.findall(r"\w+", low)))

    def _pass(self, what: str) -> None:
        """Passes the turn to the other seat, which hears what was done."""
        self.heard = f"{self.current_seat.capitalize()} {what}."
        self.turns_taken += 1
        self.bid, self.asked = None if what != "accepts" else self.bid, ""
        self.current_seat = OTHER[self.current_seat]
