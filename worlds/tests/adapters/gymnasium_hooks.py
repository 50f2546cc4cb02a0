"""Functions that the tests of the Gymnasium adapter name in configs, and environments of odd kinds."""

from __future__ import annotations

import threading
from collections import deque

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

WAYS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # of FrozenLake: left, down, right, up


def shortest(env, observation):
    """The first action of a shortest way over FrozenLake's ice."""
    ice = np.asarray(env.unwrapped.desc).astype(str)
    width = ice.shape[1]
    queue, seen = deque([(divmod(int(observation), width), None)]), set()
    while queue:
        (row, column), first = queue.popleft()
        if ice[row][column] == "G":
            return first
        for action, (down, right) in enumerate(WAYS):
            there = (row + down, column + right)
            inside = 0 <= there[0] < ice.shape[0] and 0 <= there[1] < width
            if inside and there not in seen and ice[there] != "H":
                seen.add(there)
                queue.append((there, action if first is None else first))
    raise AssertionError("there is no way")


VALUES: dict[int, float] = {}


def drive(env, state):
    """The best action of Taxi, by value iteration over its own table."""
    table = env.unwrapped.P
    if not VALUES:
        VALUES.update(dict.fromkeys(table, 0.0))
        for _ in range(60):
            VALUES.update({s: max(_worth(table[s][a]) for a in table[s]) for s in table})
    return max(table[state], key=lambda action: _worth(table[state][action]))


def _worth(outcomes):
    return sum(p * (reward + (0 if done else VALUES[then])) for p, then, reward, done in outcomes)


def balance(env, observation):
    return int(observation[2] + observation[3] > 0)


def facing(observation, env):
    """MiniGrid's partial view as the words of what it faces and carries."""
    from minigrid.core.constants import IDX_TO_OBJECT

    image = observation["image"]
    ahead = [IDX_TO_OBJECT[int(image[image.shape[0] // 2, row, 0])] for row in range(image.shape[1] - 2, -1, -1)]
    return f"{observation['mission']}. Ahead: {', '.join(ahead)}. Direction: {int(observation['direction'])}."


class Odd(gymnasium.Env):
    """Wants the last of its observation's numbers in every kind of space at once; cannot be copied."""

    observation_space = spaces.Dict(
        {
            "table": spaces.Box(0, 9, (2, 3), np.int8),
            "word": spaces.Text(5),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
        }
    )
    action_space = spaces.Dict({"push": spaces.Box(-1, 1, (2,)), "which": spaces.MultiDiscrete([2, 3])})

    def __init__(self, broken: bool = False):
        self.broken = broken
        self.uncopiable = (number for number in range(3))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        table = self.np_random.integers(0, 10, (2, 3)).astype(np.int8)
        self.left = 3
        self.seen = {"table": table, "word": "hello", "pair": (2, np.array([0, 1], np.int8))}
        return self.seen, {}

    def step(self, action):
        if self.broken:
            raise RuntimeError("the simulator is gone")
        self.left -= 1
        self.seen = {**self.seen, "word": "abcde"[: self.left]}
        return self.seen, float(action["push"].sum()) + self.np_random.random() / 100, self.left == 0, False, {}


class Wide(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (20, 20, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


class Walk(gymnasium.Env, EzPickle):
    """Counts to five; a deep copy of it starts from zero again."""

    observation_space = spaces.Discrete(6)
    action_space = spaces.Discrete(2)

    def __init__(self):
        EzPickle.__init__(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.at, {}

    def step(self, action):
        self.at += int(action)
        return self.at, float(self.at == 5), self.at == 5, False, {}


class Marks(gymnasium.Env):
    """A cell is taken in each step; the board and the mask that it gives are its own, which it changes in place."""

    observation_space, action_space = spaces.Box(0, 1, (3,), np.int8), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.board, self.free = np.zeros(3, np.int8), np.ones(3, np.int8)
        return self.board, {"action_mask": self.free}

    def step(self, action):
        self.board[action], self.free[action] = 1, 0
        return self.board, float(self.board.all()), bool(self.board.all()), False, {"action_mask": self.free}


def first_free(env, observation):
    return int(np.argmin(observation))


class Drifting(gymnasium.Env):
    """Counts its makers, so that a second one of the same seed shows something else; cannot be copied."""

    observation_space, action_space, made = spaces.Discrete(100), spaces.Discrete(2), 0

    def __init__(self):
        self.uncopiable = (number for number in range(3))
        Drifting.made += 1
        self.number = Drifting.made

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return self.number, 0.0, False, False, {}


class Waits(gymnasium.Env):
    """A step lasts until somebody else sets `go`; what belongs to one thread is used in it alone."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)
    go = threading.Event()

    def __init__(self):
        self.made_in, self.steps = threading.get_ident(), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.here()
        return 0, {}

    def step(self, action):
        self.here()
        assert self.go.wait(20.0)
        self.steps += 1
        return self.steps, 1.0, self.steps == 2, False, {}

    def close(self):
        self.here()

    def here(self):
        assert threading.get_ident() == self.made_in
