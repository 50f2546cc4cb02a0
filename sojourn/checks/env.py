"""Does an environment keep its promises? `check_env` plays it and says, promise by promise.

Each promise is judged alone: where a broken one takes the meaning from others (nothing can be compared in a world that
is not deterministic), those are not judged. A failure of the code under test is a verdict, never an exception.

What it cannot see: a world that leaks through files or servers of its own, a call that blocks the event loop for ever,
and whatever its few random plays do not reach. Longer than our files are: the promises and the play that they are
judged by are best read together.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import math
import os
import random
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from sojourn.checks.report import Outcome, Report, Verdict
from sojourn.envs.tools import as_family
from sojourn.errors import ActionError
from sojourn.types import Message, Observation, Role, Step, Task, ToolCall

HOSTILE = (
    Message(Role.ASSISTANT, ""),
    Message(Role.ASSISTANT, " \n\t "),
    Message(Role.ASSISTANT, "xyzzy plugh frobnicate"),
    Message(Role.ASSISTANT, "x" * 100_000),
    Message(Role.ASSISTANT, "((" * 3_000),
    Message(Role.ASSISTANT, "\u202e\u0000\ufffd \U0001f600 ١٢٣"),
    Message(Role.ASSISTANT, '{"name": "reward", "arguments": {}}'),
    Message(Role.ASSISTANT, "reward(1.0)"),
    Message(Role.ASSISTANT, "__import__('os').getcwd()"),
    Message(Role.ASSISTANT, "reward = 1.0; success = True; done"),
    Message(Role.ASSISTANT, calls=(ToolCall("no_such_tool", {}),)),
    Message(Role.ASSISTANT, calls=(ToolCall("__init__", {"self": None, "": []}),)),
)
PAUSES_S = (0, 0, 0, 0.001, 0.005, 0.02, 0.1)  # after how much of a play it is cancelled, added up
REBUILD = """
import ast, importlib, json, sys
path, values, count = ast.literal_eval(sys.stdin.read())
module, _, names = path.partition(":")
family = importlib.import_module(module)
for name in names.split("."):
    family = getattr(family, name)
family = family(**values)
splits = {split: family.tasks(split) for split in ("train", "test")}
print(json.dumps({split: [tasks[i].id for i in range(min(count, len(tasks)))] for split, tasks in splits.items()}))
"""


class JudgedError(Exception):
    """Ends a judgement early; the message is the verdict's detail."""

    outcome = Outcome.FAILED


class BrokenError(JudgedError):
    """The promise is broken."""


class NotOfferedError(JudgedError):
    """The promise is about something optional that is not there."""

    outcome = Outcome.NOT_OFFERED


class DoubtfulError(JudgedError):
    """The promise is kept, but something is worth knowing."""

    outcome = Outcome.WARNED


@dataclass(frozen=True)
class Event:
    """One action and what came of it (for the start: no action)."""

    seat: str
    action: Message | None
    observation: Observation | None
    rewards: Mapping[str, float] = field(default_factory=dict)
    done: bool = False
    success: bool | None = None
    refused: str = ""
    key: str | None = None


@dataclass
class Play:
    """An env at play, with its events."""

    env: Any
    events: list[Event] = field(default_factory=list)
    seat: str = "agent"

    @property
    def done(self) -> bool:
        return self.events[-1].done

    @property
    def actions(self) -> list[Message]:
        return [event.action for event in self.events if event.action is not None]

    @property
    def success(self) -> bool:
        known = [event.success for event in self.events if event.success is not None]
        return known[-1] if known else sum(sum(event.rewards.values()) for event in self.events) > 0

    def key(self) -> str | None:
        return self.env.state_key() if hasattr(self.env, "state_key") else None

    async def start(self) -> Play:
        observation = await self.env.start()
        _require_observation(observation, "start()")
        self.seat = observation.agent
        self.events.append(Event(self.seat, None, observation, key=self.key()))
        return self

    async def act(self, action: Message) -> Event:
        seat = self.seat
        try:
            step = await self.env.step(seat, action)
        except ActionError as error:
            event = Event(seat, action, None, refused=str(error) or "refused", key=self.key())
        else:
            _require_step(step, f"step({_short(action)})")
            self.seat = step.observation.agent if step.observation else seat
            event = Event(seat, action, step.observation, dict(step.rewards), step.done, step.success, key=self.key())
        self.events.append(event)
        return event

    async def act_all(self, actions: Sequence[Message]) -> Play:
        for action in actions:
            if self.done:
                break
            await self.act(action)
        return self


