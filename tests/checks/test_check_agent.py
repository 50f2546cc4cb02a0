"""Every agent of ours keeps its promises; every broken one here breaks one, and that one is reported."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sojourn.agents.plain import Plain, PlainSeat
from sojourn.checks.agent import PROMISES, check_agent
from sojourn.checks.report import Outcome
from sojourn.errors import ActionError, BudgetError
from sojourn.types import Message, Observation, Role, Sample, ToolCall


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


class GivesAway(PlainSeat):
    """Gives its fork the past itself, and forgets it."""

    def fork(self):
        other = super().fork()
        self.past.clear()
        return other


class SharesNotes(PlainSeat):
    """Tells the model how many turns were taken, and counts those of its forks, too."""

    async def act(self, observation, state=None):
        notes = vars(self).setdefault("notes", [])
        notes.append(0)
        note = Message(Role.USER, f"turn {len(notes)}")
        return await super().act(replace(observation, messages=(*observation.messages, note)), state)

    def fork(self):
        other = super().fork()
        other.notes = vars(self).setdefault("notes", [])
        return other


class Twice(PlainSeat):
    """Samples a draft and then an answer in each turn."""

    async def act(self, observation, state=None):
        await super().act(observation, state)
        return await super().act(Observation((Message(Role.USER, "Answer."),)), state)


class Answers(PlainSeat):
    async def act(self, observation, state=None):
        return (await super().act(observation, state)).text


class Shouts(PlainSeat):
    """Says in capitals what the model said."""

    async def act(self, observation, state=None):
        action = await super().act(observation, state)
        return replace(action, text=action.text.upper())


class Looks(PlainSeat):
    """Looks whatever the model said."""

    async def act(self, observation, state=None):
        await super().act(observation, state)
        return Message(Role.ASSISTANT, calls=(ToolCall("look", {}),))


class Calls(PlainSeat):
    """Makes a call of the words that the model said, where there are two."""

    async def act(self, observation, state=None):
        words = (await super().act(observation, state)).text.split()
        if len(words) != 2:
            raise ActionError("say a verb and a noun")
        return Message(Role.ASSISTANT, calls=(ToolCall(words[0], {"what": words[1]}),))


class Menu(PlainSeat):
    """Reads nothing but numbers."""

    async def act(self, observation, state=None):
        if not (await super().act(observation, state)).text.isdigit():
            raise ActionError("say a number")
        return Message(Role.ASSISTANT, "look")


class SharesPast(PlainSeat):
    """Shares a list which it reads only where a new context begins."""

    def fork(self):
        return replace(self, turns=list(self.turns))


class SharesWithFork(PlainSeat):
    """Shares what was shown, which the fork reads and only the origin changes."""

    seen: tuple = ()

    async def act(self, observation, state=None):
        self.seen = self.seen or []
        if "origin" in vars(self):
            return await self._recalling(observation, state)
        self.seen.append(observation.messages[-1].text)
        return await super().act(observation, state)

    async def _recalling(self, observation, state):
        note = Message(Role.USER, " ".join(self.seen))
        return await super().act(replace(observation, messages=(*observation.messages, note)), state)

    def fork(self):
        other = super().fork()
        other.seen, other.origin = self.seen, self
        return other


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
        (OneTree, "a forked seat goes on by itself", "changes its origin: copy in fork()"),
        (GivesAway, "a forked seat goes on by itself", "in another way than without it"),
        (SharesNotes, "a forked seat goes on by itself", "changes its origin: copy in fork()"),
        (SharesPast, "a forked seat goes on by itself", "changes its origin: copy in fork()"),
        (SharesWithFork, "a forked seat goes on by itself", "what the origin does changes its fork: copy in fork()"),
        (Shouts, "an action is read from what was sampled", "acts 'GO NORTH' after the model said 'go north'"),
        (Looks, "an action is read from what was sampled", "acts 'look()' after the model said 'go north'"),
    ],
)
async def test_a_broken_agent_is_caught(cls, promise, words):
    report = await check_agent(Agent(cls))
    assert report.failed == (promise,)
    assert words in report[promise].detail


async def test_an_agent_that_samples_twice_in_a_turn_keeps_every_promise():
    report = await check_agent(Agent(Twice))
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts
    assert report["a forked seat goes on by itself"].detail == "4 turns are shared"


async def test_an_agent_may_read_its_action_out_of_what_was_sampled():
    report = await check_agent(Agent(Calls))
    assert report["an action is read from what was sampled"].outcome is Outcome.PASSED, report.verdicts
    assert report.failed == (), report.verdicts
    unread = (await check_agent(Agent(Menu)))["an action is read from what was sampled"]
    assert (unread.outcome, unread.detail) == (Outcome.NOT_OFFERED, "it reads none of the 4 replies as an action")


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
