"""The state of a game of TextArena, with a random generator of its own."""

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
from sojourn.tasks.splits import draw_for_seed
from sojourn_worlds.textarena.games import GAMES

MAX_TRIED_ACTIONS = 1_200  # when looking ahead against a known opponent
GAME_ERRORS = (ValueError, IndexError, KeyError, TypeError, AttributeError)  # raised by games on texts they cannot read


class RefusedError(Exception):
    """The game calls the action invalid."""


def _refuse(*given: Any, **named: Any) -> NoReturn:
    """Replaces the game's own counting of invalid moves, which would change the game."""
    raise RefusedError(next((text for text in (*given, *named.values()) if isinstance(text, str)), ""))


_thread = threading.local()  # `rng`: that of the match which the thread is in


class ThreadRandom:
    """Stands for the module `random` in TextArena's modules: draws come from the generator of the match that the thread
    is in, and from the module `random` where it is in none.
    """

    def __getattr__(self, name: str) -> Any:
        if not hasattr(random.Random, name):
            return getattr(random, name)

        def draw(*given: Any, **named: Any) -> Any:
            return getattr(getattr(_thread, "rng", random), name)(*given, **named)

        return draw


@cache
def _prepared(name: str) -> Any:
    """Returns TextArena, with `ThreadRandom` in a game's modules in place of the one generator that all games would
    share.
    """
    ta = require_module("textarena", "sojourn-worlds[textarena]", "textarena")
    entry = ta.envs.registration.ENV_REGISTRY[name].entry_point
    importlib.import_module(entry.partition(":")[0])
    for module in [module for key, module in sys.modules.items() if key.partition(".")[0] == "textarena"]:
        if getattr(module, "random", None) is random:
            module.random = ThreadRandom()  # pyright: ignore[reportAttributeAccessIssue]
    return ta


