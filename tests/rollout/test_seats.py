"""Worlds in which several play: who moves, what each samples, and what each is paid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sojourn.agents.plain import Plain
from sojourn.agents.text_seat import TextSeat
from sojourn.protocols import AgentContext
from sojourn.record.episodes.store import EpisodeStore
from sojourn.replay import RecordedSeat
from sojourn.rewards.native import Native
from sojourn.rollout.limits import Limits
from sojourn.rollout.play import play
from sojourn.rollout.runner import Rollout, Runner
from sojourn.rollout.world import seats_of
from sojourn.timeline import Timeline
from sojourn.types import Ending, Message, Observation, Role, Sample, SamplingParams, Step, Stop, Task, Versions


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
        system = (Message(Role.SYSTEM, f"You are {seat}."),) if len(self.said) < 2 else ()
        return Observation((Message(Role.USER, f"turn {len(self.said)}"),), system=system, agent=seat)

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
    group = await runner.play_group(Duel().tasks("train")[0], 0, 2, SamplingParams(8), "x")
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


class EmptyDuel(Duel):
    """A duel whose plays say their state, and are empty collections."""

    def make(self, task):
        return EmptyDuelPlay()


class EmptyDuelPlay(DuelPlay):
    def __len__(self):
        return 0

    def state_key(self):
        return f"after {len(self.said)}"


async def test_each_turn_has_the_state_that_its_world_says() -> None:
    runner = Runner(Rollout(), EmptyDuel(), Plain(), Digits(), Seeds(), 1_000, 0)
    group = await runner.play_group(EmptyDuel().tasks("train")[0], 0, 1, SamplingParams(8), "x")
    white, black = group.trajectories
    assert [[turn.state for turn in seat.turns] for seat in (white, black)] == [
        ["after 0", "after 2"],
        ["after 1", "after 3"],
    ]


class Forfeit(Duel):
    """White gives up at once: black never acts, and both are paid, black also before."""

    def make(self, task):
        return ForfeitPlay()


class ForfeitPlay(DuelPlay):
    async def step(self, agent, action):
        self.said.append((agent, action.text))
        return Step(None, {"white": -1.0, "black": 0.0}, done=True, success=agent == "white")


class Bonus(DuelPlay):
    """Pays and tells black before its first turn."""

    async def step(self, agent, action):
        step = await super().step(agent, action)
        return Step(step.observation, {"black": 0.25}, success=True) if len(self.said) == 1 else step


async def played(play, make=Forfeit):
    world = make()
    world.make = lambda task: play()
    runner = Runner(Rollout(), world, Plain(), Digits(), Seeds(), 1_000, 0)
    group = await runner.play_group(world.tasks("train")[0], 0, 2, SamplingParams(8), "x")
    return group, await Native()(group)


async def test_a_seat_that_never_acts_keeps_what_it_is_given(tmp_path) -> None:
    class Wins(ForfeitPlay):
        async def step(self, agent, action):
            return Step(None, {"white": -1.0, "black": 1.0}, done=True)

    group, scores = await played(Wins)
    for episode, (white, black) in zip(group.episodes, zip(scores[::2], scores[1::2], strict=True), strict=True):
        assert [len(t.turns) for t in episode.trajectories] == [1, 0]
        assert [t.reward for t in episode.trajectories] == [-1.0, 1.0]
        assert [t.success for t in episode.trajectories] == [False, True]
        assert (white.total, black.total, black.result) == (-1.0, 1.0, 1.0)
    [entry] = {recorded.reward for recorded in stored(tmp_path, group, scores)}
    assert entry == 0.0  # the mean of both seats
    with EpisodeStore(tmp_path) as store:
        for row in store.query():
            record = store.read(row)
            assert record.episode.trajectories[1].reward == 1.0
            assert [score.total for score in record.scores] == [-1.0, 1.0]


def stored(folder, group, scores):
    with EpisodeStore(folder, write=True) as store:
        store.append("train", 0, [group], [scores])
        return list(store.query())


async def test_a_failure_to_close_is_recorded(tmp_path) -> None:
    group, scores = await played(ForfeitPlay)
    episodes = (replace(group.episodes[0], close_error="it does not go away"), group.episodes[1])
    [first, second] = stored(tmp_path, replace(group, episodes=episodes), scores)
    with EpisodeStore(tmp_path) as store:
        assert store.read(first).episode.close_error == "it does not go away"
        assert store.read(second).episode.close_error is None
    assert first.error is None


async def test_a_seat_that_never_acts_keeps_whether_it_succeeded() -> None:
    group, _ = await played(ForfeitPlay)
    assert [t.success for t in group.trajectories] == [True, True] * 2


async def test_what_comes_before_the_first_turn_is_part_of_it() -> None:
    group, scores = await played(Bonus)
    black = group.trajectories[1]
    assert black.unacted_reward == 0.0
    assert [turn.reward for turn in black.turns] == [0.25, -1.0]
    assert black.turns[0].info["success"] == 1.0
    assert scores[1].total == -0.75
    seats = {t.agent: RecordedSeat(t, ends=False) for t in group.episodes[0].trajectories}
    await play(Bonus(), seats, Limits(turns=4), Timeline())
    for seat in seats.values():
        seat.compare_end()  # a replay gives the first turn the same
        assert seat.at == 2


def text_seat():
    return TextSeat("black", speaker=None)


def plain_seat():
    context = AgentContext(
        name="black", renderer=Digits(), sampler=Seeds(), params=SamplingParams(8), max_context=1_000
    )
    return Plain().seat(context)


@pytest.mark.parametrize("seat", [text_seat, plain_seat])
def test_every_seat_keeps_them(seat) -> None:
    never = seat()
    never.add_reward(1.0, {})
    never.add_reward(0.5, {"success": 1.0})
    trajectory = never.finish(Ending.DONE)
    assert (trajectory.reward, trajectory.success, trajectory.turns) == (1.5, True, ())
