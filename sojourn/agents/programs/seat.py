"""The seat of a program: its requests become turns, and what it does in the world are the seat's actions."""

from __future__ import annotations

import asyncio
import secrets
from asyncio import FIRST_COMPLETED
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sojourn.abilities import OffersBrowser
from sojourn.agents.programs.site import Exit, Job, Run, Site
from sojourn.errors import ActionError, BudgetError, ConfigError, InfrastructureError, leaf
from sojourn.event_loop import abandon, cancelled
from sojourn.gateway.service import running_service
from sojourn.gateway.session import Session
from sojourn.gateway.world_port import Action, WorldPort
from sojourn.protocols import AgentContext
from sojourn.secrets import masked
from sojourn.types import Ending, Message, Observation, Role, Trajectory

SHOWN = 400  # characters of a program's errors in a message
NOTHING = Message(Role.ASSISTANT, "")  # the action where the world is to judge what was done in its browser
ENDING_S = 30.0  # in which what acts must end once it is cancelled
RAISED = (BudgetError, ConfigError, InfrastructureError)  # which are nothing that a program did
PRINTED = 1 << 14  # characters of the end of each output that are kept


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Says how long a program may go on, in seconds and in replies of the model, and what it does in the world when it
    ends by itself (a text, with placeholders)."""

    seconds: float
    replies: int
    last_action: str


@dataclass
class Running:
    """Holds a program that runs, with the session of its requests; it is ended at `deadline`, by the event loop's
    clock."""

    session: Session
    site: Site
    task: asyncio.Task[Exit]
    deadline: float
    browsed: asyncio.Task[None] | None = None  # ends when what was done in the world's browser ended the episode

    async def action(self) -> Action | None:
        """Waits for the program's next action, and returns None where it ended by itself. Raises `BudgetError` at the
        deadline."""
        if (sent := self.site.port.sent()) is not None:
            return sent
        loop = asyncio.get_running_loop()
        asked = loop.create_task(self.site.port.next_action())
        ends = {asked, self.task} if self.browsed is None else {asked, self.task, self.browsed}
        try:
            await asyncio.wait(ends, timeout=self.deadline - loop.time(), return_when=FIRST_COMPLETED)
            if asked.done():
                return asked.result()
        finally:
            asked.cancel()
        if self.browsed is not None and self.browsed.done():
            return Action(NOTHING, "", loop.create_future())
        if self.task.done():
            return self.site.port.sent()  # what it sent as it ended
        raise BudgetError("the program went on for as long as it may", Ending.TIME)


@dataclass
class ProgramSeat:
    """A participant of one episode, for whom a program acts.

    The program runs from the seat's first turn on. `act` waits for its next action, and the world's answer to that is
    told to the program by the next `act`.
    """

    context: AgentContext
    run: Run
    bounds: Bounds
    running: Running | None = None
    turn: int = -1  # of the session, that the last action carried out
    acted_last: bool = False  # whether `bounds.last_action` was performed
    refused: Observation | None = None
    browser: OffersBrowser | None = None  # of the play
    pending_reward: float = 0.0
    pending_info: dict[str, float] = field(default_factory=dict[str, float])

    ends_when_malformed = False

    def take_browser(self, play: OffersBrowser) -> None:
        """Takes a play with a browser, to which the program is then let."""
        self.browser = play

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        """Returns the next action of the program. Raises `BudgetError` where there is none any more."""
        if self.running is None:
            self.running = await self._start(observation)
        elif observation is not self.refused:
            self.running.site.port.show(observation)
        session = self.running.session
        try:
            action = await self.running.action()
        except BudgetError:
            if session.turns:
                raise
            raise InfrastructureError(self._without_reply(self.running.site)) from None
        if action is None:
            await session.settled()
            message, self.turn = self._last(self.running), len(session.turns) - 1
        else:
            message, self.turn = action.message, session.placement.turn_of(action.message, action.call_id)
        if self.turn >= 0 and state is not None:
            session.add_reward(self.turn, 0.0, {}, state)
        return message

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        """Adds to the turn whose action was carried out; what comes before the first turn is kept for it."""
        if self.running is not None and self.turn >= 0:
            self.running.session.add_reward(self.turn, reward, info)
            return
        self.pending_reward += reward
        self.pending_info |= info

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        if self.running is not None:
            self.running.site.port.refuse(str(error))
        self.refused = replace(observation, system=(), messages=(Message(Role.USER, str(error)),))
        return self.refused

    def finish(self, ending: Ending) -> Trajectory:
        """Returns the turns. Raises `InfrastructureError` for a play in which the engine failed and the program got no
        reply since to the same conversation: what it did without is not the policy's."""
        if self.running is not None and ending is not Ending.FAILED:
            _require_engine(self.running.session)
        context, session = self.context, self.running and self.running.session
        pending = self.pending_reward, self.pending_info
        if session is None or not session.turns:
            return Trajectory(context.name, (), ending, context.trainable, *pending, model=context.params.model)
        if any(pending):
            session.add_reward(0, *pending)
            self.pending_reward, self.pending_info = 0.0, {}
        if self.running is not None:
            session.note(len(session.turns) - 1, _outcome(self.running))
        return session.trajectory(ending)

    async def close(self) -> None:
        """Ends the program."""
        if self.running is not None:
            site, task = self.running.site, self.running.task
            site.port.close()
            site.service.remove(site.job.key)
            self.running.session.close()
            ending = {task} if self.running.browsed is None else {task, self.running.browsed}
            for one in ending:
                one.cancel()
            _, left = await asyncio.wait(ending, timeout=ENDING_S)
            for one in left:
                abandon(one)
            if left:
                raise InfrastructureError(
                    f"what acts in the episode did not end within {ENDING_S:g} s after it was cancelled, so that it is "
                    "abandoned: let CancelledError through"
                )

    async def _start(self, observation: Observation) -> Running:
        service, key, loop = await running_service(), secrets.token_hex(16), asyncio.get_running_loop()
        session = Session(key, self.context, turns_at_most=self.bounds.replies)
        port = WorldPort(observation)
        service.add(session, port)
        job = Job(url=f"{service.url}/s/{key}", key=key, model=self.context.params.model, observation=observation)
        browser = self.browser
        site = Site(job, port, service, "" if browser is None else browser.cdp_socket)
        browsed = None if browser is None else loop.create_task(browser.browsed())
        program = loop.create_task(_run(self.run, site))
        return Running(session, site, program, loop.time() + self.bounds.seconds, browsed)

    def _without_reply(self, site: Site) -> str:
        printed = _told(Exit(0, site.output.text, site.errors.text))
        return (
            f"the program went on for {self.bounds.seconds:g} s, as long as it may, and the model gave it no reply"
            f"{printed}: expected one that asks the model at its base URL; it may be given more `seconds`"
        )

    def _last(self, running: Running) -> Message:
        """Returns the action that is performed where a program has ended by itself."""
        session, ended = running.session, running.task.result()
        _require_engine(session)
        if not session.turns:
            expected = "expected one that asks the model at its base URL"
            if session.ending is Ending.TOKENS:
                limit = self.context.max_context
                expected = f"a context has {limit} tokens, too few for its first request: set a higher max_context"
            raise InfrastructureError(
                f"the program ended before the model gave it a reply, with exit code {ended.code}{_told(ended)}: "
                f"{expected}"
            )
        if ended.code:
            session.add_reward(len(session.turns) - 1, 0.0, {"program_failed": 1.0})
        if self.browser is not None and not self.acted_last:
            self.acted_last = True
            return NOTHING
        if not self.bounds.last_action or self.acted_last:
            raise BudgetError(f"the program ended, with exit code {ended.code}", session.ending or Ending.DONE)
        self.acted_last = True
        said = session.placement.recorded[-1].reply.text  # as the program was told it, also where it cannot be read
        last = running.site.job.filled(self.bounds.last_action, reply=said.strip(), output=ended.output.strip())
        return Message(Role.ASSISTANT, last)


