"""Makes one trajectory of the beginning of a bad play and the rest of a good one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sojourn.agents.plain import Plain
from sojourn.errors import ActionError
from sojourn.protocols import AgentContext
from sojourn.search_cost import PLANNED, SEARCH_TOKENS, SEARCH_TURNS
from sojourn.sources.segments import segment
from sojourn.types import Ending, Message, Observation, Role, Sample, Score, Trajectory, Turn

REVISION = "revision"  # in the info of a turn, 1 where the agent says that it was wrong


@dataclass(frozen=True)
class Cut:
    """Two plays of a task: the bad one is cut after its turn `wrong`, the good one before its turn `diverged`."""

    bad: Trajectory
    good: Trajectory
    diverged: int
    wrong: int

    @property
    def rest(self) -> tuple[Turn, ...]:
        """Returns the turns of the good play that are kept."""
        return self.good.turns[self.diverged :]

    @property
    def wrong_turns(self) -> int:
        """Returns how many turns of the bad play are kept from the divergence on."""
        return self.wrong + 1 - self.diverged

    def samples(self, revision: Sample) -> list[Sample]:
        """Returns what the agent says in the splice, in order."""
        before = [turn.sample for turn in self.bad.turns[: self.wrong + 1]]
        return [*before, revision, *(turn.sample for turn in self.rest)]

    def shown(self, answer: str, ended: str, *, again: bool) -> list[Observation]:
        """Returns what the agent is shown before each of these: what was recorded, `answer` to its revision, and
        `ended` before that, where the bad play had ended. `again` repeats what was shown at the divergence."""
        after = self.bad.turns[self.wrong + 1 : self.wrong + 2]
        told = Observation(after[0].observed if after else (Message(Role.USER, ended),))
        at = [_of_user(message) for message in self.rest[0].observed if message.role is not Role.SYSTEM and again]
        answered = Observation((Message(Role.USER, answer), *at))
        return [*shown_in(self.bad)[: self.wrong + 1], told, answered, *shown_in(self.good)[self.diverged + 1 :]]


class Splice(NamedTuple):
    trajectory: Trajectory
    score: Score


def splice(cut: Cut, whole: Trajectory, score: Score, *, trains_revision: bool) -> Splice:
    """Returns what is trained of a `whole` trajectory: the turns after the bad ones, whose tokens are in their context,
    with the rewards of the good play. Those from before the divergence come with the first turn."""
    first = cut.wrong + (1 if trains_revision else 2)
    turns = list(segment(whole, first).turns)
    revision = [replace(turn, info={REVISION: 1.0}) for turn in turns[: -len(cut.rest)]]
    rest = [
        replace(turn, reward=of.reward, info=_without_search(of), state=of.state)
        for turn, of in zip(turns[-len(cut.rest) :], cut.rest, strict=True)
    ]
    turns = [*revision, *rest]
    turns[0] = replace(turns[0], reward=turns[0].reward + sum(turn.reward for turn in cut.good.turns[: cut.diverged]))
    rewards = np.concatenate([np.zeros(len(revision), np.float32), score.turns[cut.diverged :]])
    rewards[0] += score.turns[: cut.diverged].sum()
    return Splice(replace(cut.good, turns=tuple(turns)), replace(score, turns=rewards.astype(np.float32)))


def shown_in(trajectory: Trajectory) -> list[Observation]:
    """Returns what a seat was shown before each of its turns."""
    return [Observation(turn.observed, tools=turn.tools) for turn in trajectory.turns]


async def spoken(shown: Sequence[Observation], context: AgentContext) -> Trajectory:
    """Returns the turns of an agent that keeps its whole history and is shown these observations; the context's sampler
    gives its samples. Raises `BudgetError` where the context has no room for one."""
    seat = Plain().seat(context)
    for observation in shown:
        with suppress(ActionError):  # the world refused it, too, and what it said is what is shown next
            await seat.act(observation)
    return seat.finish(Ending.DONE)


def same_prompts(one: Trajectory, other: Trajectory) -> bool:
    """Returns whether the turns of two trajectories have the same prompts, token by token."""
    return len(one.turns) == len(other.turns) and all(
        np.array_equal(one.prompt(number), other.prompt(number)) for number in range(len(one.turns))
    )


def _of_user(message: Message) -> Message:
    """Returns an observation that is no longer the answer to a call."""
    return message if message.role is Role.USER else replace(message, role=Role.USER, answers=None)


def _without_search(turn: Turn) -> dict[str, float]:
    """Returns the info of a turn without the cost of a search, which is counted with the play itself."""
    return {name: value for name, value in turn.info.items() if name not in (SEARCH_TOKENS, SEARCH_TURNS, PLANNED)}
