"""Measures a world on this machine: the rewards of its expert and of a random policy, its speed, the cost of a fork.

Times are those of the world alone, one play at a time; the time of choosing actions is not counted.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

from sojourn.abilities import Forkable, HasExpert
from sojourn.ability import Ability
from sojourn.checks.env.play import Play, ask_expert, choose
from sojourn.envs.measured import Measured, Scored
from sojourn.envs.replay_fork import make_forkable
from sojourn.protocols import EnvFamily
from sojourn.rollout.world import open_world
from sojourn.tasks.listed import some_tasks
from sojourn.types import Message, Role, Task

RANDOM_LENGTH = 50  # actions of a random play in a world without an expert
MAX_LENGTH = 300


@runtime_checkable
class ListsChoices(Ability, Protocol):
    """A world that can list the possible actions in each observation, which its field `choices` says."""

    @property
    def choices(self) -> bool: ...


@dataclass
class _Clock:
    starts_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    forks_s: list[float] = field(default_factory=list)


async def measure(family: EnvFamily, *, plays: int = 16, seed: int = 0, seconds: float = 60.0) -> Measured:
    """Plays up to `plays` test tasks by the expert and by a random policy, for about `seconds` at most.

    The random policy picks among the listed choices; where a world lists none, among the expert's actions in other
    tasks and invented calls of the tools. It has twice as many actions as the expert's longest play took.
    """
    family = _with_choices(family)
    async with open_world(family):
        tasks = some_tasks(family, "test")
        picked = [tasks[k] for k in random.Random(seed).sample(range(len(tasks)), min(plays, len(tasks)))]
        clock = _Clock()
        deadline = time.monotonic() + seconds / 2
        expert = await _play_expert(family, picked, clock, deadline)
        expert_actions = [action for play in expert for action in play.actions]
        rng = random.Random(seed)
        longest = 2 * max(len(play.actions) for play in expert) if expert else RANDOM_LENGTH
        deadline = time.monotonic() + seconds / 2
        chance = await _play_all(
            family, picked, clock, lambda play: _random_action(play, expert_actions, rng), deadline, longest
        )
        own = isinstance(chance[0].env, Forkable)
        for play, task in list(zip(chance, picked, strict=False))[:4]:
            await _time_fork(family, task, play, clock)
        return Measured(
            train=len(family.tasks("train")),
            test=len(tasks),
            plays=len(chance),
            expert=_scored(expert) if expert else None,
            chance=_scored(chance),
            start_ms=1e3 * statistics.median(clock.starts_s),
            actions_per_s=1 / max(statistics.median(clock.steps_s), 1e-9),
            fork="own" if own else "re-execution",
            fork_ms=1e3 * statistics.median(clock.forks_s),
        )


async def _play_expert(family: Any, tasks: Sequence[Task], clock: _Clock, deadline: float) -> list[Play]:
    probe = family.make(tasks[0])
    await probe.close()
    if not isinstance(probe, HasExpert):
        return []
    return await _play_all(family, tasks, clock, lambda play: ask_expert(play.env), deadline)


async def _play_all(
    family: Any,
    tasks: Sequence[Task],
    clock: _Clock,
    act: Callable[[Play], Awaitable[Message]],
    deadline: float,
    longest: int = MAX_LENGTH,
) -> list[Play]:
    played: list[Play] = []
    for task in tasks:
        if played and time.monotonic() > deadline:
            break
        play = Play(family.make(task))
        try:
            began = time.perf_counter()
            await play.start()
            clock.starts_s.append(time.perf_counter() - began)
            while not play.done and len(play.events) <= longest:
                action = await act(play)
                began = time.perf_counter()
                await play.act(action)
                clock.steps_s.append(time.perf_counter() - began)
        finally:
            await play.env.close()
        played.append(play)
    return played


async def _random_action(play: Play, expert_actions: Sequence[Message], rng: random.Random) -> Message:
    observation = next(event.observation for event in reversed(play.events) if event.observation)
    if observation.choices:
        return Message(Role.ASSISTANT, rng.choice(observation.choices))
    if expert_actions and (not observation.tools or rng.random() < 0.5):
        return rng.choice(expert_actions)
    return await choose(Play(object(), list(play.events)), rng)


async def _time_fork(family: Any, task: Task, play: Play, clock: _Clock) -> None:
    """Replays the first half of a play, forks it there, and records the time of the fork."""
    replayed = await (await Play(make_forkable(family, task)).start()).act_all(play.actions[: len(play.actions) // 2])
    try:
        began = time.perf_counter()
        forked = await replayed.env.fork()
        clock.forks_s.append(time.perf_counter() - began)
        await forked.close()
    finally:
        await replayed.env.close()


def _scored(plays: Sequence[Play]) -> Scored:
    rewards = [sum(event.rewards.get(play.events[0].seat, 0.0) for event in play.events) for play in plays]
    return Scored(statistics.mean(rewards), statistics.mean(float(play.success) for play in plays))


def _with_choices(family: EnvFamily) -> EnvFamily:
    """Returns the family with listed choices, where it has a field `choices`."""
    if (
        is_dataclass(family)
        and not isinstance(family, type)
        and isinstance(family, ListsChoices)
        and not family.choices
    ):
        return replace(family, choices=True)
    return family
