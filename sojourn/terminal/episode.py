"""One episode as a person reads it: what was shown, thought and said, what came of each turn, and the branches."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from sojourn.errors import RecordError
from sojourn.files import open_regular
from sojourn.record.blobs import Blobs
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.terminal.clean import LIMIT, clean, line
from sojourn.terminal.indented import Indented
from sojourn.terminal.numbers import number, signed, size
from sojourn.terminal.plain import plain
from sojourn.types import Credit, FloatArray, Message, Role, Score, Stop, ToolCall, Trajectory, Turn

STYLES = {Role.SYSTEM: "dim", Role.USER: "", Role.TOOL: "cyan", Role.ASSISTANT: "green"}


@dataclass(frozen=True)
class Seat:
    """One trajectory of a record with its judgements, where it has any."""

    trajectory: Trajectory
    score: Score | None = None
    credit: Credit | None = None
    streams: Mapping[str, Sequence[FloatArray]] = field(default_factory=dict)  # by name, one array per turn

    @property
    def name(self) -> str:
        return line(self.trajectory.agent, 40)


class Move(NamedTuple):
    """A turn in the order of play; `number` counts the seat's turns from 0."""

    seat: Seat
    number: int

    @property
    def turn(self) -> Turn:
        return self.seat.trajectory.turns[self.number]


@dataclass(frozen=True)
class Shown:
    """What is needed to show an episode beside its record. `limit` characters of a text are shown (None: all)."""

    folder: Path
    entry: EpisodeRow
    siblings: Sequence[EpisodeRow] = ()
    vocabulary: Vocabulary | None = None
    version: int | None = None  # of the weights that the step trained
    limit: int | None = LIMIT
    missing: Sequence[str] = ()


def seats(record: Record) -> list[Seat]:
    """The trajectories with their scores and credits, which only the trainable ones have."""
    found: list[Seat] = []
    judged = 0
    for trajectory in record.episode.trajectories:
        has = trajectory.trainable and record.episode.error is None
        score = record.scores[judged] if has and judged < len(record.scores) else None
        credit = record.credits[judged] if has and judged < len(record.credits) else None
        streams = {name: of[judged] for name, of in record.streams.items() if has and judged < len(of)}
        judged += has
        found.append(Seat(trajectory, score, credit, streams))
    return found


def moves(record: Record) -> list[Move]:
    """The turns of all seats in the order of play, as `play` numbered them; by rounds where it did not."""
    found = [Move(seat, at) for seat in seats(record) for at in range(len(seat.trajectory.turns))]
    return sorted(found, key=lambda move: move.turn.info.get("move", float(move.number)))


def transcript(record: Record, shown: Shown) -> Group:
    """The whole episode."""
    lines: list[RenderableType] = [_head(record, shown)]
    if record.episode.error is not None:
        lines.append(Text(f"failed: {clean(record.episode.error)}", "red"))
    several = len(record.episode.trajectories) > 1
    for move in moves(record):
        lines += [Text(), heading(move, several), *_turn(move, shown)]
    for seat in seats(record):
        lines += [Text(), *_end(seat, several, shown.limit)]
    lines += [Text(f"missing: {line(sentence, 500)}", "red") for sentence in shown.missing]
    return Group(*lines)


def as_json(record: Record, entry: EpisodeRow) -> str:
    """The full record, tokens included, and where it stands."""
    return json.dumps({"entry": plain(entry), **plain(record)})


def heading(move: Move, several: bool) -> Rule:
    parent = move.turn.parent
    where = (
        "" if parent == move.number - 1 else ", a new context" if parent < 0 else f", branches off turn {parent + 1}"
    )
    seat = f"{move.seat.name}, " if several else ""
    return Rule(Text(f"{seat}turn {move.number + 1}{where}", "bold"), align="left", style="dim", characters="─")


def _head(record: Record, shown: Shown) -> Text:
    episode, entry = record.episode, shown.entry
    task = episode.task
    told = Text(line(episode.id), "bold")
    told.append(f"\n{line(', '.join((task.env, *task.tags)))}, seed {task.seed}, {line(task.split)}", "not bold")
    told.append(f"\ntask {task.id} {clean(json.dumps(dict(task.data), ensure_ascii=False), 400)}", "not bold dim")
    told.append(f"\naddress {line(entry.stage)}/{entry.step}/{entry.place}/{_place(shown)}", "not bold dim")
    told.append(f", played in {number(episode.seconds)} s", "not bold dim")
    others = [sibling.reward for sibling in shown.siblings if sibling.id != entry.id]
    if others:
        rewards = " ".join("-" if reward is None else number(reward) for reward in others)
        told.append(f"\nthe others of its group earned {clean(rewards, 400)}", "not bold dim")
    return told


def _place(shown: Shown) -> int:
    """Which of its group's episodes it is."""
    return next((at for at, sibling in enumerate(shown.siblings) if sibling.id == shown.entry.id), 0)


def _turn(move: Move, shown: Shown) -> Iterator[RenderableType]:
    for message in move.turn.observed:
        yield from said(message, shown)
    if move.turn.message is not None:
        yield from said(move.turn.message, shown)
    else:
        yield from _unread(move.turn, shown)
    yield Indented(Text(", ".join(facts(move, shown.version)), "dim italic"))


