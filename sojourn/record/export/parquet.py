"""Parquet: a row for every turn with all its tokens, for data frames and for training again.

Tokens, logprobs and advantages are lists of numbers; values that may have any text (a world's messages, its state) are
JSON, in columns whose names end in `_json`. An episode without trajectories, such as one whose world failed, and a
trajectory without turns have a row of their own, with nulls; that of a trajectory has the reward and info that the seat
was given. Advantages and scores are those of the training step.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sojourn.codec import to_json, to_plain
from sojourn.errors import MissingExtraError, RecordError
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.export import exact
from sojourn.record.export.conversations import MALFORMED, Conversation, conversations
from sojourn.record.export.foreign import of_parquet
from sojourn.record.export.selection import PlayedEpisode, SelectedEpisodes
from sojourn.types import Group, Trajectory

UNIT = "row"
SUFFIX = ".parquet"  # of the names of its files
ROWS = 2000  # of a row group, which is in memory at once
OWN_COLUMNS = frozenset({"said_json", "task_json", "logprobs"})  # columns that no program but this one writes
LATER_COLUMNS = ("origin", "reused_in", "notes_json", "branch_json")  # which an older Sojourn did not write
JSON = ("said", "shown", "recalled", "tools", "info", "state")  # of a turn


def _arrow(module: str = "pyarrow") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"Parquet needs the package 'pyarrow' ({error}): pip install 'sojourn[export]'"
        ) from error


def schema() -> Any:
    pa = _arrow()
    text, whole, real, flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    columns = {
        "run": text, "stage": text, "step": whole, "place": whole, "slot": whole, "origin": text,
        "reused_in": pa.list_(whole), "episode": text, "env": text,
        "task": text, "split": text, "task_json": text, "error_json": text, "seconds": real, "seat": whole,
        "agent": text, "ending": text, "trainable": flag, "success": flag, "model_name": text,
        "turn": whole, "parent": whole,
        "context": pa.list_(whole), "tokens": pa.list_(whole), "logprobs": pa.list_(pa.float32()),
        "oldest_version": whole, "newest_version": whole, "stop": text, "temperature": real,
        "allowed": pa.list_(pa.list_(whole)), "reward": real, "images": pa.list_(text),
        **{f"{name}_json": text for name in JSON}, "notes_json": text,
        "score": pa.float32(), "parts_json": text, "advantages": pa.list_(pa.float32()), "branch_json": text,
    }  # fmt: skip
    return pa.schema(list(columns.items()))


def write(path: Path, selected: SelectedEpisodes) -> int:
    pa, pq = _arrow(), _arrow("pyarrow.parquet")
    about = {
        "run": selected.name,
        "model": selected.model,
        "config": selected.config_digest,
        "versions": selected.versions,
    }
    full_schema = schema().with_metadata({"sojourn": json.dumps(about)})
    count, rows = 0, []
    with pq.ParquetWriter(path, full_schema, compression="zstd") as writer:
        for played in selected:
            rows += _rows(selected.name, played)
            if len(rows) >= ROWS:
                writer.write_table(pa.Table.from_pylist(rows, full_schema))
                count, rows = count + len(rows), []
        writer.write_table(pa.Table.from_pylist(rows, full_schema))
    return count + len(rows)


def _rows(run: str, played: PlayedEpisode) -> Iterator[dict[str, Any]]:
    entry, episode = played.entry, played.record.episode
    facts = _facts(run, entry, played)
    if not episode.trajectories:
        yield facts
    judged = iter(range(len(played.record.scores)))
    for seat, trajectory in enumerate(episode.trajectories):
        number = next(judged, None) if trajectory.trainable and episode.error is None else None
        seat_columns = {
            **facts, "seat": seat, "agent": _plain(trajectory.agent), "ending": str(trajectory.ending),
            "trainable": trajectory.trainable, "success": trajectory.success, "model_name": _plain(trajectory.model),
        }  # fmt: skip
        if not trajectory.turns:
            info = _json(dict(trajectory.unacted_info))
            yield {**seat_columns, "reward": trajectory.unacted_reward, "info_json": info}
        for turn in range(len(trajectory.turns)):
            yield {**seat_columns, **_turn(trajectory, turn), **_judged(played, number, turn)}


def _facts(run: str, entry: EpisodeRow, played: PlayedEpisode) -> dict[str, Any]:
    episode = played.record.episode
    return {
        "run": _plain(run), **exact.place_json(entry), **exact.origin_json(played),
        "episode": _plain(episode.id), "env": _plain(episode.task.env),
        "task": episode.task.id, "split": _plain(episode.task.split), "task_json": _json(to_plain(episode.task)),
        "error_json": _json(episode.error), "seconds": float(episode.seconds),
        "branch_json": None if episode.branch is None else _json(to_plain(episode.branch)),
    }  # fmt: skip


def _turn(trajectory: Trajectory, number: int) -> dict[str, Any]:
    data = exact.turn_to_plain(number, trajectory.turns[number])
    oldest, newest = data.pop("versions")
    texts = {f"{name}_json": _json(data.pop(name)) for name in JSON}
    texts |= {"notes_json": _json(data.pop("notes"))} if "notes" in data else {}
    return {"turn": data.pop("number"), **data, "oldest_version": oldest, "newest_version": newest, **texts}


def _judged(played: PlayedEpisode, number: int | None, turn: int) -> dict[str, Any]:
    if number is None:
        return {}
    score, credits = played.record.scores[number], played.record.credits
    advantages = credits[number].tokens[turn].tolist() if credits else None
    return {"score": float(score.turns[turn]), "parts_json": _json(dict(score.parts)), "advantages": advantages}


def _json(value: Any) -> str:
    return to_json(value).decode()


def _plain(text: str) -> str:
    """Escapes what UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def read(path: Path, *, render: bool = False) -> Iterator[Group | Conversation]:
    """Yields the groups of all rows that `sojourn export` wrote, as conversations if `render` is set; each row of
    another program's table is a conversation."""
    columns = _columns(path)
    if not OWN_COLUMNS & set(columns):
        yield from of_parquet(path, columns, _read_rows(path))
        return
    if missing := [name for name in schema().names if name not in (*columns, *LATER_COLUMNS)]:
        raise RecordError(f"{path} has no column '{missing[0]}': expected all that `sojourn export` wrote")
    groups = exact.Groups()
    for row in _read_rows(path):
        try:
            groups.add(_piece(row))
        except MALFORMED as error:
            raise RecordError(f"{path}: {str(error)[:120]}: expected a file that `sojourn export` wrote") from error
    yield from (conversations(groups, str(path)) if render else groups)


