"""Writes turns as JSON with every token, and puts groups together again from them: the exact part of an export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sojourn import codec
from sojourn.codec import from_plain, to_plain
from sojourn.errors import RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.labels import is_numbered, label_of, number_in_group
from sojourn.record.export.selection import PlayedEpisode
from sojourn.types import Branch, Ending, Episode, Group, IntArray, Task, Trajectory, Turn


def place_json(entry: EpisodeRow) -> dict[str, Any]:
    """Returns where in its run an episode was recorded, which identifies its group."""
    return {"stage": entry.stage, "step": entry.step, "place": entry.place, "slot": entry.slot}


def origin_json(played: PlayedEpisode) -> dict[str, Any]:
    """Returns where the group of an episode came from, and the steps that trained it again."""
    return {"origin": played.entry.origin, "reused_in": list(played.reused_in)}


def episode_json(entry: EpisodeRow, episode: Episode, seat: int, turns: Sequence[int]) -> dict[str, Any]:
    """Returns some turns of a seat with all tokens, and what is needed to put groups together again."""
    trajectory = episode.trajectories[seat]
    return {
        **place_json(entry),
        "episode": episode.id,
        "task": to_plain(episode.task),
        "seconds": episode.seconds,
        "seat": seat,
        "agent": trajectory.agent,
        "ending": trajectory.ending,
        "trainable": trajectory.trainable,
        **({"model": trajectory.model} if trajectory.model != Trajectory.model else {}),
        **({"branch": to_plain(episode.branch)} if episode.branch is not None else {}),
        "turns": [turn_to_plain(number, trajectory.turns[number]) for number in turns],
    }


def turn_to_plain(number: int, turn: Turn) -> dict[str, Any]:
    sample = turn.sample
    allowed = sample.allowed
    return {
        "number": number,
        "parent": turn.parent,
        "context": turn.context.tolist(),
        "tokens": sample.tokens.tolist(),
        "logprobs": sample.logprobs.astype(float).tolist(),
        **codec.turn_to_plain(
            turn, None if allowed is None else [None if ids is None else ids.tolist() for ids in allowed]
        ),
    }


class _PlainTurn(codec.PlainTurn):
    number: int
    context: list[int]
    tokens: list[int]
    logprobs: list[float | None]
    allowed: list[list[int] | None] | None

    def turn(self) -> Turn:
        return replace(
            self.with_arrays(
                np.array(self.context, dtype=np.int64),
                np.array(self.tokens, dtype=np.int64),
                np.array(self.logprobs, dtype=np.float32),
                None if self.allowed is None else tuple(map(_ids, self.allowed)),
            ),
            info={name: value for name, value in self.info.items() if value is not None},
        )


def _ids(ids: list[int] | None) -> IntArray | None:
    return None if ids is None else np.array(ids, dtype=np.int64)


class Piece(msgspec.Struct):
    """Some turns of a seat of an episode, or, where `seat` is None, an episode without any. `run` is the name of its
    run."""

    stage: str
    step: int
    place: int
    slot: int
    episode: str
    task: Task
    seconds: float
    seat: int | None
    agent: str | None
    ending: Ending | None
    trainable: bool | None
    turns: list[_PlainTurn]
    error: str | None = None
    unacted_reward: float = 0.0
    unacted_info: dict[str, float] = {}
    model: str = Trajectory.model
    branch: Branch | None = None
    run: str = ""


@dataclass
class _Seat:
    agent: str
    ending: Ending
    trainable: bool
    unacted_reward: float
    unacted_info: Mapping[str, float]
    model: str
    turns: dict[int, Turn] = field(default_factory=dict)

    def add(self, turns: Iterable[tuple[int, Turn]], episode: str) -> None:
        """Adds turns by their numbers; one that is there already is in several windows."""
        for number, turn in turns:
            if not _same(self.turns.setdefault(number, turn), turn):
                raise ValueError(
                    f"turn {number} of episode {episode} has other tokens before: give each run a file of its own"
                )

    def began(self, count: int) -> list[int]:
        """Returns the numbers of its turns that are among the first `count`."""
        return [number for number in self.turns if number < count]

    def trajectory(self, episode: str) -> Trajectory:
        """Returns the turns as a trajectory, renumbered if some are missing; no turn may lack its parent."""
        numbers = {old: new for new, old in enumerate(sorted(self.turns))} | {-1: -1}
        turns = []
        for number in sorted(self.turns):
            turn = self.turns[number]
            if turn.parent not in numbers:
                raise ValueError(f"turn {number} of episode {episode} follows turn {turn.parent}, which is not there")
            turns.append(replace(turn, parent=numbers[turn.parent]))
        further = self.unacted_reward, self.unacted_info, self.model
        return Trajectory(self.agent, tuple(turns), self.ending, self.trainable, *further)


def _same(one: Turn, other: Turn) -> bool:
    """Returns whether two turns have the same tokens."""
    pairs = (one.context, other.context), (one.sample.tokens, other.sample.tokens)
    return one.parent == other.parent and all(np.array_equal(*pair) for pair in pairs)


@dataclass
class _Episode:
    facts: Episode
    seats: dict[int, _Seat] = field(default_factory=dict)

    def share(self, origin: _Episode) -> None:
        """Gives the turns with which a branch began the same samples as in the episode that it left."""
        for number, count in enumerate(self.facts.branch.turns if self.facts.branch is not None else ()):
            if number not in self.seats or number not in origin.seats:
                continue
            own, theirs = self.seats[number].turns, origin.seats[number].turns
            for turn in self.seats[number].began(count):
                if turn in theirs and _same(own[turn], theirs[turn]):
                    own[turn] = replace(own[turn], sample=theirs[turn].sample)

    @property
    def branch(self) -> Branch | None:
        """Returns where it began, for the seats and turns that are there."""
        if (branch := self.facts.branch) is None:
            return None
        counts = dict(enumerate(branch.turns))
        return replace(
            branch, turns=tuple(len(self.seats[number].began(counts.get(number, 0))) for number in sorted(self.seats))
        )


class _Place(NamedTuple):
    """Says where a group, or the part of one that a filter left, was recorded."""

    run: str
    stage: str
    step: int
    place: int


@dataclass
class Groups:
    """Puts groups together from pieces of their episodes, in the order in which they first appear. A group that a
    filter parted, so that it was recorded in two places, is whole again, as it was played."""

    slots: dict[_Place, int] = field(default_factory=dict)
    episodes: dict[_Place, dict[str, _Episode]] = field(default_factory=dict)

    def add(self, data: Mapping[str, Any]) -> None:
        """Adds a piece as `episode_json` makes it; raises `KeyError`, `TypeError` or `ValueError` if it is none."""
        piece = from_plain(data, Piece)
        key = _Place(piece.run, piece.stage, piece.step, piece.place)
        self.slots.setdefault(key, piece.slot)
        episodes = self.episodes.setdefault(key, {})
        if piece.episode not in episodes:
            facts = Episode(piece.episode, piece.task, (), piece.error, piece.seconds, branch=piece.branch)
            episodes[piece.episode] = _Episode(facts)
        if piece.seat is not None:
            seats = episodes[piece.episode].seats
            further = piece.unacted_reward, piece.unacted_info, piece.model
            new = _Seat(piece.agent or "", Ending(piece.ending), bool(piece.trainable), *further)
            seat = seats.setdefault(piece.seat, new)
            seat.add(((turn.number, turn.turn()) for turn in piece.turns), piece.episode)

    def __iter__(self) -> Iterator[Group]:
        for places in self._played().values():
            by_id = {id: episode for place in places for id, episode in self.episodes[place].items()}
            ids = sorted(by_id, key=number_in_group) if len(places) > 1 else list(by_id)
            for id in ids:
                branch = by_id[id].facts.branch
                if branch is not None and branch.of in by_id:
                    by_id[id].share(by_id[branch.of])
            episodes = tuple(_whole(by_id[id]) for id in ids)
            yield Group(self.slots[places[0]], episodes[0].task, episodes)

    def _played(self) -> dict[tuple[Any, ...], list[_Place]]:
        """Returns the places of each group as it was played."""
        found: dict[tuple[Any, ...], list[_Place]] = {}
        for place, episodes in self.episodes.items():
            labels = {label_of(id) for id in episodes}
            whole = len(labels) > 1 or not all(map(is_numbered, episodes))  # of several plays, or not played by a run
            found.setdefault((*place[:3], self.slots[place], place if whole else labels.pop()), []).append(place)
        return found


def _whole(episode: _Episode) -> Episode:
    facts = episode.facts
    try:
        seats = tuple(episode.seats[number].trajectory(facts.id) for number in sorted(episode.seats))
    except ValueError as error:
        raise RecordError(f"{error}: export it whole") from error
    return replace(facts, trajectories=seats, branch=episode.branch)
