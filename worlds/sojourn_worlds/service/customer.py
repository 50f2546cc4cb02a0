"""A scripted customer: says what it wants, answers what it is asked, and knows only what its case says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sojourn_worlds.service.shop import Case

NO_MORE = "No, that is all."


@dataclass
class Customer:
    """Recognises a question by its words; several in one sentence are all answered."""

    case: Case
    stated: int = 1  # how many of its wishes it has named
    told: set[str] = field(default_factory=set)  # "email", "name", "detail 0", ...
    finished: bool = False  # has said that there is nothing else

    def open(self) -> str:
        return self.case.wishes[0].said

    def reply(self, text: str) -> str:
        low = text.lower()
        if re.search(r"\b(confirm|proceed|go ahead|shall i|are you sure)\b", low):
            return self._confirm(low)
        answers = [*self._identity(low), *self._details(low)]
        if re.search(r"\b(any|some)thing (else|more)\b", low):
            answers.append(self._next())
        if answers:
            return " ".join(answers)
        wish = self.case.wishes[self.stated - 1]
        return "Thank you." if wish.told(text, current=True) is not None else f"I do not understand. {wish.said}"

    def _confirm(self, low: str) -> str:
        mine = [wish.order for wish in self.case.wishes[: self.stated]]
        named = re.findall(r"w\d{4}", low)
        if not named:
            return "Please tell me the number of the order first."
        return "Yes." if all(order.upper() in mine for order in named) else "No, not that order."

    def _identity(self, low: str) -> list[str]:
        facts, answers = self.case.database["users"][self.case.user], []
        if re.search(r"e-?mail", low):
            known = self.case.knows_email
            answers.append(f"My email is {facts['email']}." if known else "I do not remember my email.")
            self.told |= {"email"}
        if re.search(r"\b(name|zip|who are you|identify)", low):
            answers.append(f"I am {facts['name']}, zip code {facts['zip']}.")
            self.told |= {"name"}
        return answers

    def _details(self, low: str) -> list[str]:
        answers, wish = [], self.case.wishes[self.stated - 1]
        if "order" in low and re.search(r"\b(number|id|which)\b", low):
            known = self.case.knows_order or wish.stranger
            answers.append(f"It is order {wish.order}." if known else "I do not know the number of the order.")
        if re.search(r"\b(why|reason)\b", low) and (why := self._detail("cancel", low)):
            answers.append(f"The reason: {why}.")
        if "address" in low.replace("email address", "") and (where := self._detail("address", low)):
            answers.append(f"The new address is {where}.")
        return answers

    def _detail(self, kind: str, low: str) -> str:
        """Returns the detail of the order that is named, else of the first wish of the kind whose detail was not yet
        told.
        """
        stated = [(f"detail {n}", wish) for n, wish in enumerate(self.case.wishes[: self.stated]) if wish.kind == kind]
        named = [(key, wish) for key, wish in stated if wish.order.lower() in low] or stated
        if not named:
            return ""
        key, wish = next(((key, wish) for key, wish in named if key not in self.told), named[-1])
        self.told |= {key}
        return wish.detail

    def _next(self) -> str:
        if self.stated == len(self.case.wishes):
            self.finished = True
            return NO_MORE
        self.stated += 1
        return self.case.wishes[self.stated - 1].said


def instructions(case: Case) -> str:
    """Returns the same customer in words, for the seat that plays it."""
    facts = case.database["users"][case.user]
    lines = [f"You are {facts['name']}, zip code {facts['zip']}."]
    lines.append(f"Your email is {facts['email']}." if case.knows_email else "You do not remember your email.")
    lines.append("You want the following, one after the other; name the next when you are asked for anything else.")
    for wish in case.wishes:
        lines.append(f"- {wish.said}")
        if case.knows_order or wish.stranger:
            lines.append(f"  The number of that order is {wish.order}.")
        if wish.kind == "cancel":
            lines.append(f"  The reason: {wish.detail}.")
        if wish.kind == "address":
            lines.append(f"  The new address: {wish.detail}.")
    return "\n".join(lines)
