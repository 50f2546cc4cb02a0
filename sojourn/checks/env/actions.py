"""What actions do: hostile ones earn nothing, offered ones are possible, the expert's succeed."""

from __future__ import annotations

import math

from sojourn.checks.env.play import Case, Play, ask_expert, first_difference, require_equal, short, whole
from sojourn.checks.promise import BrokenError, DoubtfulError, NotOfferedError
from sojourn.types import Message, Role, ToolCall

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


async def malformed(case: Case) -> str:
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
                raise BrokenError(f"the action {short(action)} earned {dict(event.rewards)}, success {event.success}")
            if event.refused:
                refused += 1
                play.events.pop()
                if event.key != before:
                    case.refusals.append(f"refusing {short(action)} changed the state key")
            else:
                await play.env.close()
                play = await case.replay(0, turns)
        await play.act_all(case.plays[0].actions[turns:])
        await play.env.close()
        if difference := first_difference(case.plays[0].events, play.events):
            case.refusals.append(f"after refusals, {difference}")
    return f"{refused} hostile actions refused, none paid"


async def refusals(case: Case) -> str:
    """What hostile actions did; and every play again without the actions that were refused in it."""
    if case.refusals:
        raise BrokenError(case.refusals[0])
    for number, play in enumerate(case.plays):
        kept = [event for event in play.events if not event.refused]
        if len(kept) < len(play.events):
            again = Play(case.family.make(case.task_of(number)))
            await whole(again, [event.action for event in kept if event.action is not None])
            await again.env.close()
            require_equal(kept, again.events, "without the actions that were refused")
    return "the play goes on as if the refused actions had not been"


async def choices(case: Case) -> str:
    offered = [event for play in case.plays for event in play.events if event.observation and event.observation.choices]
    if not offered:
        raise NotOfferedError("no choices in the observations")
    for play in case.plays:
        for before, event in zip(play.events, play.events[1:], strict=False):
            said = event.action.text if event.action else ""
            if event.refused and before.observation and said in before.observation.choices:
                raise BrokenError(f"the choice {said!r} was refused: {event.refused}")
    return f"{len(offered)} observations with choices"


async def expert(case: Case) -> str:
    for task in case.tasks:
        play = Play(case.family.make(task))
        try:
            if not hasattr(play.env, "expert"):
                raise NotOfferedError("no expert()")
            await play.start()
            while not play.done:
                if len(play.actions) >= case.max_turns:
                    raise BrokenError(f"task {task.id}: no end after {case.max_turns} actions of the expert")
                event = await play.act(await ask_expert(play.env))
                if event.refused:
                    raise BrokenError(f"task {task.id}: its action {short(event.action)} was refused: {event.refused}")
        finally:
            await play.env.close()
        if not play.success:
            raise BrokenError(f"task {task.id}: the expert's play of {len(play.actions)} actions ended without success")
        case.expert_plays.append(play)
    return f"in {', '.join(str(len(play.actions)) for play in case.expert_plays)} actions"


async def rewards_small(case: Case) -> str:
    events = [event for play in [*case.plays, *case.expert_plays] for event in play.events]
    rewards = [reward for event in events for reward in event.rewards.values()]
    if wrong := [reward for reward in rewards if not math.isfinite(reward)]:
        raise BrokenError(f"a reward is {wrong[0]}: expected a finite number")
    if rewards and max(map(abs, rewards)) > 1:
        raise DoubtfulError(f"rewards go from {min(rewards):g} to {max(rewards):g}: from -1 to 1 suits most estimators")
    return f"from {min(rewards, default=0):g} to {max(rewards, default=0):g}"


async def ends(case: Case) -> str:
    ended = [play for play in [*case.plays, *case.expert_plays] if play.done]
    if not ended:
        raise DoubtfulError(f"no play ended within {case.max_turns} actions: give the rollout a limit of turns")
    return f"{len(ended)} of {len(case.plays) + len(case.expert_plays)} plays"
