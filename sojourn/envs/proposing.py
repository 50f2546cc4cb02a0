"""A world whose tasks a model may propose: beside the world's own plays, it has plays of proposing a task of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any

from sojourn.abilities import Bounds, Closes, HasWorlds, MakesTasks, Opens, ProposesByActing, ReadsTasks
from sojourn.codec import from_plain, to_plain
from sojourn.config.fields import Kind, Range
from sojourn.curricula.limits import Limits, check_limits
from sojourn.envs.task_text import LONGEST, NumbersAsText, line, named, reader_of
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn.protocols import Env, EnvFamily
from sojourn.tasks import Generated
from sojourn.types import Episode, Message, Observation, Role, Step, Task

PROPOSING = "proposing"  # the environment of tasks of proposing
SEAT = "proposer"
MADE = "made"  # the tag of tasks that no split has
IMPOSSIBLE = "impossible"  # in the info of a turn: 1 if the text was a task that cannot be used
LOWEST = -1.0


@dataclass(frozen=True, kw_only=True)
class Proposing:
    """A world in which a model may propose tasks of `world`, for the source `proposals`, which has them solved.

    Tasks, plays and everything else are those of `world`. Besides, there are plays of the seat "proposer": it is told
    how a task is written, is shown some tasks, and writes another one, which the world reads and verifies. A world
    reads its own texts (`ReadsTasks`), such as maps, or the numbers in its tasks' data are written (`MakesTasks`). The
    play ends when a task was proposed that can be used, with a reward of 0, as only plays of it tell what it is worth;
    or when it cannot be used, as nobody could solve it or as it is one of the test split, or the last of `tries` texts
    was malformed, with a reward of -1.

    In a world that is proposed in by acting (`ProposesByActing`), such as `repo`, the proposer acts in a play of its
    own, such as one in which it breaks what others are to repair, and the task is what its actions have made; `tries`
    is how often it may say that it is done.

    `limits`, such as {rooms = [2, 8]}, names the numbers that are proposed, with narrower bounds; the others are those
    of a task that the curriculum draws. Without it, all that the world allows are proposed, and the world's own texts
    where it has any.

    With `choices` a proposer is asked for one number after the other, and the possible ones are listed, so that an
    agent that samples among listed choices always proposes a well-formed task. With `warmup` every other task of the
    training split is one of proposing, whose expert writes the task before it: for demonstrations to a proposer.
    """

    world: Annotated[EnvFamily, Kind("env")]
    tries: Annotated[int, Range(1, 100)] = 1
    choices: bool = False
    limits: Limits = field(default_factory=dict[str, tuple[float, float]])
    warmup: bool = False

    @cached_property
    def proposals(self) -> Proposals:
        return Proposals(self.world, self.tries, self.choices, self.limits)

    @property
    def worlds(self) -> tuple[EnvFamily, ...]:
        return (*(self.world.worlds if isinstance(self.world, HasWorlds) else (self.world,)), self.proposals)

    def world_of(self, task: Task) -> EnvFamily:
        """Returns the world that a task belongs to."""
        if task.env == PROPOSING:
            return self.proposals
        return self.world.world_of(task) if isinstance(self.world, HasWorlds) else self.world

    def tasks(self, split: str) -> Sequence[Task]:
        own = self.world.tasks(split)
        if not self.warmup or split != "train":
            return own
        of_proposing = self.proposals.tasks(split)
        return Generated(lambda index: (own, of_proposing)[index % 2][index // 2], 2 * len(own))

    def make(self, task: Task) -> Env:
        return self.proposals.make(task) if task.env == PROPOSING else self.world.make(task)

    def bounds(self, like: Task) -> Mapping[str, Bounds]:
        if like.env == PROPOSING or not isinstance(self.world, MakesTasks):
            return {}
        return self.world.bounds(like)

    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None:
        return self.world.make_task(like, data, seed) if isinstance(self.world, MakesTasks) else None

    def proposal(self, like: Task, examples: Sequence[str], seed: int) -> Task:
        if self.proposals.acted(like) is None:
            self.proposals.reader(like).task_format(like)
        return _task(like, examples, seed)

    def proposed(self, episode: Episode) -> Task | None:
        """Returns the task that an episode of proposing ended with."""
        if episode.error is not None:
            return None
        [trajectory] = episode.trajectories
        if not trajectory.turns or not trajectory.success:
            return None
        texts = [
            turn.message.text
            for turn in trajectory.turns
            if turn.message is not None and not turn.info.get("malformed")
        ]
        like = like_of(episode.task)
        if self.proposals.acted(like) is not None:
            return self.proposals.made(episode.task, texts)
        return self.proposals.read(episode.task, texts[-self.proposal_turns(like) :])

    def written(self, task: Task) -> str:
        return (self.proposals.acted(task) or self.proposals.reader(task)).write_task(task)

    def proposal_turns(self, like: Task) -> int:
        if self.proposals.acted(like) is not None:
            return 1
        reader = self.proposals.reader(like)
        return len(reader.choices(like)) if self.choices and isinstance(reader, NumbersAsText) else 1

    async def open(self) -> None:
        if isinstance(self.world, Opens):
            await self.world.open()

    async def close(self) -> None:
        if isinstance(self.world, Closes):
            await self.world.close()


@dataclass(frozen=True)
class Proposals:
    """The plays of proposing tasks of a family."""

    family: EnvFamily
    tries: int
    choices: bool
    limits: Limits

    seats = (SEAT,)
    lowest_reward = LOWEST

    def tasks(self, split: str) -> Sequence[Task]:
        """Returns a task of proposing for each of the family's training tasks, without examples; none for tests."""
        if split == "test":
            return ()
        train = self.family.tasks("train")

        def make(index: int) -> Task:
            return _task(train[index], [], index)

        return Generated(make, len(train))

    def make(self, task: Task) -> Env:
        like = like_of(task)
        if (world := self.acted(like)) is not None:
            return world.propose(like, task.data["examples"], task.seed, self.tries)
        reader = self.reader(like)
        if self.choices and isinstance(reader, NumbersAsText):
            return ChosenProposal(self, task, like, reader, self.tries)
        return Proposal(self, task, like, reader, self.tries)

    def acted(self, like: Task) -> ProposesByActing | None:
        """Returns the world of a task where tasks like it are proposed by acting; raises `ConfigError` where keys are
        set that such a world does not read."""
        world = self.family.world_of(like) if isinstance(self.family, HasWorlds) else self.family
        if not isinstance(world, ProposesByActing):
            return None
        if self.choices or self.limits:
            raise ConfigError(
                f"proposing: tasks of the world '{like.env}' are proposed by acting in it, so that there are no "
                "numbers to choose or to limit: leave choices and limits out"
            )
        return world

    def made(self, task: Task, actions: Sequence[str]) -> Task | None:
        """Returns the task that the actions of a play of `task` made, in a world in which one is proposed by acting."""
        like = like_of(task)
        world = self.acted(like)
        assert world is not None
        made = world.made_by(like, actions, _seed_of(task, "\n".join(actions)))
        return replace(made, tags=tuple(dict.fromkeys((*like.tags, MADE))))

    def reader(self, like: Task) -> ReadsTasks:
        """Returns what reads texts as tasks like one; raises `ConfigError` where nothing does."""
        if self.limits and isinstance(self.family, MakesTasks):
            check_limits("proposing", self.limits, self.family.bounds(like))
        reader = reader_of(self.family, like, self.limits)
        if reader is None:
            raise ConfigError(
                f"proposing: the world '{like.env}' reads no tasks from text, and makes none of numbers: take one that "
                "does, such as toy or frozenlake, or give yours `bounds` with `make_task`, or `read_task`"
            )
        return reader

    def read(self, task: Task, texts: Sequence[str]) -> Task | None:
        """Returns the task that is proposed by texts in a play of `task`, None where it cannot be used; raises
        `ActionError` where the texts are malformed."""
        like, text = like_of(task), "\n".join(texts)
        if len(text) > LONGEST:
            raise ActionError(f"A task has at most {LONGEST} characters.")
        reader = self.reader(like)
        made = reader.read_task(like, text, _seed_of(task, text))
        if made is None:
            return None
        kept = made.tags if isinstance(reader, NumbersAsText) else like.tags
        return replace(made, tags=tuple(dict.fromkeys((*kept, MADE))))


