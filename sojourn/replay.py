"""Replays recorded episodes: the same task and the same actions, to see whether the world answers in the same way.

The actions are taken from the record and played through the loop of a rollout, so that limits, refusals and several
seats work as they did. Turn by turn it compares which seat acts, what it observes (images by their digests), the state
if the world has keys for it, refusals, rewards, success, and how the episode ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from sojourn.checks.env.play import difference, short
from sojourn.config.registry import build
from sojourn.config.toml import leaves
from sojourn.errors import ActionError, ConfigError, RecordError, SojournError
from sojourn.event_loop import contained
from sojourn.protocols import EnvFamily
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.export.selection import paths_in_world
from sojourn.record.run import RunFolder
from sojourn.rollout.limits import Limits, call_env
from sojourn.rollout.play import play
from sojourn.rollout.world import open_world
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


class DiffersError(SojournError):
    """The first difference between a play and its record."""


@asynccontextmanager
async def world_of_run(run: RunFolder) -> AsyncIterator[EnvFamily]:
    """Opens the world of a run, as its config describes it."""
    table = run.config.get("env")
    if not isinstance(table, Mapping):
        raise RecordError(f"{run.path / 'config.toml'} has no table [env]: there is no world to play in")
    if any(path.rpartition(".")[2] == "user" and value == "llm" for path, value in leaves(table, "")):
        raise ConfigError(
            f"{run.path} cannot be replayed: a language model played its users, who answer differently now"
        )
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
    limits = _limits(run)
    async with world_of_run(run) as family:
        for row, record in episodes:
            if isinstance(record, RecordError):
                yield Replayed(row.id, Verdict.NOTHING, str(record))
            else:
                yield await _replayed(family, record.episode, limits)


def _limits(run: RunFolder) -> Limits:
    rollout = run.config.get("rollout")
    limits = rollout.get("limits") if isinstance(rollout, dict) else None
    stall_s = limits.get("stall_s") if isinstance(limits, dict) else None
    return Limits(stall_s=stall_s) if isinstance(stall_s, (int, float)) and stall_s > 0 else Limits()


async def _replayed(family: EnvFamily, episode: Episode, limits: Limits) -> Replayed:
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
            await contained(_play_again(family, episode, seats, limits))
        except DiffersError as error:
            return Replayed(episode.id, Verdict.DIFFERS, f"{where}{error}", turns)
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


async def _play_again(family: EnvFamily, episode: Episode, trajectories: list[Trajectory], limits: Limits) -> None:
    """Replays one play; raises `DiffersError` at the first difference."""
    recorded = sum(len(trajectory.turns) for trajectory in trajectories)
    seats = {t.agent: RecordedSeat(t, ends=episode.trajectories[0].ending == Ending.MALFORMED) for t in trajectories}
    timeline = Timeline()
    env = family.make(episode.task)
    try:
        played = await play(env, seats, replace(limits, turns=recorded, seconds=0.0), timeline, episode.task.env)
    finally:
        await call_env(env.close, limits, timeline)
    for seat in seats.values():
        seat.compare_rewards()
    ended, was = played[0].ending is not Ending.TURNS, not trajectories[0].ending.truncated
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
        self.compare_rewards()
        if self.at == len(self.trajectory.turns):
            raise DiffersError(f"{self._where} is asked to act, but its record ends there")
        turn = self.trajectory.turns[self.at]
        self._compare_shown(observation, turn)
        if None not in (turn.state, state) and turn.state != state:
            raise DiffersError(f"{self._where}: {difference('the state', turn.state, state)}")
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

    def compare_rewards(self) -> None:
        """Compares the last turn, once it has all the rewards that the actions of other seats bring it."""
        if not self.replayed:
            return
        was, now = self.trajectory.turns[len(self.replayed) - 1], self.replayed[-1]
        where = f"turn {len(self.replayed)} of {self.trajectory.agent}"
        if was.reward != now.reward:
            raise DiffersError(f"{where}: the reward is {now.reward:g}, but it was {was.reward:g}")
        for name in ("success", "malformed"):
            if was.info.get(name) != now.info.get(name):
                raise DiffersError(f"{where}: {name} is {_flag(now, name)}, but it was {_flag(was, name)}")

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
        for was, new in zip(recorded, now, strict=False):
            if was != new:
                raise DiffersError(f"{self._where}: {_message_difference(was, new)}")
        if len(recorded) != len(now):
            odd = (now if len(now) > len(recorded) else recorded)[min(len(now), len(recorded)) :][0]
            verb = "shows too" if len(now) > len(recorded) else "does not show"
            raise DiffersError(f"{self._where}: the world {verb} {short(odd)}")

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


def _flag(turn: Turn, name: str) -> str:
    return f"{turn.info[name]:g}" if name in turn.info else "not said"


def _message_difference(was: Message, now: Message) -> str:
    if was.text != now.text:
        return difference("what is shown", was.text, now.text)
    for name in ("images", "role", "thought", "calls", "answers"):
        if getattr(was, name) != getattr(now, name):
            return difference(f"{name} of what is shown", getattr(was, name), getattr(now, name))
    raise AssertionError("unreachable: messages that differ do so in a field")