@dataclass
class Match:
    """The state of one episode. It draws from a generator of its own, so that concurrent episodes do not affect each
    other.
    """

    name: str
    seed: int
    turns: int
    seats: tuple[str, ...]
    policy_seat: str = ""
    partial: bool = False
    turns_taken: int = 0  # of all players
    done: bool = False
    actions_taken: list[str] = field(default_factory=list)
    unread: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    env: Any = None
    rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        content = GAMES[self.name].content
        if content is None:
            self.env = self._begun(self.seed)
        else:
            self.env = draw_for_seed(
                self.seed, f"textarena {self.name}", lambda rng: self._begun(rng.getrandbits(31)), content
            )
        self.env.state.set_invalid_move = _refuse

    def _begun(self, seed: int) -> Any:
        """Returns the game after its setup by this seed."""
        ta = _prepared(f"{self.name}-raw")
        self.rng.seed(f"textarena {seed}")
        with self._own_rng():
            env = ta.make(f"{self.name}-raw")
            env.reset(num_players=len(self.seats), seed=seed)
        return env

    def __deepcopy__(self, memo: object) -> Match:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.env, twin.rng = copy.deepcopy(self.env), copy.copy(self.rng)
        twin.actions_taken = list(self.actions_taken)
        twin.unread = {seat: list(messages) for seat, messages in self.unread.items()}
        return twin

    @property
    def current_seat(self) -> str | None:
        if self.done or self.turns_taken >= self.turns:
            return None
        return self.seats[self.env.state.current_player_id]

    def system_prompt(self, seat: str) -> str:
        self._collect()
        messages = self.unread[seat]
        self.unread[seat] = [message for message in messages if message[1] != "PROMPT"]
        prompt = "\n".join(text.strip() for _, kind, text in messages if kind == "PROMPT")
        return f"{prompt}\nSay one action, in square brackets."

    def observe(self, seat: str) -> str:
        """Returns the messages to the seat since it last acted; of several boards it shows the last alone."""
        self._collect()
        messages, self.unread[seat] = self.unread[seat], []
        own = self.seats.index(seat)
        boards = [number for number, message in enumerate(messages) if message[1] == "GAME_BOARD"]
        lines = []
        for number, (sender, kind, text) in enumerate(messages):
            if (kind == "PLAYER_ACTION" and sender == own) or number in boards[:-1]:
                continue
            lines.append(f"Player {sender}: {text.strip()}" if kind == "PLAYER_ACTION" else text.strip())
        return "\n".join(lines) or "It is your turn."

    def choices(self) -> Sequence[str]:
        return [action for action in GAMES[self.name].actions if self.accepts(action)]

    def accepts(self, action: str) -> bool:
        try:
            copy.deepcopy(self).act(action)
        except ActionError:
            return False
        return True

    def act(self, action: str) -> Mapping[str, float]:
        text = action.strip()
        if not text:
            raise ActionError("Nothing was said: say one action, in square brackets.")
        if "[" not in text and "]" not in text:
            text = f"[{text}]"
        if text.count("[") != 1 or text.count("]") != 1:
            raise ActionError("Those are several actions: say one, in square brackets.")
        before, rng = copy.deepcopy(self.env), copy.copy(self.rng)
        try:
            with self._own_rng():
                done, _ = self.env.step(action=text)
        except (RefusedError, *GAME_ERRORS) as error:
            self.env, self.rng = before, rng
            reason = str(error) if isinstance(error, RefusedError) else f"The game cannot read {text[:30]!r}."
            raise ActionError(reason or f"{text[:30]!r} is not possible here.") from None
        self.turns_taken += 1
        self.actions_taken.append(text)
        self.done = bool(done) or self.env.state.done
        if not self.done:
            return {}
        return {name: self._reward_of(number) for number, name in enumerate(self.seats)}

    def success(self) -> bool:
        return self.done and self._raw_reward(self.seats.index(self.policy_seat)) >= (
            1 if len(self.seats) == 1 else 1e-9
        )

    def info(self) -> Mapping[str, float]:
        return {"moves": float(self.turns_taken)}

    def state_key(self) -> str:
        """Identifies the whole history of actions, since what is hidden in the game follows from it."""
        digest = hashlib.sha256(repr(self.actions_taken).encode()).hexdigest()[:16]
        return f"textarena/{self.name}/{self.seed}/{self.turns_taken}/{digest}"

    def expert(self) -> str:
        kind = GAMES[self.name]
        if kind.expert is not None:
            return kind.expert(self.env)
        return foresee(self)

    def _raw_reward(self, number: int) -> float:
        return float((self.env.state.rewards or {}).get(number, 0))

    def _reward_of(self, number: int) -> float:
        raw = max(-1.0, min(1.0, self._raw_reward(number)))
        if len(self.seats) > 1:
            return raw
        return max(0.0, raw) if self.partial else float(raw >= 1)

    def _collect(self) -> None:
        for seat, name in enumerate(self.seats):
            messages = self.env.state.observations[seat]
            self.env.state.observations[seat] = []
            held = self.unread.setdefault(name, [])
            held += [(sender, kind.name, str(text)) for sender, text, kind in messages]

    @contextmanager
    def _own_rng(self) -> Iterator[None]:
        _thread.rng = self.rng
        try:
            yield
        finally:
            del _thread.rng


def scripted(match: Match) -> str:
    """Returns a random action among those that the game accepts, drawn by the seed and the number of the move."""
    actions = list(GAMES[match.name].actions)
    random.Random(f"textarena {match.seed} {match.turns_taken}").shuffle(actions)
    for action in actions:
        if match.accepts(action):
            return action
    raise RuntimeError(f"textarena: {match.name} takes none of the actions that are known of it: this is a bug here")


def foresee(match: Match) -> str:
    """Returns the first action of the shortest line that wins against the opponent, whose actions follow from the seed.

    Where the search finds none, it returns the first action that the game accepts.
    """
    budget, depth = [MAX_TRIED_ACTIONS], 1
    while budget[0] > 0:
        action, deeper = _line(match, depth, budget)
        if action:
            return action
        if not deeper:
            break
        depth += 1
    return match.choices()[0]


def _line(match: Match, depth: int, budget: list[int]) -> tuple[str, bool]:
    """Returns the first action of a winning line of at most `depth` own actions ("" for none), and whether longer lines
    are worth a try.
    """
    deeper = False
    for action in GAMES[match.name].actions:
        budget[0] -= 1
        if budget[0] < 0:
            return "", False
        successor = copy.deepcopy(match)
        try:
            successor.act(action)
        except ActionError:
            continue
        while successor.current_seat not in (None, match.policy_seat):
            successor.act(scripted(successor))
        if successor.current_seat is None:
            if successor.success():
                return action, False
        elif depth == 1:
            deeper = True
        else:
            action_found, more = _line(successor, depth - 1, budget)
            if action_found:
                return action, False
            deeper = deeper or more
    return "", deeper
