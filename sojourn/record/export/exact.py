"""Turns as JSON with every token, and groups put together again from them: what an exact export holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sojourn.errors import RecordError
from sojourn.record.episodes.codec import message_json, message_of, task_json, task_of, tool_json, tool_of
from sojourn.record.episodes.episode_row import Entry
from sojourn.types import Ending, Episode, Group, Sample, Stop, Trajectory, Turn, Versions

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def place_json(entry: Entry) -> dict[str, Any]:
    """Where in its run an episode was recorded: what tells groups apart."""
    return {"stage": entry.stage, "step": entry.step, "place": entry.place, "slot": entry.slot}


def episode_json(entry: Entry, episode: Episode, seat: int, turns: Sequence[int]) -> dict[str, Any]:
    """Some turns of a seat, exactly, with what is needed to put groups together again."""
    trajectory = episode.trajectories[seat]
    return {
        **place_json(entry),
        "episode": episode.id,
        "task": task_json(episode.task),
        "seconds": episode.seconds,
        "seat": seat,
        "agent": trajectory.agent,
        "ending": trajectory.ending,
        "trainable": trajectory.trainable,
        "turns": [turn_json(number, trajectory.turns[number]) for number in turns],
    }


def turn_json(number: int, turn: Turn) -> dict[str, Any]:
    sample = turn.sample
    allowed = sample.allowed
    return {
        "number": number,
        "parent": turn.parent,
        "context": turn.context.tolist(),
        "tokens": sample.tokens.tolist(),
        "logprobs": sample.logprobs.astype(float).tolist(),
        "versions": list(sample.versions),
        "stop": sample.stop,
        "temperature": sample.temperature,
        "allowed": None if allowed is None else [None if ids is None else ids.tolist() for ids in allowed],
        "said": None if turn.message is None else message_json(turn.message),
        "reward": turn.reward,
        "info": dict(turn.info),
        "images": list(turn.images),
        "state": turn.state,
        "shown": [message_json(message) for message in turn.observed],
        "recalled": [message_json(message) for message in turn.context_messages],
        "tools": [tool_json(tool) for tool in turn.tools],
    }


def turn_of(data: Mapping[str, Any]) -> Turn:
    allowed = data["allowed"]
    sample = Sample(
        tokens=np.asarray(data["tokens"], dtype=np.int64),
        logprobs=np.asarray(data["logprobs"], dtype=np.float32),
        versions=Versions(*data["versions"]),
        stop=Stop(data["stop"]),
        temperature=data["temperature"],
        allowed=None if allowed is None else tuple(_ids(ids) for ids in allowed),
    )
    return Turn(
        parent=data["parent"],
        context=np.asarray(data["context"], dtype=np.int64),
        sample=sample,
        message=None if data["said"] is None else message_of(data["said"]),
        reward=data["reward"],
        info={name: value for name, value in data["info"].items() if value is not None},
        images=tuple(data["images"]),
        state=data["state"],
        observed=tuple(map(message_of, data["shown"])),
        context_messages=tuple(map(message_of, data["recalled"])),
        tools=tuple(map(tool_of, data["tools"])),
    )


def _ids(ids: Any) -> Any:
    return None if ids is None else np.asarray(ids, dtype=np.int64)


@dataclass
class _Seat:
    agent: str
    ending: Ending
    trainable: bool
    turns: dict[int, Turn] = field(default_factory=dict)

    def trajectory(self, episode: str) -> Trajectory:
        """Turns are numbered anew where some were taken out of the file, but none without those that go on from it."""
        numbers = {old: new for new, old in enumerate(sorted(self.turns))} | {-1: -1}
        turns = []
        for number in sorted(self.turns):
            turn = self.turns[number]
            if turn.parent not in numbers:
                raise ValueError(f"turn {number} of episode {episode} follows turn {turn.parent}, which is not there")
            turns.append(replace(turn, parent=numbers[turn.parent]))
        return Trajectory(self.agent, tuple(turns), self.ending, self.trainable)


@dataclass
class _Episode:
    facts: Episode
    seats: dict[int, _Seat] = field(default_factory=dict)


@dataclass
class Groups:
    """Groups put together again from pieces of their episodes, in the order in which they are first named."""

    slots: dict[tuple[Any, ...], int] = field(default_factory=dict)
    episodes: dict[tuple[Any, ...], dict[str, _Episode]] = field(default_factory=dict)

    def add(self, data: Mapping[str, Any]) -> None:
        """A piece as `episode_json` makes it; `KeyError`, `TypeError` or `ValueError` where it is none."""
        key = (data["stage"], data["step"], data["place"])
        self.slots.setdefault(key, int(data["slot"]))
        name = data["episode"]
        if name not in (held := self.episodes.setdefault(key, {})):
            task = task_of(data["task"])
            held[name] = _Episode(Episode(name, task, (), data.get("error"), data["seconds"]))
        if (number := data["seat"]) is not None:
            seats = held[name].seats
            seat = seats.setdefault(number, _Seat(data["agent"], Ending(data["ending"]), bool(data["trainable"])))
            seat.turns |= {turn["number"]: turn_of(turn) for turn in data["turns"]}

    def __iter__(self) -> Iterator[Group]:
        for key, held in self.episodes.items():
            episodes = tuple(_whole(episode) for episode in held.values())
            yield Group(self.slots[key], episodes[0].task, episodes)


def _whole(episode: _Episode) -> Episode:
    facts = episode.facts
    try:
        seats = tuple(episode.seats[number].trajectory(facts.id) for number in sorted(episode.seats))
    except ValueError as error:
        raise RecordError(f"{error}: export it whole") from error
    return Episode(facts.id, facts.task, seats, facts.error, facts.seconds)
