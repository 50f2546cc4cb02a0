"""One episode: click links, go back, and stop on the page, or answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step, Task
from sojourn_worlds.search.marking import gives_away, normalised
from sojourn_worlds.search.play import clean
from sojourn_worlds.webnav.site import Link, Screen, Site

PAGE = "You visit a web site. Say one action: {actions}, stop.\nStop on the page that says: {query}"
ANSWER = "You visit a web site. Say one action: {actions}, answer[text].{looked}\nAnswer the question: {query}"
LOOKED = " A choice between what the question names counts only if you have been on the pages that decide it."
ACTION = re.compile(r"(click|answer)\[([^\n]*)\]|back|more|stop", re.IGNORECASE)
LONGEST_ANSWER = 200


class Rules(NamedTuple):
    """The fields of the family that shape an episode."""

    letters: int
    keys: float
    turns: int
    choices: bool


class State(NamedTuple):
    trail: tuple[str, ...]  # the pages on the way here, this one last
    screen: int = 0
    turns_taken: int = 0  # actions
    visited: frozenset[str] = frozenset()
    paid: int = 0  # how many key nodes were rewarded


@dataclass
class Visit:
    site: Site
    task: Task
    rules: Rules
    state: State = field(init=False)
    done: bool = False

    def __post_init__(self) -> None:
        self.state = State((self.site.start,), visited=frozenset({self.site.start}))

    async def start(self) -> Observation:
        actions = ["click[number]", "back", *(["more"] if self.site.longest > self.rules.letters else [])]
        form = PAGE if self.data["goal"] == "page" else ANSWER
        looked = LOOKED if self._given_away() else ""
        text = form.format(actions=", ".join(actions), query=self.data["query"], looked=looked)
        return self._observe((Message(Role.SYSTEM, text),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a web site was given an action after the visit's end: visit each once")
        verb, argument = self._parse(action.text)
        if verb in ("stop", "answer"):
            return self._end(agent, self._right(verb, argument))
        state = self._moved(verb, argument)
        reached = self._reached(state)
        reward = self.rules.keys * (reached - state.paid) / max(1, len(self.data["keys"]))
        self.state = state._replace(turns_taken=state.turns_taken + 1, paid=reached)
        if self.state.turns_taken >= self.rules.turns:
            return self._end(agent, False, reward)
        return Step(self._observe(), {agent: reward}, info={"webnav/keys": float(reached)})

    async def close(self) -> None:
        pass

    async def fork(self) -> Visit:
        copy = replace(self)  # all that changes is the frozen state and a flag
        copy.state, copy.done = self.state, self.done
        return copy

    def state_key(self) -> str:
        known = (*self.state[:3], sorted(self.state.visited), self.state.paid)
        return f"{self.task.id}/{hashlib.sha256(repr(known).encode()).hexdigest()[:24]}"

    def expert(self) -> str:
        """Returns the next action on the path of the fewest clicks, going back included, to the missing key nodes and
        the end.
        """
        missing = self.data["keys"][self.state.paid :]
        wanted = missing[0] if missing else self.data["target"]
        here = self.state.trail[-1]
        if here == wanted or (not missing and self.data["goal"] == "answer"):
            return "stop" if self.data["goal"] == "page" else f"answer[{self.data['answers'][0]}]"
        clicks = self.site.clicks_to(wanted)
        ways = [(back + clicks[page], back) for back, page in enumerate(self.state.trail[::-1]) if page in clicks]
        if not ways:
            raise InfrastructureError(f"no way leads from {here} to {wanted}: this is a bug in the site's tasks")
        if min(ways)[1]:
            return "back"
        closer = [n for n, to in self.shown.links.items() if clicks.get(to, len(clicks)) == clicks[here] - 1]
        return f"click[{closer[0]}]" if closer else "more"

    @property
    def data(self) -> Mapping[str, Any]:
        return self.task.data

    @property
    def screens(self) -> list[Screen]:
        """Returns the parts of the current page."""
        return self.site.pages[self.state.trail[-1]].screens(self.rules.letters)

    @property
    def shown(self) -> Screen:
        return self.screens[self.state.screen]

    def _parse(self, text: str) -> tuple[str, str]:
        match = ACTION.fullmatch(text.strip()) if len(text) < 1000 else None
        verb = (match[1] or match[0]).lower() if match else ""
        end = "stop" if self.data["goal"] == "page" else "answer"
        if match is None or verb in {"stop", "answer"} - {end}:
            shape = "stop" if end == "stop" else "answer[text]"
            raise ActionError(f'"{text.strip()[:30]}" is no action, say click[number], back or {shape}.')
        argument = " ".join((match[2] or "").split())
        if verb == "answer" and not (normalised(argument) and len(argument) <= LONGEST_ANSWER):
            raise ActionError(f"An answer has 1 to {LONGEST_ANSWER} letters, say answer[text].")
        if verb == "click" and argument not in map(str, self.shown.links):
            raise ActionError(
                f'There is no link "{argument[:10]}" here, say click[number] with a number that is shown.'
            )
        if verb == "back" and len(self.state.trail) == 1:
            raise ActionError("This is the first page, there is nothing to go back to.")
        if verb == "more" and len(self.screens) == 1:
            raise ActionError("The page has no more than this.")
        return verb, argument

    def _moved(self, verb: str, argument: str) -> State:
        state = self.state
        if verb == "more":
            return state._replace(screen=(state.screen + 1) % len(self.screens))
        if verb == "back":
            return state._replace(trail=state.trail[:-1], screen=0)
        to = self.shown.links[int(argument)]
        return state._replace(trail=(*state.trail, to), screen=0, visited=state.visited | {to})

    def _reached(self, state: State) -> int:
        """Returns how many key nodes count: in their order, each once those before it have been visited too."""
        keys = self.data["keys"]
        paid = state.paid
        while paid < len(keys) and keys[paid] in state.visited:
            paid += 1
        return paid

    def _right(self, verb: str, argument: str) -> bool:
        if verb == "stop":
            return self.state.trail[-1] == self.data["target"]
        looked = not self._given_away() or self.state.visited >= set(self.data["keys"])
        return looked and normalised(argument) in map(normalised, self.data["answers"])

    def _given_away(self) -> bool:
        """Returns whether a guess is likely to be right, so that the pages that decide must have been visited."""
        return gives_away(self.data["query"], self.data["answers"])

    def _end(self, agent: str, right: bool, reward: float = 0.0) -> Step:
        """Returns the last step, which pays what the key nodes leave of 1, if the end is right."""
        self.done = True
        reward += (1.0 - (self.rules.keys if self.data["keys"] else 0.0)) * right
        info = {"webnav/keys": float(self.state.paid)}
        return Step(None, {agent: reward}, done=True, success=right, info=info)

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        page, count = self.site.pages[self.state.trail[-1]], len(self.screens)
        part = f" ({self.state.screen + 1} of {count})" if count > 1 else ""
        text = f"{page.title}{part}\n{self.shown.text}"
        choices = tuple(self._choices()) if self.rules.choices else ()
        return Observation((Message(Role.USER, text),), system=system, choices=choices)

    def _choices(self) -> list[str]:
        actions = [f"click[{number}]" for number in self.shown.links]
        actions += ["back"] if len(self.state.trail) > 1 else []
        actions += ["more"] if len(self.screens) > 1 else []
        if self.data["goal"] == "page":
            return [*actions, "stop"]
        return [*actions, *(f"answer[{name}]" for name in self._names())]

    def _names(self) -> list[str]:
        """Returns possible answers: the names on the visited pages, or else the words of these pages and their
        links."""
        pages = [self.site.pages[path] for path in sorted(self.state.visited)]
        if self.site.corpus is not None:
            names = [name for page in pages for name in self.site.corpus.names_in(f"{page.title}. {page.text}")]
        else:
            links = [piece.label for page in pages for piece in page.pieces if isinstance(piece, Link)]
            names = [*(page.title for page in pages), *links]
        fit = [clean(name) for name in dict.fromkeys(names) if normalised(name) and len(name) <= LONGEST_ANSWER]
        return list(dict.fromkeys(fit))
