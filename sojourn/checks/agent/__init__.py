"""Checks an agent with a real renderer and scripted samples: what it keeps of them is exactly what was sampled."""

from __future__ import annotations

import asyncio
from typing import Any

from sojourn.call_text import action_text
from sojourn.checks.agent.case import CONTEXT, FIRST, REPLIES, TURNS, UNREADABLE, Case, Script, act, observed, play
from sojourn.checks.agent.fork import forks
from sojourn.checks.promise import (
    BrokenError,
    DoubtfulError,
    NotOfferedError,
    Promise,
    judge_all_awaited,
    require_config,
    require_methods,
)
from sojourn.checks.report import Report
from sojourn.checks.synthetic import content
from sojourn.errors import ActionError, BudgetError
from sojourn.types import Ending, Message, Trajectory


async def check_agent(component: Any, *, timeout_s: float = 60.0) -> Report:
    """Returns the verdicts on an agent, which speaks ChatML to a scripted model; each promise has `timeout_s`."""
    from sojourn.backends.torch.models.tiny import build_tokenizer
    from sojourn.render.chatml import ChatML

    case = Case(component, ChatML().bind(build_tokenizer()))
    return Report(type(component).__name__, await judge_all_awaited(PROMISES, case, timeout_s))


async def _declares(case: Case) -> str:
    require_methods(case.agent, ["seat"], "an agent")
    seat = case.seat(case.script())
    require_methods(seat, ["act", "add_reward", "refuse", "finish"], "what seat() returns")
    if not isinstance(seat.ends_when_malformed, bool):
        raise BrokenError(f"ends_when_malformed = {seat.ends_when_malformed!r}: expected True or False")
    return require_config(case.agent)


async def _plays(case: Case) -> str:
    played = await play(case, name="north", trainable=False)
    if not isinstance(played, Trajectory):
        raise BrokenError(f"finish() gave {type(played).__name__}: expected a Trajectory")
    wrong = [
        f"{name} = {found!r}: expected {expected!r}, which it was given"
        for name, found, expected in (
            ("agent", played.agent, "north"),
            ("trainable", played.trainable, False),
            ("ending", played.ending, Ending.DONE),
        )
        if found != expected
    ]
    if wrong:
        raise BrokenError(wrong[0])
    return f"{len(played.turns)} turns"


async def _keeps_samples(case: Case) -> str:
    """Checks that each sample is the sample of exactly one turn, token for token and with its log-probabilities."""
    script = case.script()
    played = await play(case, script)
    kept, given = [content(turn.sample) for turn in played.turns], [content(sample) for sample in script.given]
    if missing := [number for number, sample in enumerate(given) if sample not in kept]:
        raise BrokenError(
            f"sample {missing[0]} of {len(given)} is no turn's: keep each Sample as the sampler gave it, never encoded "
            "again"
        )
    if len(kept) != len(given):
        raise BrokenError(f"{len(kept)} turns for {len(given)} samples: each sample is trained exactly once")
    return f"{len(given)} samples"


async def _keeps_contexts(case: Case) -> str:
    """Checks that the tokens which a turn will be trained on are those that the model was asked with."""
    script = case.script()
    played = await play(case, script)
    prompts = {content(sample): prompt for sample, prompt in zip(script.given, script.prompts, strict=True)}
    for number, turn in enumerate(played.turns):
        if not -1 <= turn.parent < number:
            raise BrokenError(f"turn {number} has the parent {turn.parent}: expected an earlier turn, or -1")
        asked, trained = prompts[content(turn.sample)].tokens.tolist(), played.prompt(number).tolist()
        if asked != trained:
            same = next((n for n, (a, b) in enumerate(zip(asked, trained, strict=False)) if a != b), len(trained))
            raise BrokenError(
                f"turn {number} was sampled after {len(asked)} tokens, and would be trained after {len(trained)}; they "
                f"differ from token {same} on: `context` is what is new since the sample of turn `parent`"
            )
    return f"{len(played.turns)} contexts"


async def _acts_as_sampled(case: Case) -> str:
    """Checks that each action is in a sample of its seat: a message that the model said, a part of it, or a call whose
    name and arguments are in it. An agent may read its action out of what was sampled, and change nothing in it."""
    script, acts = case.script(), 0
    seat, observation = case.seat(script), observed(0)
    for number in range(TURNS):
        try:
            action = await seat.act(observation, None)
        except ActionError as error:
            observation = seat.refuse(error, observation)
            continue
        said = [case.renderer.parse(sample.tokens.tolist()) for sample in script.given]
        if not any(_is_in(action, message) for message in said):
            last = action_text(said[-1]) if said else ""
            raise BrokenError(
                f"it acts {action_text(action)!r} after the model said {last!r}: an action is "
                "read from what was sampled, which is what is trained; raise ActionError where that cannot be done"
            )
        acts, observation = acts + 1, observed(number + 1)
    if not acts:
        raise NotOfferedError(f"it reads none of the {len(script.given)} replies as an action")
    return f"{acts} actions"


