"""Checks an agent with a real renderer and scripted samples: what it keeps of them is exactly what was sampled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sojourn.abilities import ForkableSeat
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
from sojourn.protocols import AgentContext, Renderer
from sojourn.types import (
    Ending,
    FloatArray,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Stop,
    Trajectory,
    Versions,
)

TURNS = 4
FIRST = Observation((Message(Role.USER, "You are in room 0."),), system=(Message(Role.SYSTEM, "Find the key."),))
REPLIES = ("go north", "go to the key", "look", "take it")
UNREADABLE = '<tool_call>{"name": "look"'
CONTEXT = 4096


@dataclass
class Script:
    """A sampler that says the replies in turn, spelled letter by letter: text that is encoded again has other tokens.

    It notes what it was asked, and what it gave.
    """

    renderer: Any
    replies: tuple[str, ...] = REPLIES
    prompts: list[Prompt] = field(default_factory=list[Prompt])
    params: list[SamplingParams] = field(default_factory=list[SamplingParams])
    given: list[Sample] = field(default_factory=list[Sample])

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        self.prompts.append(replace(prompt, tokens=prompt.tokens.copy()))
        self.params.append(params)
        number = len(self.prompts) - 1
        await asyncio.sleep(0)
        letters = [token for letter in self.replies[number % len(self.replies)] for token in self._spell(letter)]
        whole = [*letters, self.renderer.stops[0]]
        tokens = np.array(whole[: params.max_tokens], dtype=np.int64)
        stop = Stop.END if len(tokens) == len(whole) else Stop.LENGTH
        logprobs = -np.linspace(0.5, 1.5, len(tokens)).astype(np.float32) - number
        self.given.append(Sample(tokens, logprobs, Versions(0, 0), stop))
        return self.given[-1]

    async def score(self, prompt: Prompt) -> FloatArray:
        return np.zeros(max(len(prompt.tokens) - 1, 0), dtype=np.float32)

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    def _spell(self, letter: str) -> list[int]:
        return list(self.renderer.codec.control(letter))


@dataclass(frozen=True)
class Case:
    agent: Any
    renderer: Renderer

    def script(self, *replies: str) -> Script:
        return Script(self.renderer, replies or REPLIES)

    def seat(self, script: Script, **changes: Any) -> Any:
        params = SamplingParams(max_tokens=64, seed=11)
        context = AgentContext(
            name="agent", renderer=self.renderer, sampler=script, params=params, max_context=CONTEXT, trainable=True
        )
        return self.agent.seat(replace(context, **changes))


async def check_agent(component: Any, *, timeout_s: float = 60.0) -> Report:
    """Returns the verdicts on an agent, which speaks ChatML to a scripted model; each promise has `timeout_s`."""
    from sojourn.backends.torch.models.tiny import build_tokenizer
    from sojourn.render.chatml import ChatML

    case = Case(component, ChatML().bind(build_tokenizer()))
    return Report(type(component).__name__, await judge_all_awaited(PROMISES, case, timeout_s))


async def act(seat: Any, first: int = 0, last: int = TURNS) -> None:
    """Takes the turns from `first` to `last`, as an episode does: each action is rewarded, and one that cannot be read
    is refused."""
    observation = _observation(first)
    for number in range(first, last):
        try:
            action = await seat.act(observation, f"state {number}")
        except ActionError as error:
            seat.add_reward(0.0, {"malformed": 1.0})
            observation = seat.refuse(error, observation)
            if not isinstance(observation, Observation) or not observation.messages:
                raise BrokenError(
                    f"refuse() gave {observation!r:.80}: expected an Observation with messages"
                ) from error
            continue
        if not isinstance(action, Message):
            raise BrokenError(f"act() gave {action!r:.80}: expected a Message")
        seat.add_reward(0.25 * (number + 1), {"number": float(number)})
        observation = _observation(number + 1)


def _observation(number: int) -> Observation:
    return Observation((Message(Role.USER, f"You are in room {number}."),)) if number else FIRST


async def _played(case: Case, script: Script | None = None, **changes: Any) -> Trajectory:
    seat = case.seat(script or case.script(), **changes)
    await act(seat)
    return seat.finish(Ending.DONE)


async def _declares(case: Case) -> str:
    require_methods(case.agent, ["seat"], "an agent")
    seat = case.seat(case.script())
    require_methods(seat, ["act", "add_reward", "refuse", "finish"], "what seat() returns")
    if not isinstance(seat.ends_when_malformed, bool):
        raise BrokenError(f"ends_when_malformed = {seat.ends_when_malformed!r}: expected True or False")
    return require_config(case.agent)


async def _plays(case: Case) -> str:
    played = await _played(case, name="north", trainable=False)
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
    played = await _played(case, script)
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
    played = await _played(case, script)
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


async def _keeps_rewards(case: Case) -> str:
    seat = case.seat(case.script())
    seat.add_reward(0.5, {"early": 1.0})
    await act(seat)
    played, idle = seat.finish(Ending.DONE), case.seat(case.script())
    expected = 0.5 + sum(0.25 * (number + 1) for number in range(TURNS))
    if abs(played.reward - expected) > 1e-6:
        raise BrokenError(f"of rewards of {expected:g} in all, {played.reward:g} is kept, one before its first turn")
    infos = {name for turn in played.turns for name in turn.info}
    if lost := {"early", "number"} - infos:
        raise BrokenError(f"the info '{min(lost)}' that came with a reward is on no turn")
    idle.add_reward(-1.0, {"success": 1.0})
    if (unacted := idle.finish(Ending.TIME)).reward != -1.0 or not unacted.success:
        raise BrokenError(f"a seat that never acted was given -1 and success, and keeps {unacted.reward:g}")
    return "before the first turn, after each, and of a seat that never acts"


async def _reads_errors(case: Case) -> str:
    script = case.script(UNREADABLE, *REPLIES)
    played = await _played(case, script)
    if content(script.given[0]) not in [content(turn.sample) for turn in played.turns]:
        raise BrokenError("the sample that could not be read is no turn's: it was sampled, so it is trained")
    return "an unfinished tool call"


async def _fits(case: Case) -> str:
    script = case.script()
    await _played(case, script)
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
    await _played(case, script)
    seeds = [params.seed for params in script.params]
    if len(set(seeds)) != len(seeds):
        raise BrokenError(
            "two samples of an episode have the same seed: a prompt that comes again would be answered alike; derive "
            "each sample's seed from that of the context's params"
        )
    return f"{len(seeds)} samples"


async def _deterministic(case: Case) -> str:
    if content(await _played(case)) != content(await _played(case)):
        raise BrokenError("two seats that saw the same and sampled the same have different trajectories")
    return "the same samples, the same trajectory"


async def _apart(case: Case) -> str:
    alone = content(await _played(case))
    for other in await asyncio.gather(*(_played(case) for _ in range(3))):
        if content(other) != alone:
            raise BrokenError("with other episodes beside it, a seat has another trajectory: keep state in the seat")
    return "3 seats at once"


async def _leaves_inputs(case: Case) -> str:
    before = content(FIRST)
    await _played(case)
    if content(FIRST) != before:
        raise BrokenError("an observation is not what it was before act(): use dataclasses.replace")
    return "observations"


async def _forks(case: Case) -> str:
    """Checks that a forked seat begins with the same turns, and that neither changes the other."""
    script = case.script()
    seat = origin = case.seat(script)
    if not isinstance(seat, ForkableSeat):
        raise NotOfferedError("its seats have no fork(): plays of this agent cannot branch")
    await act(seat, last=2)
    other: Any = seat.fork()
    await act(seat, 2)
    await act(other, 2, 3)
    own, forked, alone = origin.finish(Ending.DONE), other.finish(Ending.DONE), await _played(case)
    if content(own) != content(alone):
        raise BrokenError("after fork(), a seat goes on in another way than without it")
    shared = min(len(own.turns), len(forked.turns)) - 1
    if [content(turn.sample) for turn in own.turns[:shared]] != [content(t.sample) for t in forked.turns[:shared]]:
        raise BrokenError("a forked seat does not begin with the turns of its origin")
    return f"{shared} turns are shared"


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
    Promise("rewards are kept", SOUND, _keeps_rewards),
    Promise("a sample that cannot be read is kept", SOUND, _reads_errors),
    Promise("it asks for no more than a context holds", PLAYS, _fits),
    Promise("every sample has a seed of its own", PLAYS, _seeds),
    Promise("it is deterministic", PLAYS, _deterministic),
    Promise("seats do not affect each other", (*PLAYS, "it is deterministic"), _apart),
    Promise("its inputs are not modified", PLAYS, _leaves_inputs),
    Promise("a forked seat goes on by itself", (*SOUND, "it is deterministic"), _forks),
)
