"""Games of OpenSpiel, by their names: board games, cards and dice, for one seat or several.

A task fixes the seeds of chance and of the opponent, and the agent's player. An action is one of the legal moves, in
OpenSpiel's notation; the observation is OpenSpiel's text of the state (or of what the player may see). Rewards are the
game's returns, scaled to [-1, 1], and come when the game, or its limit of `turns`, ends the episode.

Rules and dynamics are those of OpenSpiel (Lanctot et al. 2019, arXiv:1908.09453; the package `open-spiel`); the words
around them, the seats, the opponents and the expert are ours.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from sojourn.abilities import MeasuredPolicy
from sojourn.envs.about import About
from sojourn.envs.env_threads import ALL_CALLS, EnvThreads, ThreadedEnv
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ConfigError
from sojourn.tasks.splits import family_of_task, make_tasks_from_fields
from sojourn.types import Task
from sojourn_worlds.openspiel.exploitability import nash_conv
from sojourn_worlds.openspiel.position import Position, load, require_tensor
from sojourn_worlds.openspiel.rules import RULES
from sojourn_worlds.openspiel.solver import ends_before_policy_acts, expert, game_value, scripted
from sojourn_worlds.turn_based import TurnBasedEnv

GAMES_WITH_RULES = tuple(RULES)
"""The games whose rules we explain; others are named, and their texts shown as OpenSpiel gives them."""


@dataclass(frozen=True, kw_only=True)
class OpenSpiel:
    """A game of OpenSpiel. `game` is its name, with parameters where it takes any: `hex(board_size=4)`.

    `opponent`: "random" (its moves follow from the seed), "expert" (minimax where the game is small, else a tree search
    of `simulations`; for zero-sum games of two players with perfect information), or "self", where the policy sits in
    every seat; games for one player have none. Which player the agent is follows from the seed, except against "expert"
    in a small game that one player can win by force: then the agent is that player. `turns` ends the episode, without
    reward, after so many moves of all players. `told` names the possible actions in the text, where they are at most
    40, and `rules` explains the game in the system message; a model from scratch learns faster without. With `tensor`,
    what is seen are the entries of OpenSpiel's observation tensor that are not 0, a symbol each, in place of its text:
    a small model from scratch tells boards apart sooner by them. With `opening`, games begin after random moves, from
    none to so many, so that who plays against itself meets positions that it would not choose; not against "expert".

    Rewards are the game's returns, divided so that they lie between -1 and 1. An episode is a success when it is won;
    against "expert" in a small game that nobody can win by force, a draw is enough. The expert policy of a zero-sum
    game for two players, without chance or hidden information, looks for a line that wins against the random opponent's
    very moves, through good moves where it can; it takes up to a second for a move of a large game.

    In self-play in which the world lists the actions and the agent samples among them, evaluations of a zero-sum game
    of two players with at most 2,000 information states record `nash_conv`: how much the players could gain, together,
    by best responses to the policy, in the game's own units (NashConv of OpenSpiel, whose half is the exploitability);
    0 in an equilibrium.
    """

    about: ClassVar[About] = About(
        source="OpenSpiel 2 (Lanctot et al. 2019, arXiv:1908.09453)",
        licence="Apache-2.0",
        extra="openspiel",
        seats="1-n",
        smallest={"game": "tic_tac_toe", "opponent": "random"},
    )

    game: str = "tic_tac_toe"
    opponent: Literal["random", "expert", "self"] = "random"
    simulations: int = 100
    turns: int = 200
    told: bool = True
    rules: bool = True
    tensor: bool = False
    opening: int = 0
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    def __post_init__(self) -> None:
        require_within(
            "openspiel", self, {"simulations": (2, 100_000), "turns": (1, 100_000), "opening": (0, 100), **SIZES}
        )
        require_one_of("openspiel", self, {"opponent": ("random", "expert", "self")})
        loaded = load(self.game)
        if self.tensor:
            require_tensor(self.game)
        if self.opponent == "expert" and not (loaded.perfect_information and loaded.two_player_zero_sum):
            raise ConfigError(
                f'openspiel: opponent = "expert" needs a zero-sum game of two players who see everything, but '
                f'{self.game} is none: use opponent = "random"'
            )

        if self.opponent == "expert" and self.opening:
            raise ConfigError(
                f'openspiel: opponent = "expert" is played from the first move, as a success is judged by the value of '
                f"the whole game, but opening is {self.opening}: leave it out"
            )

    @property
    def seats(self) -> tuple[str, ...]:
        players = load(self.game).players
        return _names(players) if self.opponent == "self" and players > 1 else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        return make_tasks_from_fields("openspiel", self, split)

    def make(self, task: Task) -> ThreadedEnv:
        """Makes the environment. Searches and the solving of a game run on a thread of the pool; what is known at once
        does not.
        """
        config = family_of_task(self, task)
        loaded = load(config.game)
        has_expert = (
            (config.opponent != "self" or loaded.players == 1)
            and loaded.perfect_information
            and loaded.two_player_zero_sum
        )
        offers = {"fork", "state_key"} | ({"expert"} if has_expert and not loaded.has_chance else set())
        slow = ALL_CALLS if config.opponent == "expert" else {"expert"}
        return self._env_threads.make(lambda: _deal(config, task), offers, slow)

    async def measure(self, policy: MeasuredPolicy) -> dict[str, float]:
        """Returns NashConv of the policy, in small games in which it plays against itself."""
        if self.opponent != "self" or not self.choices:
            return {}
        found = await nash_conv(policy, self.game, self.seats, self.turns, self.told, self.rules, self.tensor)
        return {} if found is None else {"nash_conv": found}

    @cached_property
    def _env_threads(self) -> EnvThreads:
        return EnvThreads(os.cpu_count() or 1, "openspiel")


def _deal(config: OpenSpiel, task: Task) -> TurnBasedEnv:
    loaded = load(config.game)
    names = _names(loaded.players)
    policy_seat = ""
    if config.opponent != "self" or loaded.players == 1:
        policy_seat = random.Random(f"openspiel {task.seed}").choice(names)
    success_above = 0.0
    if config.opponent == "expert" and (value := game_value(config.game)) is not None:
        if value:
            policy_seat = names[0] if value > 0 else names[1]
        success_above = 0.0 if value else -0.5
    for attempt in range(100):
        state = loaded.game.new_initial_state()
        position = PositionWithExpert(
            loaded, f"{task.seed} {attempt}", config.turns, names, state, config.told, policy_seat, config.opponent,
            config.simulations, success_above, rules=config.rules, tensor=config.tensor,
        )  # fmt: skip
        _open(position, config.opening)
        if position.current_seat is None or (policy_seat and ends_before_policy_acts(position)):
            continue
        others = {name: _scripted for name in names if name != policy_seat} if policy_seat else {}
        has_expert = (
            bool(policy_seat) and loaded.perfect_information and loaded.two_player_zero_sum and not loaded.has_chance
        )
        return TurnBasedEnv(position, others, policy_seat=policy_seat, choices=config.choices, has_expert=has_expert)
    raise ConfigError(f"openspiel: {config.game} is over before the agent can act: name another game")


def _open(position: Position, most: int) -> None:
    """Plays the random moves with which a game begins: their number is drawn first, each from 0 to `most` as often."""
    drawn = random.Random(f"openspiel opening {position.seed}")
    for _ in range(drawn.randint(0, most)):
        if position.current_seat is not None:
            position.apply(drawn.choice(position.state.legal_actions()))


class PositionWithExpert(Position):
    """A position that offers the expert's action."""

    def expert(self) -> str:
        return self.action_text(expert(self))


def _names(players: int) -> tuple[str, ...]:
    return tuple(f"player{number}" for number in range(players))


def _scripted(position: Position) -> str:
    return position.action_text(scripted(position))
