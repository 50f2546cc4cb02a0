"""The pairs of a group that a loss of preferences learns from: what was preferred beside what was not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.terminal.episode import TurnRecord, turns_in_order
from sojourn.view.message_text import action_summary, message_text

STREAM = "pairs"  # the recorded number of each token's pair: k of the preferred side of pair k, -k of the other
MAX_CHARACTERS = 400  # of an observation or an action that are shown


class PairedTurn(NamedTuple):
    """A turn of one side of a pair; `anchor` is that of the turn on its episode's page."""

    anchor: str
    number: int
    observed: str
    action: str


class Side(NamedTuple):
    """One side of a pair: turns of one seat of an episode. `name` is the heading of the episode's column."""

    episode: EpisodeRow
    name: str
    reward: float | None
    turns: Sequence[PairedTurn]


class Pair(NamedTuple):
    """A pair of trajectories or turns. A side is None where its episode cannot be read or was recorded elsewhere."""

    chosen: Side | None
    rejected: Side | None

    @property
    def rows(self) -> Sequence[tuple[PairedTurn | None, ...]]:
        """Returns the turns of both sides beside each other, in order."""
        sides = (side.turns if side is not None else () for side in (self.chosen, self.rejected))
        return list(zip_longest(*sides))


def pairs(entries: Sequence[EpisodeRow], records: Sequence[Record | str], names: Sequence[str]) -> list[Pair] | None:
    """Returns the pairs of a group in their order, or None where its episodes were recorded without any."""
    sides = defaultdict[int, list[tuple[EpisodeRow, str, str, TurnRecord]]](list)
    known = False
    for entry, record, name in zip(entries, records, names, strict=True):
        if isinstance(record, str) or STREAM not in record.streams:
            continue
        known, played = True, turns_in_order(record)
        for turn, anchor in zip(played, anchors(record, played), strict=True):
            if number := _number(turn):
                sides[number].append((entry, name, anchor, turn))
    found = {number: _side(turns) for number, turns in sides.items()}
    numbers = sorted({abs(number) for number in found})
    return [Pair(found.get(number), found.get(-number)) for number in numbers] if known else None


def anchors(record: Record | str, turns: Sequence[TurnRecord]) -> list[str]:
    """Returns the anchors of turns on their episode's page (see `TurnView.anchor`)."""
    if isinstance(record, str):
        return []
    seats = {id(trajectory): at for at, trajectory in enumerate(record.episode.trajectories)}
    return [f"{seats[id(played.seat.trajectory)]}.{played.turn_index}" for played in turns]


def _number(played: TurnRecord) -> int:
    """Returns the number of a turn's pair, with the sign of its side; 0 where it is in none."""
    if (values := played.seat.streams.get(STREAM)) is None or not len(values[played.turn_index]):
        return 0
    return int(values[played.turn_index][0])


def _side(turns: Sequence[tuple[EpisodeRow, str, str, TurnRecord]]) -> Side:
    entry, name, _, first = turns[0]
    return Side(
        entry,
        name,
        None if first.seat.score is None else first.seat.score.total,
        [
            PairedTurn(
                anchor,
                played.turn_index,
                _clipped("\n".join(map(message_text, played.turn.observed))),
                action_summary(played.turn, MAX_CHARACTERS),
            )
            for _, _, anchor, played in turns
        ],
    )


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
