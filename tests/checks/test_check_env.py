"""Every broken world here breaks one promise, and that one alone must be reported."""

import asyncio
import contextlib
import io
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from sojourn.abilities import Bounds
from sojourn.checks.env import PROMISES, check_env
from sojourn.checks.report import Outcome, Report, Verdict
from sojourn.envs.about import About
from sojourn.envs.toy import Toy
from sojourn.errors import ActionError
from sojourn.types import Message, Observation, Role, Step, Task


def seen(text: str, *choices: str) -> Observation:
    return Observation((Message(Role.USER, text),), choices=choices)


class Bare:
    """A sound world: count to four by saying "more"; the text shows the task's seed, so plays can be told apart."""

    def __init__(self, task: Task):
        self.task, self.count = task, 0

    async def start(self) -> Observation:
        await asyncio.sleep(0)
        return self.show()

    def show(self) -> Observation:
        return seen(f"task {self.task.seed} count {self.count}", "more", "less")

    async def step(self, agent: str, action: Message) -> Step:
        await asyncio.sleep(0)
        if action.text not in ("more", "less"):
            raise ActionError("say more or less")
        self.count = max(self.count + (1 if action.text == "more" else -1), 0)
        if self.count == 4:
            return Step(None, {agent: 1.0}, done=True, success=True)
        return Step(self.show(), {agent: 0.0})

    async def close(self) -> None:
        pass


class Counter(Bare):
    """The same, with all that a play may offer besides."""

    async def fork(self) -> "Counter":
        twin = type(self)(self.task)
        twin.count = self.count
        return twin

    def state_key(self) -> str:
        return str(self.count)

    def expert(self) -> str:
        return "more"


@dataclass(frozen=True)
class World:
    """A family of any env; not to be made again by name."""

    env: Callable[[Task], object] = Counter
    about: ClassVar[About] = About(source="ours", licence="Apache-2.0")

    def tasks(self, split: str) -> list[Task]:
        return [Task("counter", {}, seed + (100 if split == "test" else 0), split) for seed in range(10)]

    def make(self, task: Task) -> object:
        return self.env(task)


class Nondeterministic(Counter):
    def show(self) -> Observation:
        return seen(f"{random.getrandbits(64)}", "more", "less")


class Shared(Counter):
    """Its count is the class's: right for as long as one is played at a time."""

    _count = 0

    @property
    def count(self) -> int:
        return Shared._count

    @count.setter
    def count(self, value: int) -> None:
        Shared._count = value

    fork = expert = None  # not offered


class SharedFork(Counter):
    async def fork(self) -> Counter:
        return self


class ForgetfulFork(Counter):
    async def fork(self) -> Counter:
        return type(self)(self.task)


class AddressKey(Counter):
    made = 0

    def __init__(self, task: Task):
        super().__init__(task)
        type(self).made += 1
        self.number = type(self).made

    def state_key(self) -> str:
        return f"{self.number} {self.count}"


