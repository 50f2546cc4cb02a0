"""Writes and reads the full records of the episodes of one step: JSON and token arrays in one .npz, never pickled.

Every episode is a member of its own, so that it is read without the others and damage to one leaves the rest. A member
is a line of JSON, which names the arrays, followed by their bytes. Token ids are stored in the smallest integer type
that holds them, and come back as int64.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sojourn.codec import VERSION, PlainTurn, from_plain, to_json, to_plain, turn_to_plain, unacted_to_plain
from sojourn.errors import RecordError
from sojourn.files import open_regular
from sojourn.models.asking import Exchange
from sojourn.record.atomic import write_file, writing
from sojourn.types import (
    Branch,
    Credit,
    Ending,
    Episode,
    FloatArray,
    Score,
    Task,
    Trajectory,
    Turn,
)

_NO_TOKENS, _NO_LOGPROBS = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
UNREADABLE = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError)


@dataclass(frozen=True)
class Record:
    """An episode with a score and a credit for each trainable trajectory, or none if it failed or none were given.

    `streams` has values of the sampled tokens by name, such as "entropy": for each trainable trajectory one array (A,)
    per turn. `asked` is what models were asked about the episode.
    """

    episode: Episode
    scores: tuple[Score, ...] = ()
    credits: tuple[Credit, ...] = ()
    streams: Mapping[str, tuple[tuple[FloatArray, ...], ...]] = field(default_factory=dict)
    asked: tuple[Exchange, ...] = ()


def write(
    path: Path, records: Sequence[Record], index: Sequence[Mapping[str, Any]], reused: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Writes the records, and the rows from which a lost index can be rebuilt, those of reused groups included."""
    members = {str(number): np.frombuffer(_encode(record), np.uint8) for number, record in enumerate(records)}
    _write_members(path, members, index, reused)


def rewrite(path: Path, gone: Collection[int], not_reused: Collection[tuple[int, int]]) -> None:
    """Writes a file anew without the episodes of these numbers, and without the rows of reused groups of these steps
    and places; a file in which nothing is left is removed. What cannot be read any more is left out, too. The file
    keeps its time, by which a lost index is put in order."""
    if not path.exists():
        return
    with StepFile(path) as file:
        index = [row for row in file.index() if row["number"] not in gone]
        reused = [row for row in file.reused() if (row["of_step"], row["of_place"]) not in not_reused]
        members = {str(row["number"]): file.member(row["number"]) for row in index}
    before = path.stat()
    if not index and not reused:
        with writing(path):
            path.unlink()
        return
    _write_members(path, {name: data for name, data in members.items() if data is not None}, index, reused)
    with writing(path):
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _write_members(
    path: Path,
    members: Mapping[str, NDArray[Any]],
    index: Sequence[Mapping[str, Any]],
    reused: Sequence[Mapping[str, Any]],
) -> None:
    lists = {"index": to_json(index), **({"reused": to_json(reused)} if reused else {})}
    arrays = {**{name: np.frombuffer(data, np.uint8) for name, data in lists.items()}, **members}

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    write_file(path, save)