@dataclass
class Case:
    """What is checked, and the plays that the promises are judged by."""

    family: Any
    split: str
    episodes: int
    seed: int
    max_turns: int
    tasks: list[Task] = field(default_factory=list)
    plays: list[Play] = field(default_factory=list)  # finished and closed; the first two are of one task
    expert_plays: list[Play] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  # what refused hostile actions did to the world

    def task_of(self, play: int) -> Task:
        return self.tasks[max(play - 1, 0)]

    async def replay(self, play: int, turns: int | None = None) -> Play:
        """The same task and the same actions (the first `turns` of them) in a new env, still open."""
        fresh = await Play(self.family.make(self.task_of(play))).start()
        return await fresh.act_all(self.plays[play].actions[:turns])


class Promise(NamedTuple):
    name: str
    needs: tuple[str, ...]
    judge: Callable[[Case], Awaitable[str]]  # returns a detail, or raises JudgedError


async def check_env(
    family: Any,
    *,
    split: str = "train",
    episodes: int = 3,
    seed: int = 0,
    max_turns: int = 100,
    timeout_s: float = 120.0,
) -> Report:
    """Plays `episodes` tasks of a family (or of a plain class, see `as_family`) and judges each promise.

    Plays choose at random among the choices; where there are none, between the expert's action and invented calls.
    `timeout_s` is granted to each promise.
    """
    subject = family if isinstance(family, str) else getattr(family, "__qualname__", type(family).__qualname__)
    verdicts: dict[str, Verdict] = {}
    case = Case(family, split, episodes, seed, max_turns)
    for promise in PROMISES:
        lost = [name for name in promise.needs if verdicts[name].outcome in (Outcome.FAILED, Outcome.NOT_JUDGED)]
        if lost:
            verdicts[promise.name] = Verdict(promise.name, Outcome.NOT_JUDGED, f"needs: {lost[0]}")
        else:
            verdicts[promise.name] = await _judge(promise, case, timeout_s)
    if (shut := getattr(case.family, "close", None)) and not isinstance(case.family, (str, type)):
        closing = Promise("the family closes", (), lambda case: _closed(shut))
        verdicts[closing.name] = await _judge(closing, case, timeout_s)
    return Report(str(subject), tuple(verdicts.values()))


async def _judge(promise: Promise, case: Case, timeout_s: float) -> Verdict:
    """The boundary to strangers' code: whatever it raises is a verdict, and it cannot hold the suite by waiting."""
    task = asyncio.ensure_future(promise.judge(case))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        task.cancel()
    if not task.done():
        return Verdict(promise.name, Outcome.FAILED, f"not finished after {timeout_s:g} s")
    try:
        return Verdict(promise.name, Outcome.PASSED, task.result())
    except JudgedError as judged:
        return Verdict(promise.name, judged.outcome, str(judged))
    except asyncio.CancelledError:
        return Verdict(promise.name, Outcome.FAILED, "it cancelled the task that played it")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"raised {type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        return Verdict(promise.name, Outcome.FAILED, detail)


async def _opens(case: Case) -> str:
    case.family = as_family(case.family)
    if not hasattr(case.family, "open"):
        return "an EnvFamily"
    await case.family.open()
    return "an EnvFamily, opened"


async def _closed(close: Callable[[], Awaitable[None]]) -> str:
    await close()
    return ""


