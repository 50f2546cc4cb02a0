"""Small worlds and policies for tests of agents that search."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from made import chatml as renderer

from sojourn.errors import ActionError, InfrastructureError
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import (
    Episode,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Step,
    Stop,
    Task,
    Versions,
)

TASK = Task("digits", {}, 0, "train")


@dataclass
class Digits:
    """Asks for the digits of `secret`, one a turn, and pays 1 at the end if all were right; "9" is refused."""

    family: Family
    said: str = ""

    async def start(self) -> Observation:
        self.family.open += 1
        return self._shown()

    async def step(self, agent: str, action: Message) -> Step:
        self.family.steps += 1
        await asyncio.sleep(self.family.slow * (hash(self.said) % 3))
        if action.text == "9":
            raise ActionError("there is no nine")
        self.said += action.text
        if len(self.said) == len(self.family.secret):
            won = self.said == self.family.secret
            return Step(None, {agent: float(won)}, done=True, success=won)
        right = self.said[-1] == self.family.secret[len(self.said) - 1]
        return Step(self._shown(), {agent: self.family.hint if right else 0.0})

    async def close(self) -> None:
        self.family.open -= 1

    def _shown(self) -> Observation:
        return Observation((Message(Role.USER, f"said {self.said or 'nothing'}"),))


class ForkableDigits(Digits):
    async def fork(self) -> Digits:
        if self.family.breaks:
            raise InfrastructureError("no memory is left")
        self.family.open += 1
        self.family.forks += 1
        return replace(self)


@dataclass
class Family:
    secret: str = "120"
    kind: Any = ForkableDigits
    hint: float = 0.0  # the reward of each right digit but the last
    slow: float = 0.0
    breaks: bool = False
    open: int = 0
    forks: int = 0
    steps: int = 0

    def tasks(self, split: str) -> list[Task]:
        return [TASK]

    def make(self, task: Task) -> Any:
        return self.kind(self)


LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


@dataclass
class TicTacToe:
    """The game, from a board given as nine characters; it lists the free squares as choices. X moves first."""

    board: str = "." * 9
    listed: bool = True

    @property
    def actor(self) -> str:
        return "XO"[(9 - self.board.count(".")) % 2]

    async def start(self) -> Observation:
        return self._shown()

    async def step(self, agent: str, action: Message) -> Step:
        if not action.text.isdecimal() or self.board[int(action.text)] != ".":
            raise ActionError("that square is not free")
        place = int(action.text)
        self.board = self.board[:place] + agent + self.board[place + 1 :]
        worth = outcome(self.board)
        if worth is None:
            return Step(self._shown(), {"X": 0.0, "O": 0.0})
        return Step(None, {"X": float(worth), "O": -float(worth)}, done=True)

    async def fork(self) -> TicTacToe:
        return replace(self)

    async def close(self) -> None: ...

    def _shown(self) -> Observation:
        free = tuple(str(n) for n in range(9) if self.board[n] == ".") if self.listed else ()
        return Observation((Message(Role.USER, self.board),), choices=free, agent=self.actor)


@dataclass
class Game:
    board: str = "." * 9
    listed: bool = True
    seats: tuple[str, ...] = ("X", "O")

    def tasks(self, split: str) -> list[Task]:
        return [TASK]

    def make(self, task: Task) -> TicTacToe:
        return TicTacToe(self.board, self.listed)


def outcome(board: str) -> int | None:
    """Returns 1 where X has won, -1 where O has, 0 for a draw, None while the game goes on."""
    for a, b, c in LINES:
        if board[a] == board[b] == board[c] != ".":
            return 1 if board[a] == "X" else -1
    return None if "." in board else 0


def solved(board: str) -> int:
    """Returns what the board is worth to X if both play best."""
    if (worth := outcome(board)) is not None:
        return worth
    mover = "XO"[(9 - board.count(".")) % 2]
    after = [solved(board[:n] + mover + board[n + 1 :]) for n in range(9) if board[n] == "."]
    return max(after) if mover == "X" else min(after)


@dataclass
class Draws:
    """Draws one of the texts by the seed of the request, and keeps what was asked and drawn."""

    texts: tuple[str, ...] = ("0", "1", "2")
    asked: list[tuple[bytes, Sample]] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        text = self.texts[int(np.random.default_rng(params.seed).integers(len(self.texts)))]
        tokens = np.array([*renderer().codec.control(text), renderer().stops[0]])
        sample = Sample(tokens, np.full(len(tokens), -1.0, np.float32), Versions(0, 0), Stop.END)
        self.asked.append((prompt.tokens.tobytes(), sample))
        return sample

    @property
    def tokens(self) -> int:
        return sum(len(sample.tokens) for _, sample in self.asked)

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...


def runner(family: Any, agent: Any, sampler: Any = None, **rollout: Any) -> Runner:
    config = Rollout(limits=Limits(turns=12), **({"retries": 0, "max_error_rate": 1.0} | rollout))
    return Runner(config, family, agent, renderer(), sampler or Draws(), 4096, 0)


def played(family: Any, agent: Any, sampler: Any = None, seed: int = 0, **rollout: Any) -> Episode:
    """Plays the task once."""
    params = SamplingParams(8, seed=seed)
    return asyncio.run(runner(family, agent, sampler, **rollout).play_episode(TASK, params, f"play/{seed}"))
