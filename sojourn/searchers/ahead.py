"""Plays on in copies of a play, from where one of its seats is to act."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sojourn.abilities import Forkable, ForkableSeat, HasStateKey, ValueModel, blobs_of
from sojourn.blame import EnvCall, close
from sojourn.call_text import action_text
from sojourn.errors import ActionError, BudgetError, ConfigError, WorldError
from sojourn.protocols import AgentContext, Env, Renderer, Reward, Sampler, Seat
from sojourn.rewards.reward_cache import score_group
from sojourn.rollout.play import Moment
from sojourn.seeds import seed_of
from sojourn.types import (
    Considered,
    Ending,
    Episode,
    FloatArray,
    Group,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Stop,
    Task,
    Trajectory,
    Turn,
    Versions,
)

MOST_RECORDED = 256  # actions that are recorded with a turn, the first that were tried
LONGEST = 200  # characters of one


@dataclass(frozen=True)
class Position:
    """A copy of the play after some actions. `moment` says where it stands, its `performed` actions being those since
    the search began; `seats` go on from there, and `trajectories` are theirs from the start of the play. Once it is
    `over` nothing goes on; before, `state` is the world's state key, if it has keys."""

    moment: Moment
    seats: Mapping[str, ForkableSeat]
    trajectories: Mapping[str, Trajectory]
    over: bool = False
    state: str | None = None

    @property
    def actor(self) -> str:
        """Returns the seat that acts next."""
        return self.moment.observation.agent


class Tried(NamedTuple):
    """An action, by the seat `agent`, and the position after it; it was sampled so many `times`."""

    position: Position
    agent: str
    text: str
    times: int


class Valued(NamedTuple):
    """Says what a position is worth to each seat in the mean, and which play from there was worth most to the seat that
    searches (`best_worth`)."""

    worths: Mapping[str, float]
    best: Position
    best_worth: float


