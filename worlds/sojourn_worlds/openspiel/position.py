"""The state of a game of OpenSpiel: whose turn it is, what each player may see, and how chance is resolved."""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from sojourn.envs.about import require_module
from sojourn.errors import ActionError, ConfigError
from sojourn_worlds.openspiel.rules import Rules, rules_of
from sojourn_worlds.turn_based import plain

SYMBOLS = string.punctuation  # each of which is a token of its own in nearly all vocabularies
MAX_LISTED_ACTIONS = 40  # an observation lists the possible actions only where there are no more than these


class Loaded(NamedTuple):
    """A game of OpenSpiel, and its properties that matter here."""

    name: str
    game: Any
    rules: Rules
    players: int
    perfect_information: bool
    two_player_zero_sum: bool
    has_chance: bool
    sampled_chance: bool  # whether OpenSpiel draws the outcomes of chance, and does not tell their probabilities
    reward_scale: float  # returns divided by it lie between -1 and 1


@lru_cache(64)
def load(name: str) -> Loaded:
    """Returns the game of a name such as `hex(board_size=4)`; games with simultaneous moves are played in turn."""
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
        game_type = game.get_type()
        reward_scale = max(abs(game.min_utility()), abs(game.max_utility()))
        players = game.num_players()
    except (pyspiel.SpielError, RuntimeError) as error:
        raise ConfigError(f'openspiel: game = "{name}" cannot be loaded ({str(error).splitlines()[0]})') from None
    perfect_information = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION and not simultaneous
    rules = rules_of(kind.short_name, kind.long_name, perfect_information, simultaneous)
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD or reward_scale <= 0:
        raise ConfigError(f'openspiel: game = "{name}" has no players that could take turns: name another')
    if rules.shows == "observation" and not game_type.provides_observation_string:
        rules = rules._replace(shows="information")
    if rules.shows == "information" and not game_type.provides_information_state_string:
        raise ConfigError(f'openspiel: game = "{name}" has no text that shows a player its game: name another')
    zero_sum = kind.utility == pyspiel.GameType.Utility.ZERO_SUM
    mode = pyspiel.GameType.ChanceMode
    return Loaded(
        name, game, rules, players, perfect_information, players == 2 and zero_sum,
        has_chance=kind.chance_mode != mode.DETERMINISTIC,
        sampled_chance=kind.chance_mode == mode.SAMPLED_STOCHASTIC,
        reward_scale=reward_scale,
    )  # fmt: skip


def require_tensor(game: str) -> None:
    """Raises `ConfigError` where `symbols` cannot show a player its game."""
    loaded = load(game).game
    size = loaded.observation_tensor_size() if loaded.get_type().provides_observation_tensor else 0
    if not 0 < size <= len(SYMBOLS) ** 2:
        raise ConfigError(
            f"openspiel: tensor = true needs a game with an observation tensor of at most {len(SYMBOLS) ** 2} entries, "
            f"but {game} has {size or 'none'}: leave it out"
        )