async def _gives_tasks(case: Case) -> str:
    sizes: dict[str, int] = {}
    for split in ("train", "test"):
        tasks = case.family.tasks(split)
        sizes[split] = len(tasks)
        for index in range(min(20, len(tasks))):
            task = tasks[index]
            if not isinstance(task, Task) or task.split != split:
                raise BrokenError(f'tasks("{split}")[{index}] is {_short(task)}: expected a Task of that split')
            if json.loads(json.dumps(dict(task.data))) != dict(task.data):
                raise BrokenError(f'tasks("{split}")[{index}].data = {_short(task.data)}: expected JSON values alone')
            if case.family.tasks(split)[index].id != task.id:
                raise BrokenError(f'tasks("{split}")[{index}] is another task when asked again')
    if not sizes.get(case.split):
        raise BrokenError(f'tasks("{case.split}") is empty')
    chosen = random.Random(case.seed).sample(range(sizes[case.split]), min(case.episodes, sizes[case.split]))
    case.tasks = [case.family.tasks(case.split)[index] for index in chosen]
    if not all(sizes.values()):
        raise DoubtfulError(
            f"train has {sizes['train']} tasks, test has {sizes['test']}: nothing can be learnt and judged"
        )
    return f"{sizes['train']} to train, {sizes['test']} to test"


async def _splits_disjoint(case: Case) -> str:
    seen: dict[str, dict[str, int]] = {}
    for split in ("train", "test"):
        tasks = case.family.tasks(split)
        found = [tasks[index] for index in range(min(1_000, len(tasks)))]
        seen[split] = {json.dumps([t.env, dict(t.data), t.seed], sort_keys=True): i for i, t in enumerate(found)}
    if common := seen["train"].keys() & seen["test"].keys():
        one = min(common)
        raise BrokenError(f"train task {seen['train'][one]} is test task {seen['test'][one]} too: {_short(one)}")
    return f"first {len(seen['train'])} and {len(seen['test'])} compared"


async def _ids_stable(case: Case) -> str:
    family: Any = case.family
    kind = type(family)
    path = f"{kind.__module__}:{kind.__qualname__}"
    if not is_dataclass(kind) or "<locals>" in path or kind.__module__ == "__main__":
        raise NotOfferedError("the family cannot be made again by name in another process")
    values = {f.name: getattr(family, f.name) for f in fields(kind) if f.init}
    spoken = repr((path, values, 20))
    try:
        same = ast.literal_eval(spoken)[1] == values
    except (SyntaxError, ValueError):
        same = False
    if not same:
        raise NotOfferedError("the family's fields cannot be written down for another process")
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    hashing = "1" if os.environ.get("PYTHONHASHSEED", "random") != "1" else "2"
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hashing}
    command = [sys.executable, "-c", REBUILD]
    child = await asyncio.to_thread(
        subprocess.run, command, input=spoken, env=environment, capture_output=True, text=True, timeout=100
    )
    if child.returncode:
        raise BrokenError(f"another process cannot list the tasks: {child.stderr.strip().splitlines()[-1:]}")
    for split, ids in json.loads(child.stdout.splitlines()[-1]).items():
        tasks = family.tasks(split)
        for index, there in enumerate(ids):
            if tasks[index].id != there:
                raise BrokenError(f'tasks("{split}")[{index}].id is {tasks[index].id} here, {there} in another process')
    return "the same in another process"


async def _plays(case: Case) -> str:
    for number in range(len(case.tasks) + 1):
        rng = random.Random(f"{case.seed} {number}")
        play = Play(case.family.make(case.task_of(number)))
        try:
            await play.start()
            while not play.done and len(play.events) <= case.max_turns:
                await play.act(await _choose(play, rng))
        finally:
            await play.env.close()
        case.plays.append(play)
    return f"{len(case.plays)} plays, {sum(len(play.actions) for play in case.plays)} actions"


async def _deterministic(case: Case) -> str:
    for number, play in enumerate(case.plays):
        again = await case.replay(number)
        await again.env.close()
        _require_equal(play.events, again.events, "played again")
    return "same task, same actions: same observations, rewards and ends"


async def _isolated(case: Case) -> str:
    for one, other in [(0, number) for number in range(1, len(case.plays))]:
        pair = [Play(case.family.make(case.task_of(number))) for number in (one, other)]
        try:
            for play in pair:
                await play.start()
            queues = [case.plays[number].actions for number in (one, other)]
            for turn in range(max(map(len, queues))):
                for play, queue in zip(pair, queues, strict=True):
                    await play.act_all(queue[turn : turn + 1])
        finally:
            for play in pair:
                await play.env.close()
        for number, play in zip((one, other), pair, strict=True):
            _require_equal(case.plays[number].events, play.events, "beside another play")
    return "two plays at once do not touch each other"


