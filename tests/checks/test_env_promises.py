"""Worlds that break one promise each: of what they say, of seats, images, odd actions, success and their own limit."""

import hashlib
import itertools
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from test_check_env import Bare, Counter, World, seen

from sojourn.checks.env import check_env
from sojourn.checks.report import Outcome
from sojourn.envs.about import About
from sojourn.errors import ActionError
from sojourn.types import Message, Observation, Role, Step, Task, Tool


async def failed(family: Any) -> dict[str, str]:
    report = await check_env(family)
    return {name: report[name].detail for name in report.failed}


# What it says of itself


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ("a counter", "about is 'a counter': expected an About"),
        (About(source="ours", licence=" "), "about.licence is ' ': expected a text"),
        (About(source="", licence="MIT"), "about.source is '': expected a text"),
        (About(source="ours", licence="MIT", modalities=()), "about.modalities is empty"),
        (About(source="ours", licence="MIT", smallest={"size": 1}), "unexpected keyword argument 'size'"),
    ],
)
async def test_what_it_says_of_itself_is_complete(about, told):
    class Telling(World):
        pass

    Telling.about = about
    [(promise, detail)] = (await failed(Telling())).items()
    assert promise == "it declares its source and licence"
    assert told in detail


async def test_a_world_that_says_nothing_of_itself_is_warned():
    class Silent(World):
        about: ClassVar[None] = None  # type: ignore[assignment]

    report = await check_env(Silent())
    assert report["it declares its source and licence"].outcome is Outcome.WARNED
    assert report.passed


class Tap:
    """Open the tap."""

    def __init__(self, seed: int) -> None:
        self.opened = False

    def turn(self) -> None:
        """Open it."""
        self.opened = True

    def reward(self) -> float | None:
        return 1.0 if self.opened else None


async def test_a_plain_class_may_say_nothing_of_itself():
    report = await check_env(Tap)
    verdict = report["it declares its source and licence"]
    assert (verdict.outcome, "need not have `about`" in verdict.detail) == (Outcome.NOT_OFFERED, True)

    class Shared(Tap):
        about = About(source="ours", licence="MIT")

    assert (await check_env(Shared))["it declares its source and licence"].outcome is Outcome.PASSED


# Another process


ELSEWHERE = """
import os
from dataclasses import dataclass
from test_check_env import Bare, Counter, World, seen

class Hashing(Counter):
    def show(self):
        return seen(f"task {self.task.seed} count {self.count} {hash('a word')}", "more", "less")

class Remembering(Counter):
    def show(self):
        return seen(f"task {self.task.seed} count {self.count} in {FOLDER}", "more", "less")

class Crashing(Counter):
    async def start(self):
        if os.getpid() != PROCESS:
            raise RuntimeError("there is no world elsewhere")
        return await super().start()

@dataclass(frozen=True)
class Family(World):
    env: str = "Counter"
    opened = False

    async def open(self):
        object.__setattr__(self, "opened", True)

    async def close(self):
        object.__setattr__(self, "opened", False)

    def make(self, task):
        assert self.opened
        return globals()[self.env](task)

PROCESS = int(os.environ.setdefault("SOJOURN_TEST_PROCESS", str(os.getpid())))
FOLDER = os.environ["TMPDIR"]
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A module of families that another process can make, of the envs that it names."""
    (tmp_path / "elsewhere_family.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SOJOURN_TEST_PROCESS", str(__import__("os").getpid()))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield lambda env: __import__("elsewhere_family").Family(env)
    sys.modules.pop("elsewhere_family", None)


async def test_a_sound_world_is_the_same_in_another_process(elsewhere):
    report = await check_env(elsewhere("Counter"))
    assert report.passed, report.failed
    assert report["plays are the same in another process"].detail == "4 plays are the same in another process"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("Hashing", "in another process, after"),
        ("Remembering", "in another process, after 0 actions observation is "),
        ("Crashing", "another process cannot do it: RuntimeError: there is no world elsewhere"),
    ],
)
async def test_a_world_that_differs_in_another_process_is_caught(elsewhere, env, told):
    [(promise, detail)] = (await failed(elsewhere(env))).items()
    assert promise == "plays are the same in another process"
    assert told in detail


