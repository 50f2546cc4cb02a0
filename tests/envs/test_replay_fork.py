"""A fork by playing again: the same state, apart from its original; never where the world does not repeat itself."""

import asyncio
import inspect
import itertools

import pytest

from sojourn.abilities import HasNativeActions
from sojourn.envs.replay_fork import ReplayForkable, make_forkable
from sojourn.envs.toy import Toy
from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step, Task, ToolCall


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


class Tally:
    """Add to a number, each seat in turn; 10 ends it. What it shows is its state."""

    seats = ("left", "right")
    opened = closed = 0

    def __init__(self, task: Task):
        self.total, self.turn = task.seed, 0

    def show(self) -> Observation:
        system = (Message(Role.SYSTEM, "Add."),) if self.turn < 2 else ()
        return Observation((Message(Role.USER, str(self.total)),), system=system, agent=self.seats[self.turn % 2])

    async def start(self) -> Observation:
        Tally.opened += 1
        return self.show()

    async def step(self, agent: str, action: Message) -> Step:
        if agent != self.seats[self.turn % 2]:
            raise ActionError(f"it is not the turn of {agent}")
        if not action.text.isdigit():
            raise ActionError("say a number")
        await asyncio.sleep(0)
        self.total, self.turn = self.total + int(action.text), self.turn + 1
        if self.total >= 10:
            return Step(None, {agent: 1.0}, done=True)
        return Step(self.show(), {agent: 0.0})

    async def close(self) -> None:
        Tally.closed += 1


class Talkative(Tally):
    def __init__(self, task: Task):
        super().__init__(task)
        self.blobs = {"digest": b"picture"}

    def state_key(self) -> str:
        return str(self.total)

    def expert(self) -> str:
        return "9"


class World:
    def __init__(self, env):
        self.env = env

    def tasks(self, split: str) -> list[Task]:
        return [Task("tally", {}, seed, split) for seed in range(3)]

    def make(self, task: Task):
        return self.env(task)


@pytest.fixture(autouse=True)
def counts():
    Tally.opened = Tally.closed = 0


def played(env: type[Tally] = Tally, seed: int = 2) -> ReplayForkable:
    world = World(env)
    play = make_forkable(world, world.tasks("train")[seed])
    assert isinstance(play, ReplayForkable)
    return play


async def test_a_fork_is_where_its_original_is_and_goes_its_own_way() -> None:
    play = played()
    await play.start()
    await play.step("left", say("3"))
    with pytest.raises(ActionError):
        await play.step("left", say("1"))  # not its turn, and nothing to play again
    with pytest.raises(ActionError):
        await play.step("right", say("one"))
    twin = await play.fork()
    grandchild = await twin.fork()
    for other, added, shown in ((twin, "1", "6"), (play, "2", "7"), (grandchild, "3", "8")):
        step = await other.step("right", say(added))
        assert step.observation == Observation((Message(Role.USER, shown),), agent="left")
    ended = await twin.step("left", say("4"))
    assert (ended.done, ended.rewards) == (True, {"left": 1.0})
    over = await twin.fork()  # also of what has ended
    assert [taken.agent for taken in over.steps] == ["left", "right", "left"]
    assert over.env.total == 10
    for one in (play, twin, grandchild, over):
        await one.close()
    assert Tally.opened == Tally.closed == 4


async def test_what_has_not_started_forks_unstarted() -> None:
    twin = await played().fork()
    assert Tally.opened == 0
    assert (await twin.start()).messages[0].text == "2"


async def test_what_the_world_offers_is_passed_on_and_nothing_else() -> None:
    bare, full = played(), played(Talkative)
    assert not any(hasattr(bare, name) for name in ("state_key", "expert", "seats", "total"))
    assert bare.blobs == {}
    for name in ("state_key", "expert", "blobs", "fork"):  # as newer Pythons look where `isinstance` asks
        assert inspect.getattr_static(full, name)
    assert (full.state_key(), full.expert(), full.blobs) == ("2", "9", {"digest": b"picture"})
    twin = await full.fork()
    assert twin.state_key() == "2"
    with pytest.raises(AttributeError, match="'total'"):
        twin.total  # noqa: B018


class Structured(Tally):
    """Is played by structured calls, as it knows once it has started."""

    async def start(self) -> Observation:
        self.native_action = lambda text: Message(Role.ASSISTANT, calls=(ToolCall("add", {"number": int(text)}),))
        return await super().start()


async def test_agents_act_in_forks_in_the_form_in_which_they_act_in_the_world() -> None:
    play = played(Structured)
    assert not isinstance(play, HasNativeActions)
    await play.start()
    for one in (play, await play.fork()):
        assert isinstance(one, HasNativeActions)
        assert one.native_action("3").calls == (ToolCall("add", {"number": 3}),)


async def test_a_world_with_a_fork_of_its_own_is_left_as_it_is() -> None:
    toy = Toy()
    assert not isinstance(make_forkable(toy, toy.tasks("train")[0]), ReplayForkable)


class Numbered(Tally):
    """Shows how many were made before it."""

    made = itertools.count()

    def __init__(self, task: Task):
        super().__init__(task)
        self.number = next(self.made)

    def show(self) -> Observation:
        return Observation((Message(Role.USER, f"{self.number}"),))


class Whims(Tally):
    """Pays its second play otherwise than its first, in the same words."""

    made = itertools.count()

    def __init__(self, task: Task):
        super().__init__(task)
        self.pay = float(next(self.made))

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        return Step(step.observation, {agent: self.pay})


class Moody(Tally):
    """Accepts an action in its first play alone."""

    made = itertools.count()

    def __init__(self, task: Task):
        super().__init__(task)
        self.kind = next(self.made) == 0

    async def step(self, agent: str, action: Message) -> Step:
        if not self.kind:
            raise ActionError("not today")
        return await super().step(agent, action)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (Numbered, "it gives another observation or reward after 0 actions"),
        (Whims, "it gives another observation or reward after 1 actions"),
        (Moody, "it refuses an action that it had accepted (not today) after 0 actions"),
    ],
)
async def test_a_world_that_does_not_repeat_itself_is_not_forked_and_leaves_nothing(env, told) -> None:
    play = played(env)
    await play.start()
    await play.step("left", say("1"))
    with pytest.raises(InfrastructureError) as caught:
        await play.fork()
    assert str(caught.value) == f"the world is not deterministic: replayed for a fork, {told}"
    await play.close()
    assert Tally.opened == Tally.closed == 2


class Crashes(Tally):
    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        if self.turn == 2:
            raise ConnectionError("gone")
        return step


async def test_a_play_that_failed_or_was_cancelled_is_not_forked() -> None:
    play = played(Crashes)
    await play.start()
    await play.step("left", say("1"))
    with pytest.raises(ConnectionError):
        await play.step("right", say("1"))
    with pytest.raises(InfrastructureError, match="failed or was cancelled after 1 actions"):
        await play.fork()
    play = played()
    await play.start()
    step = asyncio.ensure_future(play.step("left", say("1")))
    await asyncio.sleep(0)
    step.cancel()
    await asyncio.wait({step})
    with pytest.raises(InfrastructureError, match="after 0 actions"):
        await play.fork()


async def test_a_cancelled_fork_closes_what_it_began() -> None:
    play = played()
    await play.start()
    await play.step("left", say("1"))
    fork = asyncio.ensure_future(play.fork())
    await asyncio.sleep(0)
    assert Tally.opened == 2
    fork.cancel()
    await asyncio.wait({fork})
    assert fork.cancelled()
    assert Tally.closed == 1
    assert (await play.step("right", say("1"))).observation.messages[0].text == "4"