@dataclass
class Ahead:
    """Offers what the seat `name` may try before it acts at the position `root`.

    Copies of the play are sampled with the weights of the play itself, each with a seed of its own. `tokens` counts
    what was sampled in them, `turns` the actions that their worlds performed, and `failures` those that failed, of
    which nothing is known then. `budget` is how many tokens may be sampled; a search asks for it (`left`) between its
    trials. `ends` are the copies that were played to their ends, and `wrong` those that were left right after a turn of
    whose info a number in `mistakes` is above 0, both by the numbers of the copies. `known` has actions that lead to
    success by the state key from which they do, and the images that copies showed go to `on_blobs`, if that is given.
    `critic` is there where the search asks it, and the numbers in `info` become part of the turn's.
    """

    name: str
    root: Position
    task: Task
    env: Forkable
    call: EnvCall
    play: Callable[..., Awaitable[Sequence[Trajectory]]]
    contexts: Mapping[str, AgentContext]
    reward: Reward | None
    places: asyncio.Semaphore
    budget: float = math.inf
    seed: int = 0
    tokens: int = 0
    turns: int = 0
    failures: int = 0
    copies: int = 0
    on_blobs: Callable[[Mapping[str, bytes]], None] | None = None
    mistakes: Sequence[str] = ()
    known: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    ends: list[tuple[int, Position]] = field(default_factory=list[tuple[int, Position]])
    wrong: list[tuple[int, Position]] = field(default_factory=list[tuple[int, Position]])
    considered: list[Considered] = field(default_factory=list[Considered])
    critic: ValueModel | None = None
    info: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def left(self) -> float:
        """Returns how many tokens may still be sampled, 0 at the end."""
        return max(self.budget - self.tokens, 0)

    async def play_on(self, position: Position, turns: int | None = None, say: str = "") -> Position | None:
        """Returns where the play stands `turns` turns after a position, or at its end; None where a copy failed. With
        `say`, that is the first action, and nothing is sampled for it."""
        number, self.copies = self.copies, self.copies + 1
        seats = {name: seat.fork(self._context(name, number)) for name, seat in position.seats.items()}
        if say:
            context = self._context(position.actor, number)
            seats[position.actor] = position.seats[position.actor].fork(
                replace(context, sampler=Says(context.renderer, context.sampler, say))
            )
        course = _Until(position.moment, math.inf if turns is None else position.moment.turns + turns)
        async with self.places:
            try:
                played = await self._run(position, seats, course)
            except (ConfigError, WorldError):
                raise
            except Exception:  # of the copy alone: the play itself did not fail
                self.failures += 1
                return None
        trajectories = dict(zip(seats, played, strict=True))
        reached = Position(course.reached, _forkable(seats), trajectories, not course.paused, course.state)
        new = self.new_turns(reached, position)
        self.tokens += sum(len(turn.sample.tokens) for turn in new if turn.sample.versions.oldest >= 0)
        self.turns += len(new) + len(position.moment.performed)
        if reached.over:
            self.ends.append((number, reached))
        elif new and any(new[-1].info.get(name, 0.0) > 0 for name in self.mistakes):
            self.wrong.append((number, reached))
        return reached

    async def recall(self, position: Position) -> Position | None:
        """Returns where the play stands after the actions that are known to lead to success from a position; None where
        none are, or one of them failed in a copy. Nothing is sampled for them."""
        reached: Position | None = position
        for action in self.known.get(position.state or "", ()):
            if reached is None or reached.over:
                break
            reached = await self.play_on(reached, 1, action)
        return None if reached is position else reached

    async def _run(self, position: Position, seats: Mapping[str, Seat], course: _Until) -> Sequence[Trajectory]:
        """Plays in a copy of the play, in which the actions up to the position are performed first."""
        env: Env = await self.call(self.env.fork)
        try:
            for action in position.moment.performed:
                await self.call(env.step, *action)
            return await self.play(env, seats, course=course)
        except _PausedError:
            keyed = env if isinstance(env, HasStateKey) else None
            course.state = None if keyed is None else keyed.state_key()
            return [seat.finish(Ending.TURNS) for seat in seats.values()]
        finally:
            if self.on_blobs is not None and (blobs := blobs_of(env)):
                self.on_blobs(blobs)
            await close(env, self.call)

    async def play_all(self, position: Position, count: int, turns: int | None = None) -> list[Position]:
        """Returns where `count` copies stand, each played on by itself; those that failed are left out."""
        reached = await asyncio.gather(*(self.play_on(position, turns) for _ in range(count)))
        return [one for one in reached if one is not None]

    async def play_within(self, count: int, at_once: int = 0) -> AsyncIterator[list[Position]]:
        """Yields the ends of up to `count` plays from the root, some at a time: `at_once`, or as many as the budget is
        expected to allow after those that were played."""
        played, failed = 0, self.failures
        while (more := count - played - self.failures + failed) > 0 and self.left:
            if at_once:
                more = min(more, at_once)
            if math.isfinite(self.budget):
                more = min(more, max(int(self.left * played / max(self.tokens, 1)), 1))
            ends = await self.play_all(self.root, more)
            played += len(ends)
            yield ends

    async def expand(self, position: Position, width: int, *, listed: bool = False) -> list[Tried]:
        """Returns the distinct actions among `width` that the policy samples at a position, most frequent first; with
        `listed`, those that the world lists, if it does."""
        agent, choices = position.actor, position.moment.observation.choices if listed else ()
        if choices:
            reached = await asyncio.gather(*(self.play_on(position, 1, choice) for choice in choices))
            return [Tried(p, agent, text, 1) for p, text in zip(reached, choices, strict=True) if p is not None]
        positions = await self.play_all(position, width, 1)
        texts = [first_action(self.new_turns(one, position)) for one in positions]
        first = dict(zip(reversed(texts), reversed(positions), strict=True))
        return [Tried(first[text], agent, text, count) for text, count in Counter(texts).most_common()]

    async def ask(self, position: Position, question: str) -> str:
        """Returns what the seat that acts at a position answers to a question, which follows what it is shown; "" where
        there is no room for it, or no answer that can be read."""
        seen, before = position.moment.seen, position.trajectories[position.actor]
        number, self.copies = self.copies, self.copies + 1
        seat = position.seats[position.actor].fork(self._context(position.actor, number))
        asked = replace(seen, messages=(*seen.messages, Message(Role.USER, question)), choices=())
        try:
            answer = (await seat.act(asked)).text
        except (ActionError, BudgetError):
            answer = ""
        except (ConfigError, WorldError):
            raise
        except Exception:
            self.failures, answer = self.failures + 1, ""
        turns = seat.finish(Ending.TURNS).turns[len(before.turns) :]
        self.tokens += sum(len(turn.sample.tokens) for turn in turns)
        return answer

    async def expected(self, position: Position) -> float:
        """Returns the rewards that the seat which is to act at a position was given so far by the world, and what the
        critic expects it to be given from there on: nothing where it has no room to act."""
        before = position.trajectories[position.actor]
        assert self.critic is not None, "a search that asks the critic is given one"
        if len(self.contexts) > 1:
            raise ConfigError(
                f"the critic values the state of the seat that is to act, and {self.task.env} has several seats: leave "
                "`critic` out of the agent"
            )
        seat = position.seats[position.actor]
        prompt = await prompt_before(seat, self._context(position.actor, 0), position.moment.seen)
        return before.reward + (0.0 if prompt is None else await self.critic.value(prompt))

    async def worth(self, position: Position) -> dict[str, float]:
        """Returns the reward of each seat of a play, as if it ended here."""
        trajectories = tuple(replace(one, trainable=True) for one in position.trajectories.values())
        assert self.reward is not None, "a search that asks what plays are worth has a judge"
        scores = await score_group(self.reward, Group(0, self.task, (Episode("search", self.task, trajectories),)))
        return {one.agent: score.total for one, score in zip(trajectories, scores, strict=True)}

    async def valued(self, position: Position, rollouts: int, critic: float = 0.0) -> Valued:
        """Returns what a position is worth: where it goes on, the mean reward of as many plays from there to the end,
        with 0 of them, or where no tokens are left, the reward so far. What the critic expects has the weight `critic`
        in that."""
        ends = await self.play_all(position, rollouts) if self.left and not position.over else []
        worths = [await self.worth(end) for end in ends or [position]]
        best = int(np.argmax([worth[self.name] for worth in worths]))
        mean = {name: float(np.mean([worth[name] for worth in worths])) for name in worths[0]}
        if critic and not position.over:
            mean[self.name] += critic * (await self.expected(position) - mean[self.name])
            if not ends:
                return Valued(mean, position, mean[self.name])
        return Valued(mean, (ends or [position])[best], worths[best][self.name])

    def new_turns(self, position: Position, before: Position, name: str = "") -> list[Turn]:
        """Returns the turns of all seats, or of one, after another position."""
        names = [name] if name else list(position.trajectories)
        return [
            turn for one in names for turn in position.trajectories[one].turns[len(before.trajectories[one].turns) :]
        ]

    def likelihood(self, position: Position) -> float:
        """Returns the mean log-probability of the tokens that the seat sampled since the root."""
        logprobs = [turn.sample.logprobs for turn in self.new_turns(position, self.root, self.name)]
        return float(np.concatenate(logprobs).mean()) if logprobs and sum(map(len, logprobs)) else 0.0

    def plan(self, position: Position | None) -> list[Turn]:
        """Returns the seat's turns from the root to a position; where others act, too, the first one only, as nothing
        says that they will act as they did."""
        if position is None:
            return []
        turns = self.new_turns(position, self.root, self.name)
        return turns if len(position.seats) == 1 else turns[:1]

    def consider(self, text: str, value: float, visits: int = 1, parent: int = -1, agent: str = "") -> int:
        """Records an action that was tried, and returns its number; -1 where there are too many."""
        if len(self.considered) >= MOST_RECORDED:
            return -1
        self.considered.append(Considered(parent, agent or self.name, text[:LONGEST], value, visits))
        return len(self.considered) - 1

    def note(self, number: int, value: float) -> None:
        """Records the value of an action that was recorded without one."""
        if number >= 0:
            self.considered[number] = self.considered[number]._replace(value=value, visits=1)

    def first_text(self, position: Position) -> str:
        """Returns the seat's first action after the root, as text."""
        return first_action(self.new_turns(position, self.root, self.name))

    def _context(self, name: str, number: int) -> AgentContext:
        context = self.contexts[name]
        seed = seed_of(context.params.seed, "search", self.seed, number, name)
        return replace(context, params=replace(context.params, seed=seed))