# Seats


class Duel:
    """Two count in turn, to three each; the one who gets there first wins."""

    def __init__(self, task: Task):
        self.task, self.counts, self.turn = task, [0, 0], 0

    def system(self) -> tuple[Message, ...]:
        return (Message(Role.SYSTEM, f"You are {self.turn % 2}."),) if self.turn < 2 else ()

    def show(self) -> Observation:
        shown = seen(f"task {self.task.seed} counts {self.counts}", "one", "none")
        return replace(shown, agent=DuelWorld.seats[self.turn % 2], system=self.system())

    async def start(self) -> Observation:
        return self.show()

    async def step(self, agent: str, action: Message) -> Step:
        self.mine(agent)
        if action.text not in ("one", "none"):
            raise ActionError("say one or none")
        self.counts[self.turn % 2] += action.text == "one"
        self.turn += 1
        if 3 in self.counts:
            return Step(None, {agent: 1.0, self.other(agent): -1.0}, done=True)
        return Step(self.show())

    def mine(self, agent: str) -> None:
        if agent != DuelWorld.seats[self.turn % 2]:
            raise ActionError("it is not your turn")

    def other(self, agent: str) -> str:
        return next(seat for seat in DuelWorld.seats if seat != agent)

    async def close(self) -> None:
        pass

    def expert(self) -> str:
        return "one"


@dataclass(frozen=True)
class DuelWorld(World):
    env: Any = Duel
    seats = ("first", "second")


class TakesAnybody(Duel):
    def mine(self, agent: str) -> None:
        pass


class CountsRefusedTurns(Duel):
    def mine(self, agent: str) -> None:
        if agent != DuelWorld.seats[self.turn % 2]:
            self.counts[0] += 1
            raise ActionError("it is not your turn")


class FailsOutOfTurn(Duel):
    def mine(self, agent: str) -> None:
        assert agent == DuelWorld.seats[self.turn % 2]


class NoSystemMessage(Duel):
    def system(self) -> tuple[Message, ...]:
        return (Message(Role.SYSTEM, "You are the first."),) if self.turn == 0 else ()


class ThirdMan(Duel):
    def show(self) -> Observation:
        return replace(super().show(), agent="second " if self.turn else "first")


class PaysNobody(Duel):
    def other(self, agent: str) -> str:
        return "loser"


async def test_two_seats_that_take_turns_keep_every_promise():
    report = await check_env(DuelWorld())
    assert report.passed, report.failed
    assert report["its seats are named"].detail == "first, second; none moves in another's turn"
    assert report["the expert succeeds"].outcome is Outcome.PASSED
    assert report["forks are equal and independent"].detail.startswith("it has none; by replaying: ")
    assert (await check_env(DuelWorld(FailsOutOfTurn))).passed  # it need not be refused in words


@pytest.mark.parametrize(
    ("family", "told"),
    [
        (DuelWorld(TakesAnybody), "it took an action of 'second' when it was the turn of 'first'"),
        (DuelWorld(CountsRefusedTurns), "after 'second' was refused out of turn, after 1 actions observation is"),
        (DuelWorld(NoSystemMessage), "the first observation of the seat 'second' has no system message"),
        (DuelWorld(ThirdMan), "it asks for the seat 'second ', but its `seats` are first, second"),
        (World(Duel), "it asks for the seat 'first', but its `seats` are agent"),
        (DuelWorld(PaysNobody), "it rewards 'loser', who has no seat"),
    ],
)
async def test_wrong_seats_are_caught(family, told):
    found = await failed(family)
    assert told in found["its seats are named"]
    assert set(found) <= {"its seats are named", "the expert succeeds", "choices are possible"}  # a wrong name has both


