"""Plays one episode: seats and an environment take turns until one of them ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sojourn.abilities import MOVE, CallsAgents, HasStateKey, all_trajectories
from sojourn.blame import Action, Blame, EnvCall
from sojourn.errors import ActionError, BudgetError, ConfigError, NoActionError, WorldError
from sojourn.event_loop import cancelled
from sojourn.protocols import AgentContext, Env, Seat
from sojourn.rollout.limits import Limits, call_env
from sojourn.timeline import Timeline
from sojourn.types import Ending, Message, Observation, Step, Trajectory
from sojourn.world_answers import checked_observation, checked_step

LOST = "lost"  # in the info of a turn: 1 if its action broke the world


@dataclass(frozen=True)
class Moment:
    """Says where a play stands between two turns. `seen` is what the seat that acts is shown: the world's observation
    or, after a refused action, the reason; `turns` were taken, and these actions performed."""

    observation: Observation
    seen: Observation
    turns: int = 0
    performed: tuple[Action, ...] = ()


class Course(Protocol):
    """A play that begins at `start` if that is given. `before_turn` is awaited before each turn, and `ended` after the
    last. See `sojourn/searchers`."""

    @property
    def start(self) -> Moment | None: ...
    async def before_turn(self, moment: Moment) -> None: ...
    async def ended(self) -> None: ...


class OwnCourse(Course, Protocol):
    """A play that has an environment and seats of its own, too, and opens up to `copies` copies of the play at once.
    See `sojourn/branching`."""

    @property
    def copies(self) -> int: ...
    async def open(self, make: Callable[[], Env], call: EnvCall) -> Env: ...
    def seat(self, context: AgentContext) -> Seat: ...


async def play(
    env: Env,
    seats: Mapping[str, Seat],
    limits: Limits,
    timeline: Timeline,
    world: str = "",
    blame: Blame | None = None,
    course: Course | None = None,
) -> tuple[Trajectory, ...]:
    """Plays until the environment is done or a budget is spent, and returns the trajectories: one for each seat, and
    those of the agents that seats called.

    The caller closes the environment; `world` is its name in messages. Where several agents act, the info `move` of a
    turn is its number in the episode. With `blame`, an episode that an action broke ends with the worst reward.
    """
    started, world = time.monotonic(), world or type(env).__name__
    moment = course.start if course is not None else None
    if moment is None:
        first = checked_observation(await call_env(env.start, limits, timeline), seats, world)
        moment = Moment(first, first)
    observation, seen = moment.observation, moment.seen
    actions = _Actions(env, limits, timeline, blame, list(moment.performed))
    keyed = env if isinstance(env, HasStateKey) else None
    numbered = len(seats) > 1 or any(isinstance(seat, CallsAgents) for seat in seats.values())
    ending = Ending.TURNS
    for number in range(moment.turns, limits.turns):
        move = {MOVE: float(number)} if numbered else {}
        if limits.seconds and time.monotonic() - started > limits.seconds:
            ending = Ending.TIME
            break
        if course is not None:
            await course.before_turn(Moment(observation, seen, number, tuple(actions.performed)))
        seat = seats[observation.agent]
        try:
            message = await seat.act(seen, None if keyed is None else keyed.state_key())
            result = await actions.step(observation.agent, message)
        except BudgetError as error:
            ending = error.ending
            break
        except NoActionError:
            seat.add_reward(0.0, move)
            seen = observation
            continue
        except ActionError as error:
            seat.add_reward(0.0, {"malformed": 1.0, **move})
            if seat.ends_when_malformed:
                ending = Ending.MALFORMED
                break
            seen = seat.refuse(error, observation)
            continue
        step = checked_step(result, seats, world)
        _add_rewards(seats, observation.agent, step, move)
        if step.done or step.observation is None:
            ending = Ending.DONE
            break
        seen = observation = step.observation
    actions.end()
    if course is not None:
        await course.ended()
    return all_trajectories(seats.values(), ending)


@dataclass
class _Actions:
    """Performs the actions of an episode, and keeps them in case one of them breaks the environment."""

    env: Env
    limits: Limits
    timeline: Timeline
    blame: Blame | None
    performed: list[Action] = field(default_factory=list[Action])
    broke: bool = False

    async def step(self, agent: str, message: Message) -> Step:
        action = Action(agent, message)
        try:
            step = await call_env(self.env.step, self.limits, self.timeline, agent, message)
        except (ActionError, BudgetError, ConfigError, WorldError):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            blame = self.blame
            if isinstance(error, asyncio.CancelledError) and cancelled():
                raise
            if blame is None or not await blame.is_cause(self.env, self.performed, action, error):
                raise
            self.broke, blame.failure = True, error
            return Step(None, {agent: blame.lowest}, done=True, success=False, info={LOST: 1.0})
        self.performed.append(action)
        return step

    def end(self) -> None:
        if self.blame is not None:
            self.blame.counts.completed += not self.broke


def _add_rewards(seats: Mapping[str, Seat], actor: str, step: Step, move: Mapping[str, float]) -> None:
    info = {**step.info, **move}
    if step.success is not None:
        info["success"] = float(step.success)
    seats[actor].add_reward(0.0, info)
    for name, reward in step.rewards.items():
        seats[name].add_reward(reward, {} if step.success is None else {"success": float(step.success)})
