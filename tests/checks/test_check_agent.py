"""Every agent of ours keeps its promises; every broken one here breaks one, and that one is reported."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sojourn.agents.plain import Plain, PlainSeat
from sojourn.checks.agent import PROMISES, check_agent
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, BudgetError
from sojourn.types import Message, Role, Sample


@pytest.mark.parametrize(
    "agent", [Plain(), Plain(history="window", turns=1), Plain(history="page"), Plain(choices=True)]
)
async def test_ours_keep_every_promise(agent):
    report = await check_agent(agent)
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@dataclass(frozen=True)
class Agent:
    """Has the plain agent take the seats; `cls` changes one thing."""

    cls: type = PlainSeat

    def seat(self, context):
        return self.cls(Plain(), context)


class NoRefuse(PlainSeat):
    refuse = None


class Anonymous(PlainSeat):
    def finish(self, ending):
        return replace(super().finish(ending), agent="agent")


class Encodes(PlainSeat):
    """Keeps the tokens of the reply's text, not those that were sampled."""

    def finish(self, ending):
        made = super().finish(ending)
        encode = self.context.renderer.encode_reply
        turns = [replace(turn, sample=self._again(turn, encode(turn.message))) for turn in made.turns if turn.message]
        return replace(made, turns=tuple(turns))

    def _again(self, turn, tokens):
        return Sample(np.array(tokens), np.zeros(len(tokens), np.float32), turn.sample.versions, turn.sample.stop)


class Doubles(PlainSeat):
    def finish(self, ending):
        made = super().finish(ending)
        return replace(made, turns=(*made.turns, made.turns[-1]))


class ForgetsContexts(PlainSeat):
    def finish(self, ending):
        made = super().finish(ending)
        return replace(made, turns=tuple(replace(turn, parent=-1) for turn in made.turns))


class Unpaid(PlainSeat):
    def add_reward(self, reward, info):
        if self.turns:
            super().add_reward(reward, info)


class DropsUnreadable(PlainSeat):
    async def act(self, observation, state=None):
        try:
            return await super().act(observation, state)
        except ActionError:
            self.turns.pop()
            self.past.pop()
            raise

    def refuse(self, error, observation):
        return observation


class Greedy(PlainSeat):
    def _params(self, observation, room):
        return replace(super()._params(observation, room), max_tokens=10_000)


class OneSeed(PlainSeat):
    def _params(self, observation, room):
        return replace(super()._params(observation, room), seed=self.context.params.seed)


SHARED = []


class Shared(PlainSeat):
    """Counts in one place for all seats, and tells the model."""

    async def act(self, observation, state=None):
        SHARED.append(0)
        note = Message(Role.USER, f"note {len(SHARED)}")
        return await super().act(replace(observation, messages=(*observation.messages, note)), state)


PLAYING = []


class Notes(PlainSeat):
    """Tells the model how many seats are playing."""

    async def act(self, observation, state=None):
        if not any(seat is self for seat in PLAYING):
            PLAYING.append(self)
        note = Message(Role.USER, f"{len(PLAYING)} are playing")
        return await super().act(replace(observation, messages=(*observation.messages, note)), state)

    def finish(self, ending):
        PLAYING[:] = [seat for seat in PLAYING if seat is not self]
        return super().finish(ending)

    def fork(self):
        raise NotImplementedError


class OneTree(PlainSeat):
    def fork(self):
        return self


class Answers(PlainSeat):
    async def act(self, observation, state=None):
        return (await super().act(observation, state)).text


@pytest.mark.parametrize(
    ("cls", "promise", "words"),
    [
        (NoRefuse, "it takes a seat", "NoRefuse has no refuse()"),
        (Anonymous, "an episode gives a trajectory", "expected 'north'"),
        (Answers, "an episode gives a trajectory", "act() gave 'go north': expected a Message"),
        (Encodes, "every sample is kept, once", "never encoded again"),
        (Doubles, "every sample is kept, once", "5 turns for 4 samples"),
        (ForgetsContexts, "a turn's context is what the model was asked with", "would be trained after"),
        (Unpaid, "rewards are kept", "one before its first turn"),
        (DropsUnreadable, "a sample that cannot be read is kept", "it was sampled, so it is trained"),
        (Greedy, "it asks for no more than a context holds", "bound max_tokens by the room that is left"),
        (OneSeed, "every sample has a seed of its own", "the same seed"),
        (Shared, "it is deterministic", "have different trajectories"),
        (OneTree, "a forked seat goes on by itself", "in another way than without it"),
    ],
)
async def test_a_broken_agent_is_caught(cls, promise, words):
    report = await check_agent(Agent(cls))
    assert report.failed == (promise,)
    assert words in report[promise].detail


async def test_seats_that_affect_each_other_are_caught():
    report = await check_agent(Agent(Notes))
    assert report.failed == ("seats do not affect each other", "a forked seat goes on by itself")
    assert "keep state in the seat" in report["seats do not affect each other"].detail
    assert "NotImplementedError" in report["a forked seat goes on by itself"].detail


async def test_no_room_is_an_error_of_the_budget():
    class Shrugs(PlainSeat):
        async def act(self, observation, state=None):
            try:
                return await super().act(observation, state)
            except BudgetError:
                return Message(Role.ASSISTANT, "wait")

    verdict = (await check_agent(Agent(Shrugs)))["it asks for no more than a context holds"]
    assert verdict.outcome is Outcome.WARNED