async def test_an_idle_seat_is_a_warning():
    class Three(DuelWorld):
        seats = ("first", "second", "third")

    report = await check_env(Three())
    assert report.passed, report.failed
    assert report["its seats are named"].outcome is Outcome.WARNED
    assert "'third' never moved" in report["its seats are named"].detail


# Forks by replaying


async def test_a_world_without_a_fork_is_forked_by_playing_again():
    report = await check_env(World(Bare))
    assert report.passed, report.failed
    assert report["forks are equal and independent"].detail.startswith("it has none; by replaying: ")
    assert (await check_env(World()))["forks are equal and independent"].detail.startswith("its own: ")


async def test_a_family_with_room_for_one_play_is_not_asked_for_two():
    class Small(World):
        capacity = 1
        open_now = 0

        def make(self, task: Task) -> object:
            class Alone(Bare):
                async def start(self) -> Observation:
                    Small.open_now += 1
                    assert Small.open_now == 1
                    return await super().start()

                async def close(self) -> None:
                    Small.open_now = 0

            return Alone(task)

    report = await check_env(Small())
    assert report.passed, [report[name] for name in report.failed]
    assert report["plays are isolated"].outcome is Outcome.NOT_OFFERED
    assert report["forks are equal and independent"].outcome is Outcome.NOT_OFFERED


# Images


PICTURE = b"a picture"


class Pictures(Counter):
    """Shows a picture with every count, and keeps it until it is closed."""

    digest = hashlib.sha256(PICTURE).hexdigest()

    def __init__(self, task: Task):
        super().__init__(task)
        self.blobs = {self.digest: PICTURE}

    def show(self) -> Observation:
        message = replace(super().show().messages[0], images=(self.digest,))
        return replace(super().show(), messages=(message,))

    async def close(self) -> None:
        self.blobs.clear()


class LostPictures(Pictures):
    def __init__(self, task: Task):
        super().__init__(task)
        self.blobs = {}


class MisnamedPictures(Pictures):
    digest = hashlib.sha256(b"another").hexdigest()


async def test_images_are_there_under_the_hash_of_their_content():
    report = await check_env(World(Pictures))
    assert report.passed, report.failed
    assert report["its images are available"].detail == "1 images"
    assert "is not among the play's blobs" in (await failed(World(LostPictures)))["its images are available"]
    assert "SHA-256" in (await failed(World(MisnamedPictures)))["its images are available"]


# Odd actions


class Calls(Counter):
    """Takes calls: add(amount)."""

    tool = Tool("add", "Adds.", {"type": "object", "properties": {"amount": {"type": "integer"}}})

    def show(self) -> Observation:
        return replace(seen(f"task {self.task.seed} count {self.count}"), tools=(self.tool,))

    async def step(self, agent: str, action: Message) -> Step:
        if len(action.calls) != 1 or action.calls[0].name != "add":
            raise ActionError("call add")
        amount = self.amount(action.calls[0].arguments)
        return await super().step(agent, Message(Role.ASSISTANT, "more" if amount % 2 else "less"))

    def amount(self, arguments: Any) -> int:
        amount = arguments.get("amount") if isinstance(arguments, dict) else None
        if type(amount) is not int or not 0 <= amount < 100:
            raise ActionError("amount must be a small integer")
        return amount

    expert = None  # not offered


class BelievesInTypes(Calls):
    def amount(self, arguments: Any) -> int:
        return int(arguments.get("amount", 0)) if isinstance(arguments, dict) else 0


class DescendsWithoutEnd(Calls):
    def amount(self, arguments: Any) -> int:
        def depth(value: Any) -> int:
            return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

        depth([[[arguments.get("amount")]]] if isinstance(arguments, dict) else [])
        return super().amount(arguments)