def _outcome(running: Running) -> dict[str, str]:
    """Returns the notes on how a program ended, and what it printed last; of one that runs still, until now."""
    if not running.task.done():
        how = "it ran on until the episode ended, and was ended then"
        return {"program": how, **_printed(running.site.output.text, running.site.errors.text)}
    if running.task.cancelled() or running.task.exception() is not None:
        return {}
    ended = running.task.result()
    how = f"it ended by itself, with exit code {ended.code}"
    return {"program": how, **_printed(ended.output, ended.errors)}


def _printed(output: str, errors: str) -> dict[str, str]:
    """Returns the notes of the ends of a program's outputs, without keys."""
    outputs = {"program's output": output, "program's errors": errors}
    return {name: masked(text[-PRINTED:]) for name, text in outputs.items() if text.strip()}


async def _run(run: Run, site: Site) -> Exit:
    """Runs a program. A function that raises has failed, and with it the policy, whose call it may be that is refused;
    so has one that exits, or that something which it waited for cancelled. The end of its time, and failures of the
    infrastructure and of the configuration, are raised."""
    try:
        return await run(site)
    except BaseExceptionGroup as group:
        raised = group.subgroup(RAISED)
        if raised is not None:
            raise leaf(raised) from None
        return Exit(1, errors=f"{type(leaf(group)).__name__}: {leaf(group)}")
    except RAISED:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancelled():
            raise
        if isinstance(error, SystemExit) and not error.code:
            return Exit(0)
        return Exit(1, errors=f"{type(error).__name__}: {error}")


def _require_engine(session: Session) -> None:
    if session.failure:
        raise InfrastructureError(f"the model gave a program no reply: {session.failure}")


def _told(ended: Exit) -> str:
    text = (ended.errors or ended.output).strip()
    return f": {text[-SHOWN:]}" if text else ""
