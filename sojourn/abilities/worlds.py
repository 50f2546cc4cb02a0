"""What worlds, their plays and seats may offer besides their roles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.protocols import Agent, AgentContext, Env, EnvFamily, Seat
from sojourn.types import Episode, Message, Observation, Task


@runtime_checkable
class Forkable(Ability, Protocol):
    """A play that can be copied: `fork` returns an independent play in the same state."""

    async def fork(self) -> Env: ...


@runtime_checkable
class HasStateKey(Ability, Protocol):
    """A play that says what counts as the same state: equal states have equal keys."""

    def state_key(self) -> str: ...


@runtime_checkable
class HasExpert(Ability, Protocol):
    """A play with a scripted expert.

    `expert` returns the expert's next action as the agent would say it, or a coroutine of it. Every such action has an
    effect, and following the expert from any state reaches success where that is still possible.
    """

    def expert(self) -> str | Awaitable[str]: ...


@runtime_checkable
class Demonstrates(Ability, Protocol):
    """An agent that samples more than once in a turn, such as a plan and then the action.

    `demonstrated` returns, in order, the replies of a turn in which it does what an expert does: what it is to learn.
    """

    def demonstrated(self, action: Message) -> Sequence[Message]: ...


@runtime_checkable
class ActsByBase(Ability, Protocol):
    """An agent that has another agent act, its `base`."""

    @property
    def base(self) -> Agent: ...


def with_base_agents(agent: Agent) -> list[Agent]:
    """Returns an agent and, after it, the one that it has act, with that one's own, and so on."""
    return [agent, *with_base_agents(agent.base)] if isinstance(agent, ActsByBase) else [agent]


@runtime_checkable
class HasNativeActions(Ability, Protocol):
    """A play in which agents are to act by structured tool calls alone.

    `native_action` returns the message whose calls do what an action written as text does, such as the expert's.
    """

    def native_action(self, text: str) -> Message: ...


@runtime_checkable
class HasBlobs(Ability, Protocol):
    """A play whose messages show images: `blobs` has them by SHA-256 in hexadecimal, and a run keeps them."""

    @property
    def blobs(self) -> Mapping[str, bytes]: ...


def blobs_of(play: object) -> Mapping[str, bytes]:
    """Returns the images that a play has shown, by digest; mostly none."""
    return play.blobs if isinstance(play, HasBlobs) else {}


PLAY_ABILITIES: Mapping[str, type] = {"fork": Forkable, "expert": HasExpert, "state_key": HasStateKey}


def play_abilities(play: object) -> frozenset[str]:
    """Returns which of `PLAY_ABILITIES` a play, or a class of plays, has."""
    offered = {name for name, ability in PLAY_ABILITIES.items() if isinstance(play, ability)}
    if isinstance(play, HasExpert) and not callable(play.expert):  # a class of pages, of which some have one
        offered.remove("expert")
    return frozenset(offered)


@runtime_checkable
class Opens(Ability, Protocol):
    """A world with resources that its plays share: `open` is awaited before the first play."""

    async def open(self) -> None: ...


@runtime_checkable
class Closes(Ability, Protocol):
    """A world that is closed after its last play."""

    async def close(self) -> None: ...


@runtime_checkable
class PlaysElsewhere(Ability, Protocol):
    """A world whose plays are in other processes, each of which holds several, and may end with all of them
    (`LostPlayError`).

    `prepare` is awaited before plays of a task are made, so that `make` knows what they can do without waiting for
    another process. `make_alone` makes a play whose process holds no other: where that ends, the play is the cause.
    """

    async def prepare(self, task: Task) -> None: ...
    def make_alone(self, task: Task) -> Env: ...


@runtime_checkable
class HasNextTask(Ability, Protocol):
    """A world of limited `capacity` that chooses which of the waiting plays starts next: `next_task` is given their
    tasks, in the order in which they came, and returns a number of that list. One that has waited long is not passed
    over any more."""

    def next_task(self, waiting: Sequence[Task]) -> int: ...


@runtime_checkable
class HasCapacity(Ability, Protocol):
    """A world that can hold at most `capacity` plays at once; others have no limit."""

    @property
    def capacity(self) -> int: ...


def capacity(world: object, default: int) -> int:
    """Returns how many plays a world can hold at once; `default` where it does not say."""
    return world.capacity if isinstance(world, HasCapacity) else default


@runtime_checkable
class HasSeats(Ability, Protocol):
    """A world with several seats, by name. The policy plays in each of them, and is trained on what each does, unless
    the config gives some to other models."""

    @property
    def seats(self) -> Sequence[str]: ...


@runtime_checkable
class HasLowestReward(Ability, Protocol):
    """A world that says which reward an episode ends with that the agent's own action broke; -1 in others."""

    @property
    def lowest_reward(self) -> float: ...


@runtime_checkable
class HasWorlds(Ability, Protocol):
    """A world that is made of several; `world_of` returns the one that a task belongs to."""

    @property
    def worlds(self) -> tuple[EnvFamily, ...]: ...
    def world_of(self, task: Task) -> EnvFamily: ...


class Bounds(NamedTuple):
    """The least and the greatest value that a number in a task's data may have, and the step of a small change."""

    low: float
    high: float
    step: float = 1.0


@runtime_checkable
class MakesTasks(Ability, Protocol):
    """A world that makes training tasks from data, beside those of its splits.

    `bounds` tells which numbers in the data of a task may be changed; none where it cannot make tasks of that kind.
    `make_task` returns the training task with these data and this seed that takes the place of `like`; None where there
    is none, or where nobody could solve it. What it makes is never in the test split, whatever the data and the seed.
    """

    def bounds(self, like: Task) -> Mapping[str, Bounds]: ...
    def make_task(self, like: Task, data: Mapping[str, Any], seed: int) -> Task | None: ...