def symbols(tensor: Sequence[float]) -> str:
    """Returns the entries of a tensor that are not 0, a symbol of punctuation each, or two where there are too many
    entries; what is not 1 is followed by its value."""
    digits = 1 if len(tensor) <= len(SYMBOLS) else 2
    shown = [(number, value) for number, value in enumerate(tensor) if value]
    return "".join(
        (SYMBOLS[number // len(SYMBOLS)] if digits == 2 else "")
        + SYMBOLS[number % len(SYMBOLS)]
        + (f"{value:g}" if value != 1 else "")
        for number, value in shown
    )


@dataclass
class Position:
    """The state of one episode.

    Chance outcomes and the random opponent's moves follow from the seed, the number of the move and the position.
    """

    loaded: Loaded
    seed: str
    turns: int
    seats: tuple[str, ...]
    state: Any
    told: bool = True  # whether observations list the possible actions
    policy_seat: str = ""
    opponent: str = "self"
    simulations: int = 100
    success_above: float = 0.0  # an episode with a higher reward is a success
    turns_taken: int = 0  # of all players
    rules: bool = True  # whether the system message explains the game
    tensor: bool = False  # whether observations show the entries of a tensor in place of a text

    def __post_init__(self) -> None:
        self._resolve_chance()

    def __deepcopy__(self, memo: object) -> Position:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.state = self.state.clone()
        return twin

    @property
    def current_seat(self) -> str | None:
        if self.state.is_terminal() or self.turns_taken >= self.turns:
            return None
        return self.seats[self.state.current_player()]

    def system_prompt(self, seat: str) -> str:
        number = self.seats.index(seat)
        begins = self.loaded.game.new_initial_state().current_player()
        who = f"You are player {number} of {len(self.seats)}."
        if len(self.seats) == 1:
            who = "You play alone."
        elif begins >= 0:
            order = (number - begins) % len(self.seats)
            who = f"You are the {_ordinal(order)} of {len(self.seats)} players."
        return f"{self.loaded.rules.text} {who} Say one action, written as it is given." if self.rules else who

    def observe(self, seat: str) -> str:
        player = self.seats.index(seat)
        match self.loaded.rules.shows:
            case _ if self.tensor:
                text = symbols(self.state.observation_tensor(player))
            case "state":
                text = str(self.state)
            case "observation":
                text = self.state.observation_string(player)
            case "information":
                text = self.state.information_state_string(player)
        actions = self.choices()
        if not self.told or len(actions) > MAX_LISTED_ACTIONS:
            return text.rstrip()
        return f"{text.rstrip()}\nYou can say: {', '.join(actions)}"

    def choices(self) -> Sequence[str]:
        return [self.action_text(action) for action in self.state.legal_actions()]

    def action_text(self, action: int) -> str:
        return " ".join(self.state.action_to_string(self.state.current_player(), action).split())

    def act(self, action: str) -> Mapping[str, float]:
        self.apply(self.state.legal_actions()[self._index_of(action)])
        if not self.state.is_terminal():
            return {}
        returns = self.state.returns()
        return {name: self.scaled(returns[number]) for number, name in enumerate(self.seats)}

    def apply(self, action: int) -> None:
        self.state.apply_action(action)
        self.turns_taken += 1
        self._resolve_chance()

    def scaled(self, value: float) -> float:
        return max(-1.0, min(1.0, value / self.loaded.reward_scale))

    def success(self) -> bool:
        player = self.seats.index(self.policy_seat)
        return self.state.is_terminal() and self.scaled(self.state.returns()[player]) > self.success_above

    def info(self) -> Mapping[str, float]:
        return {"moves": float(self.turns_taken)}

    def state_key(self) -> str:
        """Identifies the board and the number of moves where all is visible, and otherwise the whole history."""
        history = str(self.state) if self.loaded.perfect_information else self.state.history_str()
        return f"openspiel/{self.seed}/{self.turns_taken}/{hashlib.sha256(history.encode()).hexdigest()[:16]}"

    def random_for(self, purpose: str) -> random.Random:
        """Returns a generator for one purpose, seeded by the task and the position."""
        history = str(self.state) if self.loaded.perfect_information else self.state.history_str()
        return random.Random(f"openspiel {purpose} {self.seed} {self.turns_taken} {history}")

    def _resolve_chance(self) -> None:
        while self.state.is_chance_node():
            outcomes, weights = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(
                self.random_for(f"chance {len(self.state.history())}").choices(outcomes, weights)[0]
            )

    def _index_of(self, text: str) -> int:
        """Returns the index of the action that the text names: exactly, or else ignoring case where only one action
        matches.
        """
        actions = self.choices()
        exact = " ".join(text.split())
        if exact in actions:
            return actions.index(exact)
        matches = [number for number, option in enumerate(actions) if plain(option) == plain(text)]
        if len(matches) != 1:
            listed = ", ".join(actions[:20]) + (", ..." if len(actions) > 20 else "")
            raise ActionError(f'"{text[:30]}" is not possible here, say one of: {listed}')
        return matches[0]


def _ordinal(number: int) -> str:
    return ("first", "second", "third", "fourth", "fifth")[number] if number < 5 else f"{number + 1}th"
