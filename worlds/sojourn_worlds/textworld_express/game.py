"""One game of the package, as its interface plays it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from sojourn.errors import ConfigError

SORTING = threading.Lock()  # in this one game, plays of one seed share objects: each step plays it all again, alone


@dataclass(frozen=True)
class Game:
    name: str
    params: str
    seed: int
    fold: str
    partial: bool
    turns: int

    def alone(self) -> AbstractContextManager[Any]:
        """Returns the lock that must be held while the game is played."""
        return SORTING if self.name == "sorting" else nullcontext()

    def step(self, server: Any, before: Sequence[str], action: str) -> Mapping[str, Any]:
        """Returns the state after one more action, in an interface that has played the actions before it."""
        with self.alone():
            if self.name == "sorting":
                return self.replay(server, [*before, action])
            return json.loads(server.stepJSON(action))

    def begin(self, server: Any, gold: bool = False) -> Mapping[str, Any]:
        """Loads the game into an interface of the package, and returns its first state."""
        if wrong := server.load(self.name, self.params):
            raise ConfigError(f"textworld_express: params = {self.params!r} cannot be used in {self.name}: {wrong}")
        state = json.loads(server.generateNewGameJSON(self.seed, self.fold, gold))
        used = json.loads(server.getGenerationPropertiesJSON())
        for setting in filter(None, self.params.split(",")):  # the package ignores what it does not know
            name, _, value = setting.partition("=")
            if str(used.get(name.strip())) != value.strip():
                raise ConfigError(
                    f"textworld_express: params = {self.params!r} cannot be used in {self.name}: {name.strip()!r} "
                    f"became {used.get(name.strip())}, and it knows {', '.join(sorted(used))}"
                )
        return state

    def replay(self, server: Any, actions: Sequence[str]) -> Mapping[str, Any]:
        state = self.begin(server)
        for action in actions:
            state = json.loads(server.stepJSON(action))
        return state