def _unread(turn: Turn, shown: Shown) -> Iterator[RenderableType]:
    """What was sampled but could not be read as a message."""
    yield Text("assistant (could not be read)", "bold red")
    if shown.vocabulary is not None:
        text = clean(shown.vocabulary.text(turn.sample.tokens), shown.limit)
        yield Indented(Text(text, "red"))


def said(message: Message, shown: Shown) -> Iterator[RenderableType]:
    """A message under its role."""
    answers = f" answers {line(message.answers, 60)}" if message.answers is not None else ""
    style = STYLES[message.role]
    yield Text(f"{message.role}{answers}", f"bold {style}".strip())
    body: list[Text] = []
    if message.thought:
        body.append(Text(f"(thinks) {clean(message.thought, shown.limit)}", "dim italic"))
    if message.text:
        body.append(Text(clean(message.text, shown.limit), style))
    body += [Text(f"calls {_call(call, shown.limit)}", f"bold {style}".strip()) for call in message.calls]
    body += [Text(f"[image {_image(shown.folder, digest)}]", "magenta") for digest in message.images]
    for text in body:
        yield Indented(text)


def _call(call: ToolCall, limit: int | None) -> str:
    arguments = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items())
    return clean(f"{call.name}({arguments})", limit)


def _image(folder: Path, digest: str) -> str:
    """Its digest, its size in pixels where it is a PNG, and in bytes."""
    try:
        path = Blobs(folder / "blobs").path(digest)
        data = path.stat().st_size
        with open_regular(path) as file:
            head = file.read(24)
    except (RecordError, OSError):
        return f"{line(digest, 64)}, which is not in blobs/"
    png = head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) == 24
    pixels = "{}x{}, ".format(*struct.unpack(">II", head[16:24])) if png else ""
    return f"{digest[:16]}, {pixels}{size(data)}"


def facts(move: Move, version: int | None) -> Iterator[str]:
    """What is known of a turn: its reward and advantage, its tokens, and how old their weights were."""
    turn, sample = move.turn, move.turn.sample
    if move.seat.score is not None:
        yield f"reward {number(float(move.seat.score.turns[move.number]))}"
    if move.seat.credit is not None and len(tokens := move.seat.credit.tokens[move.number]):
        spread = (
            "" if float(tokens.max() - tokens.min()) < 1e-6 else f" ({signed(tokens.min())} to {signed(tokens.max())})"
        )
        yield f"advantage {signed(float(tokens.mean()))}{spread}"
    yield f"{len(sample.tokens)} tokens" + (" (cut off)" if sample.stop is Stop.LENGTH else "")
    if len(sample.tokens) and sample.versions.newest >= 0:
        yield f"logprob {number(float(sample.logprobs.sum()))}"
        yield f"weights {'-'.join(str(v) for v in dict.fromkeys(sample.versions))}" + _lag(
            sample.versions.oldest, version
        )
    yield from _info(turn.info)


def _lag(oldest: int, version: int | None) -> str:
    return "" if version is None else f" (lag {max(version - 1 - oldest, 0)})"


def _info(info: Mapping[str, float]) -> Iterator[str]:
    for name, value in info.items():
        if value and name != "move":
            yield f"{line(name, 40)} {number(value)}"


def _end(seat: Seat, several: bool, limit: int | None) -> Iterator[RenderableType]:
    """How it ended, what it earned and of which parts, what its judge wrote, and its branches."""
    trajectory = seat.trajectory
    success = "success" if trajectory.success else "no success"
    told = Text(f"{seat.name}: " if several else "", "bold").append(f"{trajectory.ending}, {success}")
    if seat.score is not None:
        parts = ", ".join(f"{line(name, 40)} {number(value)}" for name, value in seat.score.parts.items())
        told.append(f", reward {number(seat.score.total)}").append(f" ({parts})" if parts else "")
    if not trajectory.trainable:
        told.append(", not trained", "dim")
    yield told
    for name, said_of_it in seat.score.words.items() if seat.score is not None else ():
        yield Text(f"{line(name, 40)} says", "dim")
        yield Indented(Text(clean(said_of_it, limit)))
    if any(turn.parent != at - 1 for at, turn in enumerate(trajectory.turns)):
        yield Text("branches", "dim")
        yield from (Text(told) for told in tree(trajectory))


def tree(trajectory: Trajectory) -> Iterator[str]:
    """The turns as a tree of lines, each a run of turns without a branch."""
    children: dict[int, list[int]] = {}
    for at, turn in enumerate(trajectory.turns):
        children.setdefault(turn.parent, []).append(at)
    waiting = [(at, "") for at in reversed(children.get(-1, ()))]
    while waiting:
        at, indent = waiting.pop()
        chain = [at]
        while len(next_ := children.get(chain[-1], [])) == 1:
            chain.append(next_[0])
        ends = f"turns {chain[0] + 1} to {chain[-1] + 1}" if _even(chain) and len(chain) > 2 else (
            "turn " + ", ".join(str(number_ + 1) for number_ in chain))  # fmt: skip
        yield f"{indent}{'└ ' if indent else ''}{ends}"
        waiting += [(child, indent[:40] + "  ") for child in reversed(next_)]


def _even(chain: Sequence[int]) -> bool:
    return chain == list(range(chain[0], chain[-1] + 1))