@runtime_checkable
class ReadsTasks(Ability, Protocol):
    """A world whose training tasks can be written as text, such as a map, so that a model can propose them.

    `task_format` tells whoever writes such a text how it is written, and `write_task` returns the text of a task.
    `read_task` returns the training task of a text, which takes the place of `like`; what the text leaves open follows
    from `seed`. It raises `ActionError` where the text is malformed, and returns None where nobody could solve the
    task, or where it belongs to the test split.
    """

    def task_format(self, like: Task) -> str: ...
    def write_task(self, task: Task) -> str: ...
    def read_task(self, like: Task, text: str, seed: int) -> Task | None: ...


@runtime_checkable
class ProposesByActing(Ability, Protocol):
    """A world whose training tasks an agent makes by acting in it, such as by breaking what others are to repair.

    `propose` returns the play in which it makes one that takes the place of `like`, in view of `examples`, which are
    texts of tasks. Such a play ends with success where the task can be used; `impossible` is 1 in the info of the last
    step where it cannot, and `tries` is how often the agent may end it so. `made_by` returns the task that the actions
    of a play with success made, in which what they leave open follows from `seed`, and `write_task` the text of a task.
    """

    def propose(self, like: Task, examples: Sequence[str], seed: int, tries: int) -> Env: ...
    def made_by(self, like: Task, actions: Sequence[str], seed: int) -> Task: ...
    def write_task(self, task: Task) -> str: ...


@runtime_checkable
class LeavesTasks(Ability, Protocol):
    """A world in which a failed play may leave another task: `left_by` returns the training task that goes on from
    where an episode of a proposed task ended, None where there is none."""

    def left_by(self, episode: Episode) -> Task | None: ...


@runtime_checkable
class Proposes(Ability, Protocol):
    """A world in which tasks of another are proposed by a model (`sojourn/envs/proposing.py`).

    `proposal` returns the task of proposing one that takes the place of `like`, in view of `examples`, which are texts
    of tasks; it raises `ConfigError` where none can be proposed. `proposed` returns the task that an episode of it
    proposed, None where there is none, and `written` the text of a task. `proposal_turns` says how many turns it takes
    to propose one like a task.
    """

    def proposal(self, like: Task, examples: Sequence[str], seed: int) -> Task: ...
    def proposed(self, episode: Episode) -> Task | None: ...
    def written(self, task: Task) -> str: ...
    def proposal_turns(self, like: Task) -> int: ...


@runtime_checkable
class HasRisks(Ability, Protocol):
    """A world that knows which of its protections are missing on this machine: `risks` returns a sentence for each.
    Commands print them before they play."""

    def risks(self) -> Sequence[str]: ...


@runtime_checkable
class Relabels(Ability, Protocol):
    """A world that says of an episode which other tasks its actions would have solved.

    `relabelled` returns these tasks in the order in which the episode solved them, none where it reached nothing that a
    task could ask for. They are of the same split, keep the tags of the episode's task, and lead through the same
    states by the same actions: only what is asked for differs.
    """

    def relabelled(self, episode: Episode) -> Sequence[Task]: ...


MeasuredPolicy = Callable[[str, Sequence[Observation | str]], Coroutine[Any, Any, Sequence[float]]]
"""The policy, as a world may ask how it acts: see `MeasuresPolicy`."""


@runtime_checkable
class MeasuresPolicy(Ability, Protocol):
    """A world that measures a policy as a whole, such as how far it is from an equilibrium.

    `measure` returns numbers by name, none where it cannot, and evaluations record them. `await policy(seat, seen)`
    returns the probabilities of the actions that the last observation lists (`Observation.choices`), in their order.
    `seen` is what the seat has seen and done since the play began: observations, and after each but the last the action
    that it took there, one of those that are listed. Many such questions may be asked at once. `measure` plays no
    episode, and uses nothing that `open` opens.

    It is not called where nothing can tell the probabilities, as with an agent that searches. Where that shows only in
    what is asked, as with one that does not sample among listed actions, `policy` raises, and nothing is measured.
    """

    async def measure(self, policy: MeasuredPolicy) -> Mapping[str, float]: ...


@runtime_checkable
class ForkableSeat(Ability, Protocol):
    """A seat that can be copied: `fork` returns one that goes on by itself from the same turns, in the same context or
    another one, whose sampler and seed differ."""

    def fork(self, context: AgentContext | None = None) -> Seat: ...


@runtime_checkable
class ActsByProgram(Ability, Protocol):
    """An agent whose seats begin programs that ask the model when and for what they like (`program` says which).

    Nothing else can take such a seat's samples, tell its prompts before it plays, or copy it.
    """

    @property
    def program(self) -> str: ...


@runtime_checkable
class ClosableSeat(Ability, Protocol):
    """A seat that holds what must be closed when its play is over, such as a process."""

    async def close(self) -> None: ...


@runtime_checkable
class LooksAhead(Ability, Protocol):
    """An agent whose seats try actions in copies of their play before they act.

    `course` returns one play of a task by a runner (`OwnCourse` of `sojourn/rollout/play.py`), whose environment can be
    forked. `unsampled` says whether it may take actions that no model sampled.
    """

    @property
    def unsampled(self) -> bool: ...
    def course(self, runner: Any, task: Task) -> Any: ...
