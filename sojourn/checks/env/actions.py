"""Checks of actions: hostile ones earn nothing, listed choices are accepted, the expert succeeds, plays end."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import is_dataclass, replace
from typing import Protocol, runtime_checkable

from sojourn.abilities import HasExpert
from sojourn.ability import Ability
from sojourn.checks.env.hostile import hostile
from sojourn.checks.env.play import (
    Case,
    Play,
    ask_expert,
    choose,
    closing,
    first_difference,
    play_through,
    require_equal,
    short,
)
from sojourn.checks.promise import BrokenError, DoubtfulError, NotOfferedError
from sojourn.finite import as_finite
from sojourn.protocols import EnvFamily
from sojourn.rollout.world import open_world
from sojourn.types import Message

LONGEST_REFUSAL = 2_000  # characters


async def malformed(case: Case) -> str:
    """Tries hostile actions at the start and in the middle; the next promise judges what refusals did to the world."""
    case.refusals = []
    refused: list[Message] = []
    count = longest = 0
    tools = {t.name: t for event in case.plays[0].events if event.observation for t in event.observation.tools}
    for turns in sorted({0, len(case.plays[0].actions) // 2}):
        left, refused = hostile(list(tools.values())), []
        while left:
            async with case.replaying(0, turns) as play:
                refused += await _refused(case, play, left, tools.keys())
        count += len(refused)
        async with case.replaying(0, turns) as play:
            for action in refused:
                longest = max(longest, len((await play.act(action)).refused))
                play.events.pop()
            await play.act_all(case.plays[0].actions[turns:])
            if difference := first_difference(case.plays[0].events, play.events):
                case.refusals.append(f"after refusals, {difference}")
    if longest > LONGEST_REFUSAL:
        raise DoubtfulError(f"a refusal has {longest} characters, all for the agent to read: cut what it repeats")
    return f"{count} hostile actions refused, none rewarded"


async def _refused(case: Case, play: Play, left: list[Message], tools: Collection[str]) -> list[Message]:
    """Takes actions from `left` until one is accepted, and returns the refused ones."""
    refused: list[Message] = []
    while left:
        action, before = left.pop(0), play.key()
        event = await play.act(action)
        valid_tool = any(call.name in tools for call in action.calls)  # such a call may be right by chance
        if not valid_tool and (event.rewards.get(event.seat, 0) > 0 or event.success):
            raise BrokenError(f"the action {short(action)} earned {dict(event.rewards)}, success {event.success}")
        if not event.refused:
            break
        refused.append(action)
        play.events.pop()
        if event.key != before:
            case.refusals.append(f"refusing {short(action)} changed the state key")
    return refused


async def refusals(case: Case) -> str:
    """Judges what refused hostile actions did, and replays every play without the actions that it refused."""
    if case.refusals:
        raise BrokenError(case.refusals[0])
    for number, play in enumerate(case.plays):
        kept = [event for event in play.events if not event.refused]
        if len(kept) < len(play.events):
            async with closing(Play(case.family.make(case.task_of(number)))) as again:
                await play_through(again, [event.action for event in kept if event.action is not None])
            require_equal(kept, again.events, "without the actions that were refused")
    return "the play goes on as if the refused actions had not been"


async def choices(case: Case) -> str:
    offered = [event for play in case.plays for event in play.events if event.observation and event.observation.choices]
    if not offered:
        raise NotOfferedError("no choices in the observations")
    for play in case.plays:
        for before, event in zip(play.events, play.events[1:], strict=False):
            text = event.action.text if event.action else ""
            if event.refused and before.observation and text in before.observation.choices:
                raise BrokenError(f"the choice {text!r} was refused: {event.refused}")
    return f"{len(offered)} observations with choices"


async def expert(case: Case) -> str:
    """Plays tasks by the expert, which must succeed; it moves for every seat, and with several seats who wins is not
    judged."""
    for task in case.tasks:
        async with closing(Play(case.family.make(task))) as play:
            if not isinstance(play.env, HasExpert):
                raise NotOfferedError("no expert()")
            await play.start()
            while not play.done:
                if len(play.actions) >= case.max_turns:
                    raise BrokenError(f"task {task.id}: no end after {case.max_turns} actions of the expert")
                event = await play.act(await ask_expert(play.env))
                if event.refused:
                    raise BrokenError(f"task {task.id}: its action {short(event.action)} was refused: {event.refused}")
        if len(case.seats(task)) == 1 and not play.success:
            raise BrokenError(f"task {task.id}: the expert's play of {len(play.actions)} actions ended without success")
        case.expert_plays.append(play)
    return f"in {', '.join(str(len(play.actions)) for play in case.expert_plays)} actions"


async def rewards_small(case: Case) -> str:
    events = [event for play in [*case.plays, *case.expert_plays] for event in play.events]
    rewards = [reward for event in events for reward in event.rewards.values()]
    if wrong := [reward for reward in rewards if as_finite(reward) is None]:
        raise BrokenError(f"a reward is {wrong[0]}: expected a finite number")
    if rewards and max(map(abs, rewards)) > 1:
        raise DoubtfulError(f"rewards go from {min(rewards):g} to {max(rewards):g}: from -1 to 1 suits most estimators")
    return f"from {min(rewards, default=0):g} to {max(rewards, default=0):g}"


async def success_last(case: Case) -> str:
    events = [event for play in [*case.plays, *case.expert_plays] for event in play.events]
    early = [event.success for event in events if event.success is not None and not event.done]
    if any(early):
        raise BrokenError("success is True before the end: a play that a budget cuts off there counts as a success")
    if early:
        raise DoubtfulError("success is False before the end: leave it None until it is known")
    known = sum(event.success is not None for event in events if event.done)
    if not known:
        raise NotOfferedError("it is never said: a play whose rewards add up to more than 0 counts as a success")
    return f"said at {known} of {sum(event.done for event in events)} ends"


@runtime_checkable
class LimitsTurns(Ability, Protocol):
    """A world whose plays end after as many actions of each seat as its field `turns` says."""

    @property
    def turns(self) -> int: ...


async def ends(case: Case) -> str:
    plays = [*case.plays, *case.expert_plays]
    limit = case.family.turns if isinstance(case.family, LimitsTurns) else 0
    seats = len(case.seats(case.tasks[0]))  # the limit holds for each of them
    if isinstance(limit, int) and any(play.accepted > limit * seats > 0 for play in plays):
        raise BrokenError(f"turns = {limit}, but a play went on to {max(play.accepted for play in plays)} actions")
    limited = await _limited(case, max(play.accepted for play in plays) - 1)
    if not any(play.done for play in plays) and not limited:
        raise DoubtfulError(f"no play ended within {case.max_turns} actions: give the rollout a limit of turns")
    return f"{sum(play.done for play in plays)} of {len(plays)} plays{limited}"


async def _limited(case: Case, longest: int) -> str:
    """Requires that the world's own limit, where it has a field `turns`, ends plays that could go on; tries a low limit
    in a copy of the family, and returns an account of it."""
    turns = min(longest, 3)
    low = _with_turns(case.family, turns)
    if low is None:
        return ""
    async with open_world(low), closing(Play(low.make(low.tasks(case.split)[0]))) as play:
        rng = random.Random(case.seed)
        await play.start()
        max_actions = turns * len(case.seats(case.tasks[0]))
        while not play.done and play.accepted < max_actions and len(play.actions) < case.max_turns:
            await play.act(await choose(play, rng))
    if play.accepted >= max_actions and not play.done:
        raise BrokenError(f"with turns = {turns} a play went on after {max_actions} actions")
    return f", and with turns = {turns} after {play.accepted} actions" if play.done else ""


def _with_turns(family: EnvFamily, turns: int) -> EnvFamily | None:
    """Returns the family with another value of its field `turns`; None where it has no such field or refuses the
    value."""
    if turns < 1 or not isinstance(family, LimitsTurns) or not is_dataclass(family):
        return None
    try:
        return replace(family, turns=turns)  # pyright: ignore[reportArgumentType]
    except Exception:  # the family refuses a limit so low, which it may
        return None