def _columns(path: Path) -> list[str]:
    with _opened(path) as file:
        return file.schema_arrow.names


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            yield from batch.to_pylist()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    pa, pq = _arrow(), _arrow("pyarrow.parquet")
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"{path} cannot be read as Parquet ({str(error)[:120]}): restore it from a copy") from error


def _piece(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row in the form that `exact.Groups` reads."""
    names = ("run", "stage", "step", "place", "slot", "episode", "seconds", "seat", "agent", "ending", "trainable")
    piece = {name: row[name] for name in names}
    piece |= {"task": json.loads(row["task_json"]), "error": json.loads(row["error_json"]), "turns": []}
    piece |= {"model": row["model_name"]} if row["model_name"] is not None else {}
    piece |= {"branch": json.loads(row["branch_json"])} if row.get("branch_json") else {}
    if row["turn"] is None and row["reward"] is not None:
        piece |= {"unacted_reward": row["reward"], "unacted_info": json.loads(row["info_json"])}
    if row["turn"] is not None:
        texts = {name: json.loads(row[f"{name}_json"]) for name in JSON}
        versions = [row["oldest_version"], row["newest_version"]]
        texts |= {"notes": json.loads(row["notes_json"])} if row.get("notes_json") else {}
        piece["turns"] = [{**row, **texts, "number": row["turn"], "versions": versions}]
    return piece