class StepFile:
    """An open file of records, whose methods raise RecordError if it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._raw = open_regular(path)  # opened here, as np.load leaves a damaged file open
        except FileNotFoundError as error:
            raise RecordError(f"{path} is missing: restore the tokens folder of the run from a copy") from error
        except OSError as error:
            raise _damaged(path, error) from error
        try:
            self._file = np.load(self._raw, allow_pickle=False)
        except UNREADABLE as error:
            self._raw.close()
            raise _damaged(path, error) from error
        if not isinstance(self._file, np.lib.npyio.NpzFile):
            self._raw.close()
            raise _damaged(path, ValueError("one array, not a file of several"))

    def record(self, number: int) -> Record:
        try:
            return _decode(self._file[str(number)].tobytes())
        except UNREADABLE as error:
            raise _damaged(self.path, error, f"episode {number} of ") from error

    def member(self, number: int) -> NDArray[Any] | None:
        """Returns the bytes of an episode's record; None where they cannot be read."""
        try:
            return self._file[str(number)]
        except UNREADABLE:
            return None

    def without_tokens(self, number: int) -> Episode:
        """Returns the episode without its tokens, several times as fast as the whole record."""
        try:
            with self._file.zip.open(f"{number}.npy") as member:  # type: ignore[union-attr]
                np.lib.format.read_magic(member)
                np.lib.format.read_array_header_1_0(member)
                return _read(member.readline()).episode(_without_arrays)
        except UNREADABLE as error:
            raise _damaged(self.path, error, f"episode {number} of ") from error

    def index(self) -> list[dict[str, Any]]:
        try:
            return json.loads(self._file["index"].tobytes())
        except UNREADABLE as error:
            raise _damaged(self.path, error, "the index of ") from error

    def reused(self) -> list[dict[str, Any]]:
        """Returns the rows of the groups that the step trained again; none where an older Sojourn wrote the file."""
        try:
            return json.loads(self._file["reused"].tobytes()) if "reused" in self._file.files else []
        except UNREADABLE as error:
            raise _damaged(self.path, error, "the reused groups of ") from error

    def __enter__(self) -> StepFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self._raw.close()


def _damaged(path: Path, error: BaseException, part: str = "") -> RecordError:
    return RecordError(f"{part}{path} cannot be read ({error}): the file is damaged, restore it from a copy")


def _encode(record: Record) -> bytes:
    episode = record.episode
    turns = [turn for trajectory in episode.trajectories for turn in trajectory.turns]
    allowed = [ids for turn in turns for ids in (turn.sample.allowed or ())]
    _require_aligned(record)
    arrays = {
        "context": _in_smallest_type([turn.context for turn in turns]),
        "sampled": _in_smallest_type([turn.sample.tokens for turn in turns]),
        "logprobs": _join([turn.sample.logprobs for turn in turns]),
        "scores": _join([score.turns for score in record.scores]),
        "credits": _join([part for credit in record.credits for part in credit.tokens]),
        "targets": _join([part for credit in record.credits for part in credit.targets or ()]),
        **{f"stream {n}": _join([part for turns in values for part in turns]) for n, values in record.streams.items()},
        "allowed": _in_smallest_type([ids for ids in allowed if ids is not None]),
        "allowed_sizes": np.array([-1 if ids is None else len(ids) for ids in allowed], dtype=np.int32),
    }
    arrays = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in arrays.items() if len(array)}
    kept = [[name, array.dtype.str, len(array)] for name, array in arrays.items()]
    parts = (array.tobytes() for array in arrays.values())
    return b"".join((to_json(_record_to_plain(record) | {"arrays": kept}), b"\n", *parts))


def _require_aligned(record: Record) -> None:
    """Raises RecordError for scores, credits or streams that do not fit their trajectories, as reading would fail."""
    judged = [t for t in record.episode.trajectories if t.trainable] if record.episode.error is None else []
    streams = [(f"arrays of the stream '{name}'", values) for name, values in record.streams.items()]
    for name, values in (("scores", record.scores), ("credits", record.credits), *streams):
        if values and len(values) != len(judged):
            raise RecordError(
                f"episode {record.episode.id} has {len(judged)} trainable trajectories but {len(values)} {name}: "
                "give one for each"
            )
    for trajectory, score in zip(judged, record.scores, strict=False):
        _require_shape(record, "a score", (len(trajectory.turns),), score.turns.shape)
    for trajectory, credit in zip(judged, record.credits, strict=False):
        sampled = tuple(len(turn.sample.tokens) for turn in trajectory.turns)
        _require_shape(record, "a credit", sampled, tuple(len(part) for part in credit.tokens))
        if credit.targets is not None:
            _require_shape(record, "the targets of a critic", sampled, tuple(len(part) for part in credit.targets))
    for name, values in streams:
        for trajectory, numbers in zip(judged, values, strict=False):
            sampled = tuple(len(turn.sample.tokens) for turn in trajectory.turns)
            _require_shape(record, name, sampled, tuple(len(part) for part in numbers))


