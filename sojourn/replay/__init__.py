"""Replays recorded episodes: the same task and the same actions, to see whether the world answers in the same way.

The actions are taken from the record and played through the loop of a rollout, so that limits, refusals and several
seats work as they did. Turn by turn it compares which seat acts, what it observes (images by their digests), the state
if the world has keys for it, refusals, rewards, success, and how the episode ends. Where the agent of the run is not
`plain`, it takes the seats again, as it may add to what the world shows (`agent_seat.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from sojourn.abilities import ActsByProgram
from sojourn.checks.env.play import difference
from sojourn.config.registry import build, construct
from sojourn.errors import ActionError, ConfigError, RecordError, SojournError
from sojourn.event_loop import contained
from sojourn.models.asking import Exchange
from sojourn.models.spec import Sampling
from sojourn.protocols import EnvFamily
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.export.selection import paths_in_world
from sojourn.record.run import RunFolder
from sojourn.replay.agent_seat import AgentSeat
from sojourn.replay.compare import (
    DiffersError,
    NotReplayableError,
    compare_rewards,
    compare_shown,
    compare_state,
)
from sojourn.rollout.limits import Limits, call_env
from sojourn.rollout.play import play
from sojourn.rollout.world import open_world, seats_of
from sojourn.timeline import Timeline
from sojourn.types import Ending, Episode, Message, Observation, Role, Stop, Trajectory, Turn


class Verdict(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    NOTHING = "nothing"  # the record cannot be replayed


class Replayed(NamedTuple):
    """The result of a replay: `difference` describes the first one, or why the episode could not be replayed."""

    episode: str
    verdict: Verdict
    difference: str = ""
    turns: int = 0


@asynccontextmanager
async def world_of_run(run: RunFolder) -> AsyncIterator[EnvFamily]:
    """Opens the world of a run, as its config describes it."""
    table = run.config.get("env")
    if not isinstance(table, Mapping):
        raise RecordError(f"{run.path / 'config.toml'} has no table [env]: there is no world to play in")
    try:
        family = build("env", table, "env").value
    except ConfigError as error:
        raise ConfigError(f"the world of {run.path} cannot be built here: {error}") from error
    async with open_world(family):
        yield family


async def replay(
    run: RunFolder, episodes: Iterable[tuple[EpisodeRow, Record | RecordError]]
) -> AsyncIterator[Replayed]:
    """Replays the episodes one after another, and yields the result of each."""
    limits, seat_of = _limits(run), _seat_of_run(run)
    async with world_of_run(run) as family:
        for row, record in episodes:
            if isinstance(record, RecordError):
                yield Replayed(row.id, Verdict.NOTHING, str(record))
            else:
                yield await _replayed(family, record.episode, limits, partial(seat_of, record.asked))


def _seat_of_run(run: RunFolder) -> SeatOfAsked:
    """Returns what makes the seats of a play: of the run's own agent, unless that is `plain`, or there is none, as in
    the record of a match. It is given what models were asked about the episode."""
    table = run.config.get("agent")
    if not isinstance(table, Mapping) or table.get("name") == "plain":
        return _recorded_seat
    try:
        agent = build("agent", table, "agent").value
        params = construct(Sampling, run.config.get("sampling", {}), "sampling").value.params()
    except ConfigError as error:
        raise ConfigError(f"the agent of {run.path} cannot be built here: {error}") from error

    def seat(
        asked: Sequence[Exchange], trajectory: Trajectory, ends: bool, called: Sequence[Trajectory]
    ) -> RecordedSeat | AgentSeat:
        if isinstance(agent, ActsByProgram):
            raise NotReplayableError(f"{agent.program} acted, and no program acts the same way twice")
        sampled = any(len(turn.sample.tokens) for turn in trajectory.turns)  # not so by a model behind an endpoint
        return AgentSeat.of(agent, trajectory, params, called, asked) if sampled else RecordedSeat(trajectory, ends)

    return seat


def _limits(run: RunFolder) -> Limits:
    rollout = run.config.get("rollout")
    limits = rollout.get("limits") if isinstance(rollout, dict) else None
    stall_s = limits.get("stall_s") if isinstance(limits, dict) else None
    return Limits(stall_s=stall_s) if isinstance(stall_s, (int, float)) and stall_s > 0 else Limits()


async def _replayed(family: EnvFamily, episode: Episode, limits: Limits, seat_of: SeatOf) -> Replayed:
    if episode.error is not None:
        return Replayed(episode.id, Verdict.NOTHING, f"its world failed when it was played: {episode.error}")
    turns = sum(len(trajectory.turns) for trajectory in episode.trajectories)
    if not turns:
        return Replayed(episode.id, Verdict.NOTHING, "nobody acted in it")
    plays = _plays(episode)
    if not plays:
        return Replayed(episode.id, Verdict.NOTHING, "it has branches in several seats, whose order was not recorded")
    for number, seats in enumerate(plays):
        where = f"path {number + 1} of {len(plays)}: " if len(plays) > 1 else ""
        try:
            await contained(_play_again(family, episode, seats, limits, seat_of))
        except DiffersError as error:
            return Replayed(episode.id, Verdict.DIFFERS, f"{where}{error}", turns)
        except NotReplayableError as error:
            return Replayed(episode.id, Verdict.NOTHING, str(error))
        except ConfigError:
            raise
        except Exception as error:  # the world's own: it did not fail when it was recorded
            return Replayed(episode.id, Verdict.DIFFERS, f"{where}the world fails now: {_error_text(error)}", turns)
    return Replayed(episode.id, Verdict.SAME, turns=turns)


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, SojournError) else f"{type(error).__name__}: {error}"


def _plays(episode: Episode) -> list[list[Trajectory]]:
    """Returns the plays to repeat, each a trajectory per seat: one per branch if a single seat has branches.

    It is empty if several seats have branches, since the order of their turns was not recorded.
    """
    forks = [paths_in_world(trajectory) for trajectory in episode.trajectories]
    if all(len(paths) <= 1 for paths in forks):
        return [list(episode.trajectories)]
    if len(episode.trajectories) > 1:
        return []
    return [
        [replace(only, turns=tuple(only.turns[n] for n in path))]
        for only, paths in zip(episode.trajectories, forks, strict=True)
        for path in paths
    ]


async def _play_again(
    family: EnvFamily, episode: Episode, trajectories: list[Trajectory], limits: Limits, seat_of: SeatOf
) -> None:
    """Replays one play; raises `DiffersError` at the first difference."""
    recorded = sum(len(trajectory.turns) for trajectory in trajectories)
    names = seats_of(family, episode.task)
    seated = [one for one in trajectories if one.agent in names] or trajectories
    called = [] if seated is trajectories else [one for one in trajectories if one.agent not in names]
    if called and len(seated) != 1:
        raise NotReplayableError("its seats called other agents, and it was not recorded which seat called which")
    ends = episode.trajectories[0].ending == Ending.MALFORMED
    seats = {one.agent: seat_of(one, ends, called) for one in seated}
    timeline = Timeline()
    env = family.make(episode.task)
    try:
        played = await play(env, seats, replace(limits, turns=recorded, seconds=0.0), timeline, episode.task.env)
    finally:
        await call_env(env.close, limits, timeline)
    for seat in seats.values():
        seat.compare_end()
    ended, was = not played[0].ending.truncated, not trajectories[0].ending.truncated
    whole = recorded == sum(len(t.turns) for t in episode.trajectories)  # a branch may stop before the episode ends
    if whole and ended != was:
        raise DiffersError(
            f"after {recorded} turns the world {'is done' if ended else 'goes on'}, but it "
            f"{f'was over ({trajectories[0].ending})' if was else f'was cut off there ({trajectories[0].ending})'}"
        )


@dataclass
class RecordedSeat:
    """A seat that repeats its recorded actions, and compares its observations and rewards with the record."""

    trajectory: Trajectory
    ends: bool  # whether a malformed action ends the episode
    at: int = 0
    replayed: list[Turn] = field(default_factory=list)  # the turns so far, with the rewards of this play
    pending_reward: float = 0.0
    pending_info: Mapping[str, float] = field(default_factory=dict)
    refusal: str | None = None  # why the last action was refused; empty if it could not be parsed

    @property
    def ends_when_malformed(self) -> bool:
        return self.ends and self.at == len(self.trajectory.turns)

    async def act(self, observation: Observation, state: str | None = None) -> Message:
        self.compare_end()
        if self.at == len(self.trajectory.turns):
            raise DiffersError(f"{self._where} is asked to act, but its record ends there")
        turn = self.trajectory.turns[self.at]
        self._compare_shown(observation, turn)
        compare_state(self._where, turn.state, state)
        self.replayed.append(replace(turn, reward=self.pending_reward, info=self.pending_info))
        self.pending_reward, self.pending_info, self.refusal = 0.0, {}, None
        self.at += 1
        if turn.message is None:
            self.refusal = ""
            raise ActionError("")
        return turn.message

    def add_reward(self, reward: float, info: Mapping[str, float]) -> None:
        if not self.replayed:
            self.pending_reward, self.pending_info = self.pending_reward + reward, {**self.pending_info, **info}
            return
        last = self.replayed[-1]
        self.replayed[-1] = replace(last, reward=last.reward + reward, info={**last.info, **info})

    def refuse(self, error: ActionError, observation: Observation) -> Observation:
        if "malformed" not in self.trajectory.turns[self.at - 1].info:
            raise DiffersError(
                f"turn {self.at} of {self.trajectory.agent}: the world refuses now what was said ({error})"
            )
        self.refusal = self.refusal if self.refusal == "" else str(error)
        return replace(observation, system=())

    def finish(self, ending: Ending) -> Trajectory:
        return replace(self.trajectory, ending=ending)

    def compare_end(self) -> None:
        """Compares the last turn, once it has all the rewards that the actions of other seats bring it."""
        if self.replayed:
            number = len(self.replayed)
            where = f"turn {number} of {self.trajectory.agent}"
            compare_rewards(where, self.trajectory.turns[number - 1], self.replayed[-1])

    @property
    def _where(self) -> str:
        return f"turn {self.at + 1} of {self.trajectory.agent}"

    def _compare_shown(self, observation: Observation, turn: Turn) -> None:
        """Compares an observation with the record.

        The record has the system messages where a window opens; after a refusal it has the reason, and the observation
        again if the agent's context drops old ones.
        """
        recorded = list(turn.observed)
        if self.refusal is not None:
            self._compare_refusal(recorded[:1])
            message = self.replayed[-1].message
            answered = message is not None and bool(recorded) and recorded[0].role is Role.TOOL
            reasons = len(message.calls) if message is not None and answered else 1  # an answer to each of its calls
            if len(recorded) <= reasons:
                return
            now = list(observation.messages)
            recorded = recorded[reasons:]
        else:
            now = [*(observation.system if turn.parent < 0 else ()), *observation.messages]
        compare_shown(self._where, recorded, now)

    def _compare_refusal(self, recorded: list[Message]) -> None:
        """Compares the reason of a refusal; that of an action that could not be parsed depends on the model's format,
        and is not compared."""
        if not self.refusal:
            return
        sample = self.trajectory.turns[self.at - 1].sample
        cut = f" (cut off after {len(sample.tokens)} tokens)" if sample.stop is Stop.LENGTH else ""
        was = recorded[0].text if recorded else None
        if was != f"{self.refusal}{cut}":
            raise DiffersError(f"{self._where}: {difference('the refusal', was, f'{self.refusal}{cut}')}")


def _recorded_seat(
    asked: Sequence[Exchange], trajectory: Trajectory, ends: bool, called: Sequence[Trajectory]
) -> RecordedSeat:
    if called:
        raise NotReplayableError(f"{trajectory.agent} called other agents, which the agent of this run does not")
    return RecordedSeat(trajectory, ends)


SeatOf = Callable[[Trajectory, bool, Sequence[Trajectory]], RecordedSeat | AgentSeat]
SeatOfAsked = Callable[[Sequence[Exchange], Trajectory, bool, Sequence[Trajectory]], RecordedSeat | AgentSeat]