class PaysForNonsense(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        if "reward" in action.text:
            return Step(self.show(), {agent: 0.5})
        return await super().step(agent, action)


class CrashesOnNonsense(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        return await super().step(agent, Message(Role.ASSISTANT, action.text.split()[0]))


class ChangesOnRefusal(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        try:
            return await super().step(agent, action)
        except ActionError:
            self.count = 0 if self.count else 1
            raise

    def state_key(self) -> str:
        return "always"


class RefusesItsChoice(Counter):
    def show(self) -> Observation:
        return seen(f"task {self.task.seed} count {self.count}", "more", "less", "never")


class BadExpert(Counter):
    def expert(self) -> str:
        return "less"


class RefusedExpert(Counter):
    def expert(self) -> str:
        return "much more"


class InfiniteReward(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        step = await super().step(agent, action)
        return Step(None, {agent: float("inf")}, done=True, success=True) if step.done else step


class LeaksTask(Counter):
    async def start(self) -> Observation:
        self.ticker = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
        return await super().start()


class LeaksThread(Counter):
    stop = threading.Event()

    async def start(self) -> Observation:
        threading.Thread(target=self.stop.wait, daemon=True, name="a leaked thread").start()
        return await super().start()


class ClosesOnce(Counter):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class SwallowsCancellation(Counter):
    async def start(self) -> Observation:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return self.show()


class LeaksWhenCancelled(Counter):
    async def start(self) -> Observation:
        ticker = asyncio.get_running_loop().create_task(asyncio.sleep(3600), name="leaked")
        await asyncio.sleep(0)
        ticker.cancel()
        return self.show()


class Coin(Counter):
    """One turn, nearly always the same."""

    async def step(self, agent: str, action: Message) -> Step:
        if action.text not in ("more", "less"):
            raise ActionError("say more or less")
        return Step(None, {agent: float(random.random() < 0.25)}, done=True, success=True)


class CountsRefusedCalls(Counter):
    """Refuses a choice now and then, which is no choice, and moves on all the same."""

    def show(self) -> Observation:
        return Observation((Message(Role.USER, f"task {self.task.seed} count {self.count}"),))

    async def step(self, agent: str, action: Message) -> Step:
        if action.text == "yes":
            self.count += 1
            raise ActionError("not now")
        return await super().step(agent, replace(action, text="more") if action.text in ("no", "1") else action)

    expert = fork = state_key = None  # it offers none of them


BROKEN = {
    Coin: "it is deterministic",
    CountsRefusedCalls: "a refusal changes nothing",
    Nondeterministic: "it is deterministic",
    Shared: "plays are isolated",
    SharedFork: "forks are equal and independent",
    ForgetfulFork: "forks are equal and independent",
    AddressKey: "state keys are stable",
    PaysForNonsense: "malformed actions earn nothing",
    CrashesOnNonsense: "malformed actions earn nothing",
    ChangesOnRefusal: "a refusal changes nothing",
    RefusesItsChoice: "choices are possible",
    BadExpert: "the expert succeeds",
    RefusedExpert: "the expert succeeds",
    InfiniteReward: "rewards are finite and small",
    LeaksTask: "it closes",
    LeaksThread: "it closes",
    ClosesOnce: "it closes",
    SwallowsCancellation: "it can be cancelled",
    LeaksWhenCancelled: "it can be cancelled",
}


async def test_a_sound_world_keeps_every_promise():
    report = await check_env(World())
    assert report.passed
    outcomes = {verdict.promise: verdict.outcome for verdict in report.verdicts}
    for promise in (
        "its task ids are stable",  # its field is a class
        "plays are the same in another process",
        "its images are available",
        "tasks that it makes can be solved",
        "relabelled episodes succeed",
        "it measures policies",
        "no process outlives the run",
    ):
        assert outcomes.pop(promise) is Outcome.NOT_OFFERED
    assert set(outcomes.values()) == {Outcome.PASSED}


@pytest.mark.parametrize("env", BROKEN, ids=lambda env: env.__name__)
async def test_a_broken_world_is_caught_by_the_promise_it_breaks(env):
    LeaksThread.stop.clear()
    report = await check_env(World(env))
    LeaksThread.stop.set()
    assert report.failed == (BROKEN[env],), [v for v in report.verdicts if v.outcome is Outcome.FAILED]
    assert report[BROKEN[env]].detail


async def test_what_cannot_be_compared_is_not_judged():
    report = await check_env(World(Nondeterministic))
    assert report["plays are isolated"].outcome is Outcome.NOT_JUDGED
    assert report["forks are equal and independent"].detail == "needs: it is deterministic"
    assert report["it closes"].outcome is Outcome.PASSED


async def test_the_details_say_what_happened():
    async def detail(env: type) -> str:
        return (await check_env(World(env)))[BROKEN[env]].detail

    assert "observation is" in await detail(Nondeterministic)
    assert "beside another play" in await detail(Shared)
    assert "after refusals, after" in await detail(ChangesOnRefusal)
    assert "earned {'agent': 0.5}" in await detail(PaysForNonsense)
    assert "raised IndexError" in await detail(CrashesOnNonsense)
    assert "'never' was refused: say more or less" in await detail(RefusesItsChoice)
    assert "no end after 100 actions" in await detail(BadExpert)
    assert await detail(LeaksTask) == "a play that is closed after 0 actions leaves the task sleep"


class BadStart(Counter):
    async def start(self) -> Observation:
        raise RuntimeError("the server is down")


class BadStep(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        return "fine"  # type: ignore[return-value]


class BadEnd(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        return Step(self.show(), done=True)


class Silent(Counter):
    def show(self) -> Observation:
        return Observation(())


class Hangs(Counter):
    async def start(self) -> Observation:
        await asyncio.sleep(3600)
        return self.show()


@pytest.mark.parametrize(
    ("env", "detail"),
    [
        (BadStart, "raised RuntimeError: the server is down (test_check_env.py:"),
        (BadStep, "expected a Step"),
        (BadEnd, "None belongs to the end alone"),
        (Silent, "at least one"),
        (Hangs, "not finished after 0.2 s"),
        (lambda task: 3, "AttributeError"),
    ],
)
async def test_a_world_that_cannot_be_played_is_told_once(env, detail):
    report = await check_env(World(env), timeout_s=0.2 if env is Hangs else 120.0)
    assert report.failed == ("it can be played",)
    assert detail in report["it can be played"].detail
    assert len(report.verdicts) == len(PROMISES)


async def test_rewards_beyond_one_and_endless_plays_are_warnings():
    class Rich(Counter):
        async def step(self, agent: str, action: Message) -> Step:
            step = await super().step(agent, action)
            return Step(step.observation, {agent: 5.0 * step.done}, done=step.done, success=step.success)

    class Endless(Counter):
        def show(self) -> Observation:
            return seen(f"task {self.task.seed}", "less")

        expert = None  # not offered

    report = await check_env(World(Rich))
    assert report.passed
    assert report["rewards are finite and small"].outcome is Outcome.WARNED
    report = await check_env(World(Endless), max_turns=10)
    assert report.passed
    assert report["its plays end"].outcome is Outcome.WARNED


async def test_bad_lists_of_tasks_are_caught():
    class Overlapping(World):
        def tasks(self, split: str) -> list[Task]:
            return [Task("counter", {}, seed, split) for seed in range(10)]

    class Restless(World):
        def tasks(self, split: str) -> list[Task]:
            return [Task("counter", {}, random.getrandbits(60), split)]

    class Empty(World):
        def tasks(self, split: str) -> list[Task]:
            return []

    assert (await check_env(Overlapping())).failed == ("its splits share no task",)
    assert (await check_env(Restless())).failed == ("it gives tasks",)
    assert (await check_env(Empty())).failed == ("it gives tasks",)
    assert (await check_env(object())).failed == ("it is an environment",)
    assert (await check_env("no.such:Thing")).failed == ("it is an environment",)


class Makes(World):
    """Makes tasks of another number to count to, which nobody reads; the broken ones change one thing."""

    def tasks(self, split: str) -> list[Task]:
        return [replace(task, data={"size": 4}) for task in super().tasks(split)]

    def bounds(self, like: Task) -> dict[str, Bounds]:
        return {"size": Bounds(1, 9)}

    def make_task(self, like: Task, data: dict, seed: int) -> Task | None:
        return replace(like, data=data, seed=seed) if data["size"] % 2 else None


class MakesTests(Makes):
    def make_task(self, like: Task, data: dict, seed: int) -> Task | None:
        return replace(like, data={"size": 4}, seed=100 + seed % 10)


class MakesOfAnySplit(Makes):
    def make_task(self, like: Task, data: dict, seed: int) -> Task | None:
        return replace(like, data=data, seed=seed, split="test")


class MakesAtRandom(Makes):
    def make_task(self, like: Task, data: dict, seed: int) -> Task | None:
        return replace(like, data=data, seed=random.getrandbits(40))


class Unbounded(Makes):
    def bounds(self, like: Task) -> dict[str, Bounds]:
        return {"size": Bounds(5, 9)}


class MakesImpossible(Makes):
    def make(self, task: Task) -> object:
        return Lost(task) if task.seed > 1000 else super().make(task)


class Lost(Counter):
    async def step(self, agent: str, action: Message) -> Step:
        return Step(None, {agent: 0.0}, done=True, success=False)


class MakesNone(Makes):
    def make_task(self, like: Task, data: dict, seed: int) -> Task | None:
        return None


@pytest.mark.parametrize(
    ("family", "detail"),
    [
        (MakesTests(), "which is of the test split"),
        (MakesOfAnySplit(), "which is of the test split"),
        (MakesAtRandom(), "when asked again for"),
        (Unbounded(), "bounds() says that 'size' is from 5 to 9, and a task has 4"),
        (MakesImpossible(), "the expert's play ended without success"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_tasks_that_a_world_makes_wrongly_are_caught(family, detail):
    promise = "tasks that it makes can be solved"
    report = await check_env(family)
    assert report.failed == (promise,)
    assert detail in report[promise].detail


async def test_tasks_that_a_world_makes_are_counted():
    promise = "tasks that it makes can be solved"
    verdict = (await check_env(Makes()))[promise]
    assert (verdict.outcome, "small changes gave a task" in verdict.detail) == (Outcome.PASSED, True)
    assert (await check_env(MakesNone()))[promise].outcome is Outcome.WARNED


HASHED = """
from dataclasses import dataclass, replace
from sojourn.types import Task

@dataclass(frozen=True)
class Hashed:
    sizes: tuple[int, ...] = (1, 2)

    def tasks(self, split):
        return [Task("hashed", {"size": list(self.sizes)}, hash(f"{split} {i}") % 10**9, split) for i in range(5)]

    def make(self, task):
        from test_check_env import Counter
        return Counter(task)
"""


async def test_task_ids_that_depend_on_the_process_are_caught(tmp_path, monkeypatch):
    (tmp_path / "hashed_family.py").write_text(HASHED)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        report = await check_env("hashed_family:Hashed")
    finally:
        sys.modules.pop("hashed_family", None)
    assert report.failed == ("its task ids are stable",)
    assert "in another process" in report["its task ids are stable"].detail


async def test_the_family_is_opened_and_closed():
    opened = []

    class Resource(World):
        async def open(self) -> None:
            opened.append("open")

        async def close(self) -> None:
            opened.append("close")

    assert (await check_env(Resource())).passed
    assert opened == ["open", "close"]


@pytest.mark.parametrize("toy", [Toy(choices=True), Toy(), Toy(turns=24, rooms=4, doors=2)])
async def test_the_toy_keeps_its_promises(toy):
    report = await check_env(toy, episodes=4)
    assert report.passed
    assert report["its task ids are stable"].outcome is Outcome.PASSED


async def test_a_toy_with_too_few_turns_for_its_expert_is_caught():
    assert (await check_env(Toy(turns=3))).failed == ("the expert succeeds",)


async def test_the_example_keeps_its_promises(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    report = await check_env("examples.guess:Guess", split="test")
    assert report.passed
    assert report["its task ids are stable"].outcome is Outcome.PASSED
    assert report["forks are equal and independent"].outcome is Outcome.PASSED


def test_a_report_is_printed_as_a_table():
    verdicts = (
        Verdict("it plays", Outcome.PASSED, "[bold]as said[/bold]"),
        Verdict("it ends", Outcome.FAILED, "never"),
    )
    report = Report("My[World]", verdicts)
    out = io.StringIO()
    report.print(Console(file=out, width=100))
    for text in ("My[World]", "it plays", "passed", "[bold]as said[/bold]", "it ends", "failed", "never", "1 broken"):
        assert text in out.getvalue()
    assert not report.passed
    assert Report("x", verdicts[:1]).passed
