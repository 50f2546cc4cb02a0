"""A game of OpenSpiel under way: whose turn it is, what each may see, and what the world does with chance."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from sojourn.envs.about import require_module
from sojourn.errors import ActionError, ConfigError
from sojourn_worlds.openspiel.rules import Rules, rules_of
from sojourn_worlds.table import plain

LISTED = 40  # actions that are named in the text of an observation; more are left out


class Loaded(NamedTuple):
    """A game of OpenSpiel, and what of its kind matters here."""

    name: str
    game: Any
    rules: Rules
    players: int
    perfect: bool  # every player sees everything
    duel: bool  # of two players, zero-sum
    chance: bool
    scale: float  # what returns are divided by to lie between -1 and 1


@lru_cache(64)
def load(name: str) -> Loaded:
    """The game of a name such as `hex(board_size=4)`; games in which several move at once are played in turn."""
    pyspiel = require_module("pyspiel", "sojourn-worlds[openspiel]", "openspiel")
    known = pyspiel.registered_names()
    if name.partition("(")[0] not in known:
        raise ConfigError(f'openspiel: game = "{name}" is not among the {len(known)} games: {", ".join(known)}')
    try:
        game = pyspiel.load_game(name)
        kind = game.get_type()
        simultaneous = kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
        if simultaneous:
            game = pyspiel.convert_to_turn_based(game)
        shown = game.get_type()
        scale = max(abs(game.min_utility()), abs(game.max_utility()))
        players = game.num_players()
    except (pyspiel.SpielError, RuntimeError) as error:
        raise ConfigError(f'openspiel: game = "{name}" cannot be loaded ({str(error).splitlines()[0]})') from None
    perfect = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION and not simultaneous
    rules = rules_of(kind.short_name, kind.long_name, perfect, simultaneous)
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD or scale <= 0:
        raise ConfigError(f'openspiel: game = "{name}" has no players that could take turns: name another')
    if rules.shows == "observation" and not shown.provides_observation_string:
        rules = rules._replace(shows="information")
    if rules.shows == "information" and not shown.provides_information_state_string:
        raise ConfigError(f'openspiel: game = "{name}" has no text that shows a player its game: name another')
    zero_sum = kind.utility == pyspiel.GameType.Utility.ZERO_SUM
    chance = kind.chance_mode != pyspiel.GameType.ChanceMode.DETERMINISTIC
    return Loaded(name, game, rules, players, perfect, players == 2 and zero_sum, chance, scale)


@dataclass
class Position:
    """The play. Chance falls, and a random opponent moves, by the seed, the number of the move and the position."""

    loaded: Loaded
    seed: str
    turns: int
    seats: tuple[str, ...]
    state: Any
    told: bool = True  # the possible actions are named in the text
    alone: str = ""
    opponent: str = "self"
    simulations: int = 100
    goal: float = 0.0  # the reward above which a play has succeeded
    used: int = 0  # moves of all players

    def __post_init__(self) -> None:
        self._chance()

    def __deepcopy__(self, memo: object) -> Position:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.state = self.state.clone()
        return twin

    @property
    def mover(self) -> str | None:
        if self.state.is_terminal() or self.used >= self.turns:
            return None
        return self.seats[self.state.current_player()]

    def brief(self, seat: str) -> str:
        number = self.seats.index(seat)
        begins = self.loaded.game.new_initial_state().current_player()
        who = f"You are player {number} of {len(self.seats)}."
        if len(self.seats) == 1:
            who = "You play alone."
        elif begins >= 0:
            order = (number - begins) % len(self.seats)
            who = f"You are the {_ordinal(order)} of {len(self.seats)} players."
        return f"{self.loaded.rules.text} {who} Say one action, written as it is given."

    def view(self, seat: str) -> str:
        player = self.seats.index(seat)
        match self.loaded.rules.shows:
            case "state":
                text = str(self.state)
            case "observation":
                text = self.state.observation_string(player)
            case "information":
                text = self.state.information_state_string(player)
        actions = self.choices()
        if not self.told or len(actions) > LISTED:
            return text.rstrip()
        return f"{text.rstrip()}\nYou can say: {', '.join(actions)}"

    def choices(self) -> Sequence[str]:
        return [self.called(action) for action in self.state.legal_actions()]

    def called(self, action: int) -> str:
        return " ".join(self.state.action_to_string(self.state.current_player(), action).split())

    def play(self, said: str) -> Mapping[str, float]:
        self.apply(self.state.legal_actions()[self._meant(said)])
        if not self.state.is_terminal():
            return {}
        returns = self.state.returns()
        return {name: self.scaled(returns[number]) for number, name in enumerate(self.seats)}

    def apply(self, action: int) -> None:
        self.state.apply_action(action)
        self.used += 1
        self._chance()

    def scaled(self, value: float) -> float:
        return max(-1.0, min(1.0, value / self.loaded.scale))

    def success(self) -> bool:
        player = self.seats.index(self.alone)
        return self.state.is_terminal() and self.scaled(self.state.returns()[player]) > self.goal

    def info(self) -> Mapping[str, float]:
        return {"moves": float(self.used)}

    def key(self) -> str:
        """Where all is seen, the board and how far the game is; else everything that was done."""
        said = str(self.state) if self.loaded.perfect else self.state.history_str()
        return f"openspiel/{self.seed}/{self.used}/{hashlib.sha256(said.encode()).hexdigest()[:16]}"

    def coins(self, what: str) -> random.Random:
        said = str(self.state) if self.loaded.perfect else self.state.history_str()
        return random.Random(f"openspiel {what} {self.seed} {self.used} {said}")

    def _chance(self) -> None:
        while self.state.is_chance_node():
            outcomes, weights = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(self.coins(f"chance {len(self.state.history())}").choices(outcomes, weights)[0])

    def _meant(self, said: str) -> int:
        """The action that was said, to the letter, or else but for capitals where only one is meant."""
        actions = self.choices()
        exact = " ".join(said.split())
        if exact in actions:
            return actions.index(exact)
        alike = [number for number, action in enumerate(actions) if plain(action) == plain(said)]
        if len(alike) != 1:
            listed = ", ".join(actions[:20]) + (", ..." if len(actions) > 20 else "")
            raise ActionError(f'"{said[:30]}" is not possible here, say one of: {listed}')
        return alike[0]


def _ordinal(number: int) -> str:
    return ("first", "second", "third", "fourth", "fifth")[number] if number < 5 else f"{number + 1}th"