def _task(like: Task, examples: Sequence[str], seed: int) -> Task:
    """Returns the task of proposing one like another, whose data are JSON values alone."""
    plain = {**to_plain(like), "tags": list(like.tags)}
    return Task(PROPOSING, {"like": plain, "examples": list(examples)}, seed, "train")


def _seed_of(task: Task, text: str) -> int:
    return int.from_bytes(blake2b(f"{task.seed} {text}".encode(), digest_size=4).digest())


def like_of(task: Task) -> Task:
    """Returns the task in whose place one is proposed."""
    return from_plain(task.data["like"], Task)


@dataclass
class Proposal:
    """A play in which a task is written as one text."""

    family: Proposals
    task: Task
    like: Task
    reader: ReadsTasks
    tries: int
    done: bool = False

    async def start(self) -> Observation:
        told = (Message(Role.SYSTEM, self._told()),)
        return Observation((Message(Role.USER, self._shown()),), system=told, agent=SEAT)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a play of proposing was given an action after its end: play each world once")
        return self._judged(agent, [action.text])

    async def close(self) -> None:
        pass

    async def fork(self) -> Proposal:
        return replace(self)

    def expert(self) -> str:
        """Returns the text of the task in whose place one is proposed."""
        return self.reader.write_task(self.like)

    def _told(self) -> str:
        return f"Propose a task that can be solved, but is not easy. {self.reader.task_format(self.like)}"

    def _shown(self) -> str:
        """Returns the tasks that are shown, and what is asked for."""
        examples = self.task.data["examples"]
        listed = "\n\n".join(f"Task {number + 1}:\n{text}" for number, text in enumerate(examples))
        return f"{listed}\n\nWrite another task.".strip()

    def _judged(self, agent: str, texts: Sequence[str]) -> Step:
        try:
            task = self.family.read(self.task, texts)
        except ActionError:
            self.tries -= 1
            if self.tries:
                raise
            self.done = True
            return Step(None, {agent: LOWEST}, done=True, success=False, info={"malformed": 1.0})
        self.done = True
        if task is None:
            return Step(None, {agent: LOWEST}, done=True, success=False, info={IMPOSSIBLE: 1.0})
        return Step(None, {agent: 0.0}, done=True, success=True)