def _is_in(action: Message, said: Message) -> bool:
    """Returns whether an action is in what the model said."""
    written = [call for call in action.calls if call not in said.calls]
    words = [action.text, *(call.name for call in written)]
    words += [str(value) for call in written for value in call.arguments.values()]
    return bool(action.text or action.calls) and all(word in said.text for word in words)


async def _keeps_rewards(case: Case) -> str:
    seat = case.seat(case.script())
    seat.add_reward(0.5, {"early": 1.0})
    expected = 0.5 + await act(seat)
    played, idle = seat.finish(Ending.DONE), case.seat(case.script())
    if abs(played.reward - expected) > 1e-6:
        raise BrokenError(f"of rewards of {expected:g} in all, {played.reward:g} is kept, one before its first turn")
    infos = {name for turn in played.turns for name in turn.info}
    if lost := ({"early", "number"} if expected > 0.5 else {"early"}) - infos:
        raise BrokenError(f"the info '{min(lost)}' that came with a reward is on no turn")
    idle.add_reward(-1.0, {"success": 1.0})
    if (unacted := idle.finish(Ending.TIME)).reward != -1.0 or not unacted.success:
        raise BrokenError(f"a seat that never acted was given -1 and success, and keeps {unacted.reward:g}")
    return "before the first turn, after each, and of a seat that never acts"


async def _reads_errors(case: Case) -> str:
    script = case.script(UNREADABLE, *REPLIES)
    played = await play(case, script)
    if content(script.given[0]) not in [content(turn.sample) for turn in played.turns]:
        raise BrokenError("the sample that could not be read is no turn's: it was sampled, so it is trained")
    return "an unfinished tool call"


async def _fits(case: Case) -> str:
    script = case.script()
    await play(case, script)
    _require_room(script, CONTEXT)
    script = case.script()
    try:
        await case.seat(script, max_context=4).act(FIRST)
    except BudgetError:
        return "BudgetError where a context has 4 tokens"
    _require_room(script, 4)
    raise DoubtfulError("it acted in a context of 4 tokens")


async def _seeds(case: Case) -> str:
    script = case.script()
    await play(case, script)
    seeds = [params.seed for params in script.params]
    if len(set(seeds)) != len(seeds):
        raise BrokenError(
            "two samples of an episode have the same seed: a prompt that comes again would be answered alike; derive "
            "each sample's seed from that of the context's params"
        )
    return f"{len(seeds)} samples"


async def _deterministic(case: Case) -> str:
    if content(await play(case)) != content(await play(case)):
        raise BrokenError("two seats that saw the same and sampled the same have different trajectories")
    return "the same samples, the same trajectory"


async def _apart(case: Case) -> str:
    alone = content(await play(case))
    for other in await asyncio.gather(*(play(case) for _ in range(3))):
        if content(other) != alone:
            raise BrokenError("with other episodes beside it, a seat has another trajectory: keep state in the seat")
    return "3 seats at once"


async def _leaves_inputs(case: Case) -> str:
    before = content(FIRST)
    await play(case)
    if content(FIRST) != before:
        raise BrokenError("an observation is not what it was before act(): use dataclasses.replace")
    return "observations"


def _require_room(script: Script, room: int) -> None:
    for prompt, params in zip(script.prompts, script.params, strict=True):
        if len(prompt.tokens) + params.max_tokens > room:
            raise BrokenError(
                f"it asks for {params.max_tokens} tokens after {len(prompt.tokens)}, where a context has {room}: bound "
                "max_tokens by the room that is left, and raise BudgetError where there is none"
            )


SEATED = ("it takes a seat",)
PLAYS = (*SEATED, "an episode gives a trajectory")
SOUND = (*PLAYS, "every sample is kept, once")
PROMISES = (
    Promise(SEATED[0], (), _declares),
    Promise(PLAYS[1], SEATED, _plays),
    Promise(SOUND[2], PLAYS, _keeps_samples),
    Promise("a turn's context is what the model was asked with", SOUND, _keeps_contexts),
    Promise("an action is read from what was sampled", SOUND, _acts_as_sampled),
    Promise("rewards are kept", SOUND, _keeps_rewards),
    Promise("a sample that cannot be read is kept", SOUND, _reads_errors),
    Promise("it asks for no more than a context holds", PLAYS, _fits),
    Promise("every sample has a seed of its own", PLAYS, _seeds),
    Promise("it is deterministic", PLAYS, _deterministic),
    Promise("seats do not affect each other", (*PLAYS, "it is deterministic"), _apart),
    Promise("its inputs are not modified", PLAYS, _leaves_inputs),
    Promise("a forked seat goes on by itself", (*SOUND, "it is deterministic"), forks),
)
