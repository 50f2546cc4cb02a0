"""A game of TextArena under way, with luck of its own."""

from __future__ import annotations

import copy
import hashlib
import importlib
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from sojourn.envs.about import require_module
from sojourn.errors import ActionError
from sojourn_worlds.textarena.games import GAMES

LINES = 1_200  # actions that are tried when looking ahead against a known opponent
BUGS = (ValueError, IndexError, KeyError, TypeError, AttributeError)  # which words of the player's bring about


class RefusedError(Exception):
    """The game calls the action invalid."""


def _refuse(*given: Any, **named: Any) -> NoReturn:
    """In the place of the game's own count of errors, which would change the game."""
    raise RefusedError(next((text for text in (*given, *named.values()) if isinstance(text, str)), ""))


_playing = threading.local()  # `luck`: of the match that a thread is in


class Lucks:
    """The module `random` as TextArena sees it: draws are from the luck of the match that the thread is in; where it is
    in none, from that module."""

    def __getattr__(self, name: str) -> Any:
        if not hasattr(random.Random, name):
            return getattr(random, name)

        def draw(*given: Any, **named: Any) -> Any:
            return getattr(getattr(_playing, "luck", random), name)(*given, **named)

        return draw


@cache
def _prepared(name: str) -> Any:
    """TextArena, with the modules of a game seeing `Lucks`: they draw from the one generator that all would share."""
    ta = require_module("textarena", "sojourn-worlds[textarena]", "textarena")
    entry = ta.envs.registration.ENV_REGISTRY[name].entry_point
    importlib.import_module(entry.partition(":")[0])
    for module in [module for key, module in sys.modules.items() if key.partition(".")[0] == "textarena"]:
        if getattr(module, "random", None) is random:
            module.random = Lucks()  # pyright: ignore[reportAttributeAccessIssue]
    return ta