@dataclass
class ChosenProposal(Proposal):
    """A play in which a task is written number by number, each from a list."""

    said: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._choices)

    @property
    def _choices(self) -> Mapping[str, tuple[str, ...]]:
        assert isinstance(self.reader, NumbersAsText)
        return self.reader.choices(self.like)

    async def start(self) -> Observation:
        first = self._ask(f"{self._shown()}\n")
        return replace(first, system=(Message(Role.SYSTEM, self._told()),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("a play of proposing was given an action after its end: play each world once")
        text = " ".join(action.text[:200].lower().split())
        if text not in self._choices[self.keys[len(self.said)]]:
            self.tries -= 1
            if self.tries:
                raise ActionError(f'"{text[:30]}" is not one of the possible lines.')
            self.done = True
            return Step(None, {agent: LOWEST}, done=True, success=False, info={"malformed": 1.0})
        self.said = (*self.said, text)
        if len(self.said) == len(self.keys):
            return self._judged(agent, self.said)
        return Step(self._ask(), {agent: 0.0})

    def expert(self) -> str:
        key = self.keys[len(self.said)]
        return line(key, self.like.data[key])

    def _told(self) -> str:
        return "Propose a task that can be solved, but is not easy. Say a name and its number."

    def _ask(self, before: str = "") -> Observation:
        key = self.keys[len(self.said)]
        return Observation((Message(Role.USER, f"{before}{named(key)}?"),), choices=self._choices[key], agent=SEAT)