async def _forks(case: Case) -> str:
    probe = case.family.make(case.tasks[0])
    offered = hasattr(probe, "fork")
    await probe.close()
    if not offered:
        raise NotOfferedError("no fork()")
    for number, play in enumerate(case.plays):
        middle = len(play.actions) // 2
        for fork_first in (True, False):
            original = await case.replay(number, middle)
            twin = Play(await original.env.fork(), list(original.events), original.seat)
            order = (twin, original) if fork_first else (original, twin)
            for copy in order:
                await copy.act_all(play.actions[middle:])
                await copy.env.close()
            _require_equal(play.events, twin.events, f"in a fork after {middle} actions")
            _require_equal(play.events, original.events, f"in the original of a fork after {middle} actions")
    return "a fork and its original go on alike, and apart"


async def _state_key(case: Case) -> str:
    keys = [event.key for play in case.plays for event in play.events]
    if all(key is None for key in keys):
        raise NotOfferedError("no state_key()")
    if wrong := [key for key in keys if not isinstance(key, str)]:
        raise BrokenError(f"state_key() gave {_short(wrong[0])}: expected text")
    for number, play in enumerate(case.plays):
        again = await case.replay(number)
        await again.env.close()
        for turn, (then, now) in enumerate(zip(play.events, again.events, strict=True)):
            if then.key != now.key:
                raise BrokenError(
                    f"after {turn} actions it was {_short(then.key)}, played again it is {_short(now.key)}"
                )
    return f"{len(set(keys))} states told apart"


async def _rewards(case: Case) -> str:
    events = [event for play in [*case.plays, *case.expert_plays] for event in play.events]
    rewards = [reward for event in events for reward in event.rewards.values()]
    if wrong := [reward for reward in rewards if not math.isfinite(reward)]:
        raise BrokenError(f"a reward is {wrong[0]}: expected a finite number")
    if rewards and max(map(abs, rewards)) > 1:
        raise DoubtfulError(f"rewards go from {min(rewards):g} to {max(rewards):g}: from -1 to 1 suits most estimators")
    return f"from {min(rewards, default=0):g} to {max(rewards, default=0):g}"


