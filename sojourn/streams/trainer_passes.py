"""Forward passes over a step's groups, for streams to read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sojourn.batch.flatten import flatten, scatter
from sojourn.errors import ConfigError
from sojourn.protocols import PerTurn, Place, Renderer, Trainer, TurnStates
from sojourn.types import Batch, FloatArray, Forward, Group, IntArray, Message, Role, Score

MOST_UNSAID = 2**20  # tokens of prompts that are laid out at once, however much of them is shared


class TrainerPasses:
    """The passes of one step, each made when it is first asked for, and once, however many streams read from it."""

    def __init__(
        self,
        groups: Sequence[Group],
        scores: Sequence[Sequence[Score]],
        trainer: Trainer,
        renderer: Renderer | None = None,
        *,
        critic: bool = False,
    ) -> None:
        """`critic` says whether any stream will read the critic's values."""
        self.groups, self.scores, self.trainer = groups, scores, trainer
        self._renderer, self._critic = renderer, critic
        self._made: dict[bool, Forward] = {}
        self._flat: tuple[Batch, list[Place]] | None = None
        self._states: list[list[TurnStates]] | None = None

    async def read(self, column: Callable[[Forward], FloatArray], *, reference: bool = False) -> PerTurn:
        """What `column` takes from the pass, for every sampled token: of the present weights, or of those that the
        stage began with."""
        batch, places = self.flat
        if reference not in self._made:
            critic = self._critic and not reference
            self._made[reference] = await self.trainer.forward(batch, reference=reference, critic=critic)
        return scatter(self.groups, column(self._made[reference]), places)

    async def states(self) -> list[list[TurnStates]]:
        """The policy's hidden states around each turn, by group and trajectory."""
        if self._states is None:
            batch, places = self.flat
            said = sorted(place for place in places if place.stop > place.start)
            around = np.array([(place.start - 1, place.stop - 1) for place in said], dtype=np.int64).reshape(-1, 2)
            rows = await self.trainer.states(batch, around.ravel())
            found = rows.reshape(len(said), 2, rows.shape[1])
            of = {(p.group, p.trajectory): [] for p in places}
            for number, place in enumerate(said):
                of[place.group, place.trajectory].append(number)
            self._states = [
                [self._around(said, found, of.get((g, t), [])) for t in range(len(group.trajectories))]
                for g, group in enumerate(self.groups)
            ]
        return self._states

    async def unsaid(self, prompts: Sequence[IntArray], replies: Sequence[IntArray]) -> list[FloatArray]:
        """The log-probability that the present weights give to each token of replies that nobody sampled."""
        if len(prompts) > 1 and sum(map(len, prompts)) > MOST_UNSAID:
            half = len(prompts) // 2
            parts = ((prompts[:half], replies[:half]), (prompts[half:], replies[half:]))
            return [scored for part in parts for scored in await self.unsaid(*part)]
        ends = np.cumsum([len(p) + len(r) for p, r in zip(prompts, replies, strict=True)], dtype=np.int64)
        parts = [t for pair in zip(prompts, replies, strict=True) for t in pair]
        tokens = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        weight = np.zeros(len(tokens), dtype=np.float32)
        for end, reply in zip(ends, replies, strict=True):
            weight[end - len(reply) : end] = 1
        number = np.repeat(np.arange(len(prompts)), np.diff(ends, prepend=0))
        zeros, ones = np.zeros(len(tokens), dtype=np.float32), np.ones(len(tokens), dtype=np.float32)
        batch = Batch(tokens, number, weight, zeros, zeros, ones, number, np.where(weight > 0, number, -1))
        scored = (await self.trainer.forward(batch)).logprobs
        return [scored[end - len(reply) : end] for end, reply in zip(ends, replies, strict=True)]

    def question(self, text: str) -> IntArray:
        """The tokens of a context in which a user says this, and the assistant is to speak."""
        return self._known_renderer.open([Message(Role.USER, text)]).tokens

    def reply(self, text: str) -> IntArray:
        """The tokens by which the assistant would say this."""
        return np.asarray(self._known_renderer.encode_reply(Message(Role.ASSISTANT, text)), dtype=np.int64)

    @property
    def _known_renderer(self) -> Renderer:
        if self._renderer is None:
            raise ConfigError("a stream reads what nobody said, which takes a renderer: give the run one")
        return self._renderer

    @property
    def flat(self) -> tuple[Batch, list[Place]]:
        """The step's tokens, and where each turn's stand."""
        if self._flat is None:
            self._flat = flatten(self.groups)
        return self._flat

    @staticmethod
    def _around(said: Sequence[Place], found: FloatArray, numbers: Sequence[int]) -> TurnStates:
        return TurnStates([said[n].turn for n in numbers], *(found[list(numbers), side] for side in (0, 1)))


def at_last(group: Group, values: Sequence[Sequence[float]]) -> list[tuple[FloatArray, ...]]:
    """A number for each turn, at its last token; 0 at the others, so that a turn's sum is its number."""
    out = []
    for trajectory, numbers in zip(group.trajectories, values, strict=True):
        arrays = [np.zeros(len(turn.sample.tokens), dtype=np.float32) for turn in trajectory.turns]
        for array, number in zip(arrays, numbers, strict=True):
            array[-1:] = number
        out.append(tuple(arrays))
    return out