async def prompt_before(seat: ForkableSeat, context: AgentContext, seen: Observation) -> Prompt | None:
    """Returns the prompt after which a seat would act where it is shown this; None where it has no room to act."""
    asked = _Asked()
    try:
        await seat.fork(replace(context, sampler=asked)).act(seen)
    except _PausedError:
        assert asked.prompt is not None
        return asked.prompt
    except BudgetError:
        return None
    raise ConfigError(f"{type(seat).__name__} acts without a sample, so that its state cannot be told")


@dataclass
class Says:
    """Says a text once, as if it had been sampled with certainty, and then samples."""

    renderer: Renderer
    sampler: Sampler
    text: str

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        if not self.text:
            return await self.sampler.sample(prompt, params)
        tokens = np.asarray(self.renderer.encode_reply(Message(Role.ASSISTANT, self.text)), dtype=np.int64)
        self.text = ""
        return Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.END)

    async def score(self, prompt: Prompt) -> FloatArray:
        return await self.sampler.score(prompt)

    async def close(self) -> None:
        """Does nothing: the sampler is the run's."""


@dataclass
class _Asked:
    """Takes the prompt after which a seat would act, and interrupts it."""

    prompt: Prompt | None = None

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.prompt = prompt
        raise _PausedError

    async def score(self, prompt: Prompt) -> FloatArray:
        raise _PausedError

    async def close(self) -> None:
        """Does nothing: it holds nothing."""


class _PausedError(Exception):
    """A copy of a play has taken as many turns as it was to take, or a seat is not to act."""


@dataclass
class _Until:
    """Begins a play at a moment, and interrupts it before turn `turns`."""

    start: Moment
    turns: float
    reached: Moment = field(init=False)
    paused: bool = False
    state: str | None = None  # of the world, once it is paused

    def __post_init__(self) -> None:
        self.reached = self.start

    async def before_turn(self, moment: Moment) -> None:
        self.reached = moment
        if moment.turns >= self.turns:
            self.paused = True
            raise _PausedError

    async def ended(self) -> None:
        """Does nothing."""


def _forkable(seats: Mapping[str, object]) -> dict[str, ForkableSeat]:
    return {name: seat for name, seat in seats.items() if isinstance(seat, ForkableSeat)}


def first_action(turns: Sequence[Turn]) -> str:
    """Returns the action of the first of some turns, as text."""
    if not turns:
        return "(no room in the context)"
    message = turns[0].message
    return "(malformed)" if message is None else action_text(message)
