"""Worlds in which several play: who moves, what each samples, and what each is paid."""

from __future__ import annotations

import numpy as np

from sojourn.agents.plain import Plain
from sojourn.rollout.runner import Rollout, Runner
from sojourn.rollout.world import seats_of
from sojourn.types import Message, Observation, Role, Sample, SamplingParams, Step, Stop, Task, Versions


class Duel:
    """Two say a word in turn, twice; the first seat is paid 1 and the second -1."""

    seats = ("white", "black")

    def tasks(self, split):
        return [Task("duel", {}, 0, split)]

    def make(self, task):
        return DuelPlay()


class DuelPlay:
    def __init__(self):
        self.said = []

    def observe(self):
        seat = Duel.seats[len(self.said) % 2]
        brief = (Message(Role.SYSTEM, f"You are {seat}."),) if len(self.said) < 2 else ()
        return Observation((Message(Role.USER, f"turn {len(self.said)}"),), system=brief, agent=seat)

    async def start(self):
        return self.observe()

    async def step(self, agent, action):
        self.said.append((agent, action.text))
        if len(self.said) == 4:
            return Step(None, {"white": 1.0, "black": -1.0}, done=True)
        return Step(self.observe(), {})

    async def close(self):
        pass


class Seeds:
    """Says its seed."""

    async def sample(self, prompt, params):
        digits = np.array([int(d) for d in str(params.seed)], dtype=np.int64)
        return Sample(digits, np.zeros(len(digits), dtype=np.float32), Versions(0, 0), Stop.END)


class Digits:
    stops = ()

    def open(self, messages, tools=()):
        from sojourn.types import Prompt

        return Prompt(np.arange(sum(len(m.text) for m in messages)))

    def extend(self, last, messages):
        return self.open(messages)

    def parse(self, tokens):
        return Message(Role.ASSISTANT, "".join(map(str, tokens)))


async def test_each_seat_plays_its_own_turns_and_is_paid_its_own_reward() -> None:
    runner = Runner(Rollout(), Duel(), Plain(), Digits(), Seeds(), 1_000, 0)
    group = await runner.group(Duel().tasks("train")[0], 0, 2, SamplingParams(8), "x")
    for episode in group.episodes:
        assert episode.error is None
        white, black = episode.trajectories
        assert [white.agent, black.agent] == ["white", "black"]
        assert (len(white.turns), len(black.turns)) == (2, 2)
        assert (white.reward, black.reward) == (1.0, -1.0)
        assert (white.success, black.success) == (True, False)
        assert white.turns[0].observed[0].text == "You are white."
        assert [[turn.info["move"] for turn in seat.turns] for seat in (white, black)] == [[0.0, 2.0], [1.0, 3.0]]
        assert white.turns[0].message != black.turns[0].message  # each has draws of its own
    assert group.owners == (0, 0, 1, 1)


def test_a_world_that_names_no_seats_has_one() -> None:
    task = Duel().tasks("train")[0]
    assert seats_of(object(), task) == ("agent",)  # type: ignore[arg-type]
    assert seats_of(Duel(), task) == ("white", "black")