@pytest.fixture(params=[1000, 3000])
def recursion_limit(request):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(request.param)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("recursion_limit")
async def test_a_world_that_cannot_bear_nested_values_is_caught():
    [(promise, detail)] = (await failed(World(DescendsWithoutEnd))).items()
    assert promise == "malformed actions earn nothing"
    assert "RecursionError" in detail


class WritesItDown(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        action.text.encode()
        return await super().step(agent, action)


class Exits(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        if "done" in action.text:
            sys.exit("enough")
        return await super().step(agent, action)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (BelievesInTypes, "raised TypeError"),
        (WritesItDown, "raised UnicodeEncodeError"),
        (Exits, "it called sys.exit('enough')"),
    ],
)
async def test_a_world_that_breaks_on_odd_actions_is_caught(env, told):
    [(promise, detail)] = (await failed(World(env))).items()
    assert promise == "malformed actions earn nothing"
    assert told in detail
    assert (await check_env(World(Calls))).passed


async def test_a_refusal_that_repeats_everything_is_a_warning():
    class Parrot(Counter):
        async def step(self, agent: str, action: Message) -> Step:
            if action.text not in ("more", "less"):
                raise ActionError(f"what is {action.text}?")
            return await super().step(agent, action)

    report = await check_env(World(Parrot))
    assert report.passed
    assert report["malformed actions earn nothing"].outcome is Outcome.WARNED
    assert "a refusal has 10000" in report["malformed actions earn nothing"].detail


async def test_what_another_seat_wins_by_an_odd_action_is_no_pay_for_it():
    class Forfeits(Duel):
        """Who says anything odd has lost."""

        async def step(self, agent: str, action: Message) -> Step:
            self.mine(agent)
            if action.text not in ("one", "none"):
                return Step(None, {agent: -1.0, self.other(agent): 1.0}, done=True)
            return await super().step(agent, action)

    assert (await check_env(DuelWorld(Forfeits))).passed


# Success, and the world's own limit


async def test_success_before_the_end_is_caught():
    class Early(Counter):
        known: bool = True

        async def step(self, agent: str, action: Message) -> Step:
            step = await super().step(agent, action)
            return step if step.done else replace(step, success=self.known)

    class KnownToFail(Early):
        known = False

    [(promise, detail)] = (await failed(World(Early))).items()
    assert promise == "success is reported at the end"
    assert detail.startswith("success is True before the end")
    report = await check_env(World(KnownToFail))
    assert report.passed
    assert report["success is reported at the end"].outcome is Outcome.WARNED


async def test_success_that_is_never_said_is_not_offered():
    class Silent(Counter):
        async def step(self, agent: str, action: Message) -> Step:
            return replace(await super().step(agent, action), success=None)

    verdict = (await check_env(World(Silent)))["success is reported at the end"]
    assert verdict.outcome is Outcome.NOT_OFFERED
    assert "rewards add up to more than 0 counts as a success" in verdict.detail


class Limited(Bare):
    """Ends, lost, after so many actions; its expert needs four."""

    def __init__(self, task: Task, turns: int, ends: bool):
        super().__init__(task)
        self.turns = turns if ends else 10**9
        self.left = itertools.count(1)

    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        if not step.done and next(self.left) >= self.turns:
            return Step(None, {agent: 0.0}, done=True, success=False)
        return step

    def expert(self) -> str:
        return "more"


@pytest.mark.parametrize("turns", [0, 6, 30])
async def test_a_field_of_turns_ends_plays(turns):
    @dataclass(frozen=True)
    class Turns:
        turns: int = 0
        ends: bool = True
        about = World.about

        tasks = World.tasks

        def make(self, task: Task) -> Limited:
            return Limited(task, self.turns or 10**9, self.ends)

    report = await check_env(Turns(turns))
    assert report.passed, report.failed
    assert report["its plays end"].detail.endswith("and with turns = 3 after 3 actions")
    report = await check_env(Turns(turns, ends=False))
    assert report.failed == ("its plays end",)
    assert "turns = " in report["its plays end"].detail
