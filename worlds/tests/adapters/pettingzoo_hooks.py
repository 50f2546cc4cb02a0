"""How tic-tac-toe is said and played well, and a parallel game of our own."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec_wrapper

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def board(observation, env, seat):
    """Returns the board as the game numbers it: down the columns."""
    own, other = observation["observation"][:, :, 0].ravel(), observation["observation"][:, :, 1].ravel()
    return " ".join("me" if own[i] else "you" if other[i] else str(i) for i in range(9))


@lru_cache
def worth(cells, mover):
    """Returns the worth of a board for who moves, by search to the end; a win that comes sooner is worth more."""
    for line in LINES:
        if all(cells[i] == -mover for i in line):
            return -1.0
    if all(cells):
        return 0.0
    return max(-0.9 * worth((*cells[:i], mover, *cells[i + 1 :]), -mover) for i in range(9) if not cells[i])


def search(observation, env, seat):
    seen = observation["observation"].astype(int)
    cells = tuple(int(cell) for cell in (seen[:, :, 0] - seen[:, :, 1]).ravel())
    moves = [i for i in range(9) if not cells[i]]
    return max(moves, key=lambda i: -worth((*cells[:i], 1, *cells[i + 1 :]), -1))


class Bids(ParallelEnv):
    """Two name a number from 0 to 2 at once, twice; the larger is paid 1. Cannot be copied."""

    metadata = {"name": "bids"}  # noqa: RUF012
    possible_agents = ["left", "right"]  # noqa: RUF012

    def __init__(self):
        self.render_mode = None
        self.uncopiable = (number for number in range(3))

    def observation_space(self, agent):
        return spaces.Discrete(10)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.round = list(self.possible_agents), 0
        self.shown = int(np.random.default_rng(seed).integers(0, 10))
        return dict.fromkeys(self.agents, self.shown), {a: {} for a in self.agents}

    def step(self, actions):
        self.round += 1
        more = {"left": actions["left"] > actions["right"], "right": actions["right"] > actions["left"]}
        names, over = self.agents, self.round == 2
        self.agents = [] if over else names
        ended = dict.fromkeys(names, over)
        return (
            dict.fromkeys(names, self.shown),
            {a: float(more[a]) for a in names},
            ended,
            dict.fromkeys(names, False),
            {a: {} for a in names},
        )


class Gifts(parallel_to_aec_wrapper):
    """The bids turn by turn, but each move of the left one pays the right one 1, and nothing else pays."""

    def step(self, action):
        giver = self.agent_selection
        super().step(action)
        self.rewards = {name: float((giver, name) == ("left", "right")) for name in self.rewards}


def gifts():
    return Gifts(Bids())


class Drifting(Bids):
    """The bids of one who shows something else in each game that is made."""

    made = 0

    def reset(self, seed=None, options=None):
        Drifting.made += 1
        super().reset(seed)
        self.shown = Drifting.made
        return dict.fromkeys(self.agents, self.shown), {a: {} for a in self.agents}