def _require_shape(record: Record, what: str, expected: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if expected != shape:
        raise RecordError(
            f"episode {record.episode.id} has {what} of shape {shape} where its turns need {expected}: "
            "give one reward for every turn, and one advantage and one number of a stream for every sampled token"
        )


def _decode(member: bytes) -> Record:
    line, _, rest = member.partition(b"\n")
    data, arrays, offset = _read(line), dict[str, NDArray[Any]](), 0
    for name, dtype, count in data.arrays:
        arrays[name] = np.frombuffer(rest, dtype, count, offset)
        offset += arrays[name].nbytes
    readers = {
        name: _Reader(arrays.get(name, np.zeros(0, dtype=np.float32)))
        for name in ("logprobs", "scores", "credits", "targets")
    }
    readers |= {
        name: _Reader(arrays.get(name, np.zeros(0)).astype(np.int64)) for name in ("context", "sampled", "allowed")
    }
    sizes = iter(arrays.get("allowed_sizes", np.zeros(0, dtype=np.int32)).tolist())
    episode = data.episode(lambda turn: _turn(turn, readers, sizes))
    judged = [t for t in episode.trajectories if t.trainable]
    words_of_scores, outcomes = data.words or [{} for _ in data.scores], data.outcomes or [None for _ in data.scores]
    scored = zip(judged, data.scores, words_of_scores, outcomes, strict=False)
    scores = tuple(Score(readers["scores"](len(t.turns)), parts, words, outcome) for t, parts, words, outcome in scored)
    targeted = zip(judged, data.targeted or [False for _ in judged], strict=False) if data.credited else ()
    credits = tuple(
        Credit(by_turn(readers["credits"], t), by_turn(readers["targets"], t) if has_targets else None)
        for t, has_targets in targeted
    )
    streams = {}
    for name in data.streams:
        reader = _Reader(arrays.get(f"stream {name}", np.zeros(0, dtype=np.float32)))
        streams[name] = tuple(by_turn(reader, t) for t in judged)
    return Record(episode, scores, credits, streams, tuple(data.asked))


def by_turn(reader: _Reader, trajectory: Trajectory) -> tuple[FloatArray, ...]:
    """Reads one array (A,) per turn."""
    return tuple(reader(len(turn.sample.tokens)) for turn in trajectory.turns)


class _PlainTurn(PlainTurn):
    """A turn whose arrays are pieces of those of its episode; `context` and `sampled` are their lengths."""

    context: int
    sampled: int
    allowed: bool


class _PlainTrajectory(msgspec.Struct):
    agent: str
    ending: Ending
    trainable: bool
    turns: list[_PlainTurn]
    unacted_reward: float = 0.0
    unacted_info: dict[str, float] = {}
    model: str = Trajectory.model

    def __post_init__(self) -> None:
        if wrong := [turn.parent for number, turn in enumerate(self.turns) if not -1 <= turn.parent < number]:
            raise ValueError(f"a turn has the parent {wrong[0]}: expected an earlier turn, or -1")


class _PlainRecord(msgspec.Struct):
    """The line of JSON of a record; `arrays` has the name, type and length of each array that follows it."""

    id: str
    task: Task
    error: str | None
    seconds: float
    trajectories: list[_PlainTrajectory]
    scores: list[dict[str, Any]]
    credited: bool
    arrays: list[tuple[str, str, int]]
    words: list[dict[str, str]] = []
    outcomes: list[float | None] = []  # of scores that have one besides their total
    targeted: list[bool] = []  # whether each credit has targets of a critic
    streams: list[str] = []
    version: int = 1
    close_error: str | None = None
    traceback: str | None = None
    branch: Branch | None = None
    asked: list[Exchange] = []

    def episode(self, turn: Callable[[_PlainTurn], Turn]) -> Episode:
        trajectories = (
            Trajectory(
                t.agent, tuple(map(turn, t.turns)), t.ending, t.trainable, t.unacted_reward, t.unacted_info, t.model
            )
            for t in self.trajectories
        )
        failures = self.error, self.seconds, self.close_error, self.traceback
        return Episode(self.id, self.task, tuple(trajectories), *failures, self.branch)


def _read(line: bytes) -> _PlainRecord:
    data = json.loads(line)
    if data.get("version", 1) > VERSION:
        raise ValueError(f"its layout is version {data['version']}, this Sojourn reads up to {VERSION}: update Sojourn")
    return from_plain(data, _PlainRecord)


class _Reader:
    """Returns the pieces of an array one after another."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array, self.offset = array, 0

    def __call__(self, count: int) -> NDArray[Any]:
        piece = self.array[self.offset : self.offset + count]
        if len(piece) != count:
            raise ValueError(f"{len(piece)} numbers where {count} were expected")
        self.offset += count
        return piece.copy()


def _turn(data: _PlainTurn, readers: Mapping[str, _Reader], sizes: Iterator[int]) -> Turn:
    allowed = None
    if data.allowed:
        counts = [next(sizes) for _ in range(data.sampled)]
        allowed = tuple(None if count < 0 else readers["allowed"](count) for count in counts)
    context, sampled = readers["context"](data.context), readers["sampled"](data.sampled)
    return data.with_arrays(context, sampled, readers["logprobs"](data.sampled), allowed)


def _without_arrays(data: _PlainTurn) -> Turn:
    return data.with_arrays(_NO_TOKENS, _NO_TOKENS, _NO_LOGPROBS, None)


def _record_to_plain(record: Record) -> dict[str, Any]:
    episode = record.episode
    return {
        "version": VERSION,
        "id": episode.id,
        "task": to_plain(episode.task),
        "error": episode.error,
        "seconds": episode.seconds,
        "trajectories": [
            {
                "agent": t.agent,
                "ending": t.ending,
                "trainable": t.trainable,
                "turns": [_turn_to_plain(turn) for turn in t.turns],
                **unacted_to_plain(t),
                **({"model": t.model} if t.model != Trajectory.model else {}),
            }
            for t in episode.trajectories
        ],
        "scores": [dict(score.parts) for score in record.scores],
        "words": [dict(score.words) for score in record.scores] if any(s.words for s in record.scores) else [],
        "outcomes": _unless_all([score.outcome for score in record.scores], None),
        "credited": bool(record.credits),
        "targeted": _unless_all([credit.targets is not None for credit in record.credits], False),
        "streams": list(record.streams),
        **({"close_error": episode.close_error} if episode.close_error else {}),
        **({"traceback": episode.traceback} if episode.traceback else {}),
        **({"branch": to_plain(episode.branch)} if episode.branch else {}),
        **({"asked": to_plain(record.asked)} if record.asked else {}),
    }


def _unless_all(values: list[Any], default: Any) -> list[Any]:
    """Returns the values, or an empty list where all are the default."""
    return values if any(value is not default for value in values) else []


def _turn_to_plain(turn: Turn) -> dict[str, Any]:
    sizes = {"parent": turn.parent, "context": len(turn.context), "sampled": len(turn.sample.tokens)}
    data = sizes | turn_to_plain(turn, turn.sample.allowed is not None)
    return {key: value for key, value in data.items() if value or key not in ("recalled", "tools")}


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.float32)


def _in_smallest_type(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    joined = _join(arrays)
    if not len(joined):
        return joined
    low, high = int(joined.min()), int(joined.max())
    return joined.astype(np.promote_types(np.min_scalar_type(low), np.min_scalar_type(high)))