@dataclass
class Match:
    """The play, which draws from a generator of its own: plays beside each other do not touch."""

    name: str
    seed: int
    turns: int
    seats: tuple[str, ...]
    alone: str = ""
    partial: bool = False
    used: int = 0  # actions of all players
    over: bool = False
    said: list[str] = field(default_factory=list)
    inbox: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    env: Any = None
    luck: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        ta = _prepared(f"{self.name}-raw")
        self.luck.seed(f"textarena {self.seed}")
        with self._own_luck():
            self.env = ta.make(f"{self.name}-raw")
            self.env.reset(num_players=len(self.seats), seed=self.seed)
        self.env.state.set_invalid_move = _refuse

    def __deepcopy__(self, memo: object) -> Match:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.env, twin.luck = copy.deepcopy(self.env), copy.copy(self.luck)
        twin.said = list(self.said)
        twin.inbox = {seat: list(letters) for seat, letters in self.inbox.items()}
        return twin

    @property
    def mover(self) -> str | None:
        if self.over or self.used >= self.turns:
            return None
        return self.seats[self.env.state.current_player_id]

    def brief(self, seat: str) -> str:
        self._collect()
        letters = self.inbox[seat]
        self.inbox[seat] = [letter for letter in letters if letter[1] != "PROMPT"]
        prompt = "\n".join(text.strip() for _, kind, text in letters if kind == "PROMPT")
        return f"{prompt}\nSay one action, in square brackets."

    def view(self, seat: str) -> str:
        """What was said to the seat since it last acted; of several boards the last alone."""
        self._collect()
        letters, self.inbox[seat] = self.inbox[seat], []
        own = self.seats.index(seat)
        boards = [number for number, letter in enumerate(letters) if letter[1] == "GAME_BOARD"]
        lines = []
        for number, (sender, kind, text) in enumerate(letters):
            if (kind == "PLAYER_ACTION" and sender == own) or number in boards[:-1]:
                continue
            lines.append(f"Player {sender}: {text.strip()}" if kind == "PLAYER_ACTION" else text.strip())
        return "\n".join(lines) or "It is your turn."

    def choices(self) -> Sequence[str]:
        return [action for action in GAMES[self.name].actions if self.takes(action)]

    def takes(self, action: str) -> bool:
        try:
            copy.deepcopy(self).play(action)
        except ActionError:
            return False
        return True

    def play(self, said: str) -> Mapping[str, float]:
        text = said.strip()
        if not text:
            raise ActionError("Nothing was said: say one action, in square brackets.")
        if "[" not in text and "]" not in text:
            text = f"[{text}]"
        if text.count("[") != 1 or text.count("]") != 1:
            raise ActionError("Those are several actions: say one, in square brackets.")
        before, luck = copy.deepcopy(self.env), copy.copy(self.luck)
        try:
            with self._own_luck():
                done, _ = self.env.step(action=text)
        except (RefusedError, *BUGS) as error:
            self.env, self.luck = before, luck
            reason = str(error) if isinstance(error, RefusedError) else f"The game cannot read {text[:30]!r}."
            raise ActionError(reason or f"{text[:30]!r} is not possible here.") from None
        self.used += 1
        self.said.append(text)
        self.over = bool(done) or self.env.state.done
        if not self.over:
            return {}
        return {name: self._earned(number) for number, name in enumerate(self.seats)}

    def success(self) -> bool:
        return self.over and self._raw(self.seats.index(self.alone)) >= (1 if len(self.seats) == 1 else 1e-9)

    def info(self) -> Mapping[str, float]:
        return {"moves": float(self.used)}

    def key(self) -> str:
        """Everything that was done: what is hidden in the game follows from it."""
        said = hashlib.sha256(repr(self.said).encode()).hexdigest()[:16]
        return f"textarena/{self.name}/{self.seed}/{self.used}/{said}"

    def expert(self) -> str:
        kind = GAMES[self.name]
        if kind.expert is not None:
            return kind.expert(self.env)
        return foresee(self)

    def _raw(self, number: int) -> float:
        return float((self.env.state.rewards or {}).get(number, 0))

    def _earned(self, number: int) -> float:
        raw = max(-1.0, min(1.0, self._raw(number)))
        if len(self.seats) > 1:
            return raw
        return max(0.0, raw) if self.partial else float(raw >= 1)

    def _collect(self) -> None:
        for seat, name in enumerate(self.seats):
            letters = self.env.state.observations[seat]
            self.env.state.observations[seat] = []
            held = self.inbox.setdefault(name, [])
            held += [(sender, kind.name, str(text)) for sender, text, kind in letters]

    @contextmanager
    def _own_luck(self) -> Iterator[None]:
        _playing.luck = self.luck
        try:
            yield
        finally:
            del _playing.luck


def scripted(match: Match) -> str:
    """A random action among those that the game takes, by the seed and the number of the move."""
    actions = list(GAMES[match.name].actions)
    random.Random(f"textarena {match.seed} {match.used}").shuffle(actions)
    for action in actions:
        if match.takes(action):
            return action
    raise RuntimeError(f"textarena: {match.name} takes none of the actions that are known of it: this is a bug here")


def foresee(match: Match) -> str:
    """The first action of the shortest line that wins against the opponent, whose actions follow from the seed; where
    none is found by trying, the first action that the game takes."""
    budget, depth = [LINES], 1
    while budget[0] > 0:
        found, deeper = _line(match, depth, budget)
        if found:
            return found
        if not deeper:
            break
        depth += 1
    return match.choices()[0]


def _line(match: Match, depth: int, budget: list[int]) -> tuple[str, bool]:
    deeper = False
    for action in GAMES[match.name].actions:
        budget[0] -= 1
        if budget[0] < 0:
            return "", False
        then = copy.deepcopy(match)
        try:
            then.play(action)
        except ActionError:
            continue
        while then.mover not in (None, match.alone):
            then.play(scripted(then))
        if then.mover is None:
            if then.success():
                return action, False
        elif depth == 1:
            deeper = True
        else:
            found, more = _line(then, depth - 1, budget)
            if found:
                return action, False
            deeper = deeper or more
    return "", deeper