async def _malformed(case: Case) -> str:
    """Hostile actions at the start and in the middle; what a refusal did to the world is judged by the next promise."""
    case.refusals = []
    refused = 0
    for turns in sorted({0, len(case.plays[0].actions) // 2}):
        play = await case.replay(0, turns)
        for action in HOSTILE:
            before = play.key()
            event = await play.act(action)
            if any(reward > 0 for reward in event.rewards.values()) or event.success:
                await play.env.close()
                raise BrokenError(f"the action {_short(action)} earned {dict(event.rewards)}, success {event.success}")
            if event.refused:
                refused += 1
                play.events.pop()
                if event.key != before:
                    case.refusals.append(f"refusing {_short(action)} changed the state key")
            else:
                await play.env.close()
                play = await case.replay(0, turns)
        await play.act_all(case.plays[0].actions[turns:])
        await play.env.close()
        if difference := _difference(case.plays[0].events, play.events):
            case.refusals.append(f"after refusals, {difference}")
    return f"{refused} hostile actions refused, none paid"


async def _refusals(case: Case) -> str:
    if case.refusals:
        raise BrokenError(case.refusals[0])
    return "the play goes on as if the refused actions had not been"


async def _choices(case: Case) -> str:
    offered = [event for play in case.plays for event in play.events if event.observation and event.observation.choices]
    if not offered:
        raise NotOfferedError("no choices in the observations")
    for play in case.plays:
        for before, event in zip(play.events, play.events[1:], strict=False):
            said = event.action.text if event.action else ""
            if event.refused and before.observation and said in before.observation.choices:
                raise BrokenError(f"the choice {said!r} was refused: {event.refused}")
    return f"{len(offered)} observations with choices"


async def _expert(case: Case) -> str:
    for task in case.tasks:
        play = Play(case.family.make(task))
        try:
            if not hasattr(play.env, "expert"):
                raise NotOfferedError("no expert()")
            await play.start()
            while not play.done:
                if len(play.actions) >= case.max_turns:
                    raise BrokenError(f"task {task.id}: no end after {case.max_turns} actions of the expert")
                event = await play.act(await _ask_expert(play.env))
                if event.refused:
                    raise BrokenError(f"task {task.id}: its action {_short(event.action)} was refused: {event.refused}")
        finally:
            await play.env.close()
        if not play.success:
            raise BrokenError(f"task {task.id}: the expert's play of {len(play.actions)} actions ended without success")
        case.expert_plays.append(play)
    return f"in {', '.join(str(len(play.actions)) for play in case.expert_plays)} actions"


async def _closes(case: Case) -> str:
    unused = case.family.make(case.tasks[0])
    await unused.close()  # before any start
    await (await case.replay(0)).env.close()  # warms up whatever the family shares
    before = _running()
    for turns in (1, None):
        play = await case.replay(0, turns)
        await play.env.close()
        await play.env.close()
    if left := await _left_running(before):
        raise BrokenError(f"after close() there still runs {left[0]} ({len(left)} in all)")
    return "at any time, twice, and nothing is left running"


async def _cancellable(case: Case) -> str:
    before = _running()
    for count in range(len(PAUSES_S) + 1):
        play = Play(case.family.make(case.tasks[0]))
        task = asyncio.ensure_future(_whole(play, case.plays[0].actions))
        for pause_s in PAUSES_S[:count]:
            await asyncio.sleep(pause_s)
        finished = task.done()
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        if not task.done():
            raise BrokenError("a cancelled play did not stop within 10 s")
        if not finished and not task.cancelled():
            raise BrokenError(f"a cancelled play went on, and ended with {_short(task.exception() or 'its result')}")
        await play.env.close()
        if finished:
            break
    again = await case.replay(0)
    await again.env.close()
    _require_equal(case.plays[0].events, again.events, "after cancelled plays")
    if left := await _left_running(before):
        raise BrokenError(f"after a cancelled play and close() there still runs {left[0]}")
    return "at every await tried"


async def _ends(case: Case) -> str:
    ended = [play for play in [*case.plays, *case.expert_plays] if play.done]
    if not ended:
        raise DoubtfulError(f"no play ended within {case.max_turns} actions: give the rollout a limit of turns")
    return f"{len(ended)} of {len(case.plays) + len(case.expert_plays)} plays"


async def _whole(play: Play, actions: Sequence[Message]) -> None:
    await play.start()
    await play.act_all(actions)


async def _choose(play: Play, rng: random.Random) -> Message:
    """A random choice; without choices, the expert's action or an invented call."""
    observation = next(event.observation for event in reversed(play.events) if event.observation)
    if observation.choices:
        return Message(Role.ASSISTANT, rng.choice(observation.choices))
    if hasattr(play.env, "expert") and (not observation.tools or rng.random() < 0.5):
        return await _ask_expert(play.env)
    if observation.tools:
        tool = rng.choice(observation.tools)
        return Message(Role.ASSISTANT, calls=(ToolCall(tool.name, _invent(tool.parameters, rng)),))
    return Message(Role.ASSISTANT, rng.choice(("look", "help", "yes", "no", "1")))


async def _ask_expert(env: Any) -> Message:
    action = env.expert()
    if inspect.isawaitable(action):
        action = await action
    if not isinstance(action, str):
        raise BrokenError(f"expert() gave {_short(action)}: expected the action as text")
    return Message(Role.ASSISTANT, action)


def _invent(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """A value that fits a JSON Schema of the plain kinds."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "anyOf" in schema:
        return _invent(rng.choice(schema["anyOf"]), rng)
    match schema.get("type"):
        case "integer":
            return rng.randint(0, 9)
        case "number":
            return rng.random()
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return [_invent(schema.get("items", {}), rng)]
        case "object":
            return {key: _invent(value, rng) for key, value in schema.get("properties", {}).items()}
        case "null":
            return None
    return rng.choice(("a", "b", "yes"))


def _running() -> set[Any]:
    return {*asyncio.all_tasks(), *threading.enumerate()}


async def _left_running(before: set[Any]) -> list[str]:
    """What has started since and does not end within a second, cancelled where it can be; shared pools excepted."""
    started: list[Any] = []
    for _ in range(50):
        started = [r for r in _running() - before if not _name(r).startswith("asyncio_")]
        if not started:
            return []
        await asyncio.sleep(0.02)
    for running in started:
        if isinstance(running, asyncio.Task):
            running.cancel()
    return [f"the {'task' if isinstance(r, asyncio.Task) else 'thread'} {_name(r)}" for r in started]


def _name(running: Any) -> str:
    if isinstance(running, asyncio.Task):
        return getattr(running.get_coro(), "__qualname__", running.get_name())
    return running.name


def _require_observation(value: Any, where: str) -> None:
    if not isinstance(value, Observation):
        raise BrokenError(f"{where} gave {_short(value)}: expected an Observation")
    said = [*value.brief, *value.messages]
    if not said or not all(isinstance(message, Message) for message in said):
        raise BrokenError(
            f"{where} gave an observation with the messages {_short(said)}: expected Messages, at least one"
        )


def _require_step(value: Any, where: str) -> None:
    if not isinstance(value, Step):
        raise BrokenError(f"{where} gave {_short(value)}: expected a Step")
    if value.done != (value.observation is None):
        raise BrokenError(
            f"{where} gave done={value.done} with {_short(value.observation)}: None belongs to the end alone"
        )
    if value.observation is not None:
        _require_observation(value.observation, where)
    if wrong := {seat: reward for seat, reward in value.rewards.items() if not isinstance(reward, (int, float))}:
        raise BrokenError(f"{where} gave the rewards {wrong}: expected numbers by seat")


def _require_equal(then: Sequence[Event], now: Sequence[Event], when: str) -> None:
    if difference := _difference(then, now):
        raise BrokenError(f"{when}, {difference}")


def _difference(then: Sequence[Event], now: Sequence[Event]) -> str:
    """The first difference of two plays in words, state keys apart; empty where there is none."""
    for turn, (one, other) in enumerate(zip(then, now, strict=False)):
        for name in ("seat", "observation", "rewards", "done", "success", "refused"):
            was, became = getattr(one, name), getattr(other, name)
            if was != became:
                return f"after {turn} actions {name} is {_short(became)}, but it was {_short(was)}"
    return "" if len(then) == len(now) else f"it ends after {len(now) - 1} actions, but it was {len(then) - 1}"


def _short(value: Any) -> str:
    if isinstance(value, Message):
        value = value.text or [asdict(call) for call in value.calls]
    if isinstance(value, Observation):
        value = " | ".join(message.text for message in (*value.brief, *value.messages))
    text = ascii(value)
    return text if len(text) <= 90 else f"{text[:90]}..."


WORKS = ("it is an environment", "it gives tasks", "it can be played")
COMPARED = (*WORKS, "it is deterministic")
PROMISES = (
    Promise("it is an environment", (), _opens),
    Promise("it gives tasks", WORKS[:1], _gives_tasks),
    Promise("its splits share no task", WORKS[:2], _splits_disjoint),
    Promise("its task ids are stable", WORKS[:2], _ids_stable),
    Promise("it can be played", WORKS[:2], _plays),
    Promise("it is deterministic", WORKS, _deterministic),
    Promise("plays are isolated", COMPARED, _isolated),
    Promise("forks are equal and apart", COMPARED, _forks),
    Promise("state keys are stable", COMPARED, _state_key),
    Promise("malformed actions earn nothing", WORKS, _malformed),
    Promise("a refusal changes nothing", (*COMPARED, "malformed actions earn nothing"), _refusals),
    Promise("choices are possible", WORKS, _choices),
    Promise("the expert succeeds", WORKS, _expert),
    Promise("rewards are finite and small", WORKS, _rewards),
    Promise("it closes", WORKS, _closes),
    Promise("it can be cancelled", (*COMPARED, "it closes"), _cancellable),
    Promise("its plays end", WORKS, _ends),
)
