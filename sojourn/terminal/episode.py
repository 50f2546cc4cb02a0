"""Prints an episode: the observations, messages and facts of each turn, how each seat ended, and its branches."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from sojourn.call_text import call_text
from sojourn.errors import RecordError
from sojourn.files import open_regular
from sojourn.record.blobs import Blobs
from sojourn.record.episodes.address import Address
from sojourn.record.episodes.episode_row import EpisodeRow
from sojourn.record.episodes.origins import RecordedOrigin
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.search_cost import PLANNED
from sojourn.terminal.asked import asked_text
from sojourn.terminal.clean import LIMIT, clean, one_line, shell_word
from sojourn.terminal.considered import considered_text
from sojourn.terminal.indented import Indented
from sojourn.terminal.jsonable import jsonable
from sojourn.terminal.notes import notes_text
from sojourn.terminal.numbers import number, signed, size
from sojourn.types import Credit, FloatArray, Message, Role, Score, Stop, Task, Trajectory, Turn

MAX_STEPS = 12  # that trained an episode again and are listed
STYLES = {Role.SYSTEM: "dim", Role.USER: "", Role.TOOL: "cyan", Role.ASSISTANT: "green"}


@dataclass(frozen=True)
class SeatRecord:
    """One trajectory of a record with its score, credit and streams, if it has any."""

    trajectory: Trajectory
    score: Score | None = None
    credit: Credit | None = None
    streams: Mapping[str, Sequence[FloatArray]] = field(default_factory=dict)  # by name, one array per turn
    call: int = 0  # which trajectory of its agent it is, from 1, where the episode has several; else 0

    @property
    def name(self) -> str:
        return one_line(self.trajectory.agent, 40) + (f" {self.call}" if self.call else "")


class TurnRecord(NamedTuple):
    """A turn of a seat; `turn_index` counts the turns of that seat from 0."""

    seat: SeatRecord
    turn_index: int

    @property
    def turn(self) -> Turn:
        return self.seat.trajectory.turns[self.turn_index]


@dataclass(frozen=True)
class EpisodeContext:
    """Holds what is printed with an episode beside its record. Texts are cut after `limit` characters (None: never)."""

    folder: Path
    entry: EpisodeRow
    siblings: Sequence[EpisodeRow] = ()
    vocabulary: Vocabulary | None = None
    version: int | None = None  # of the weights after the episode's training step
    limit: int | None = LIMIT
    missing: Sequence[str] = ()
    origin: RecordedOrigin | None = None


def seats(record: Record) -> list[SeatRecord]:
    """Returns all trajectories. The trainable ones of an episode that did not fail have scores and credits."""
    result: list[SeatRecord] = []
    judged = 0
    counts = Counter(trajectory.agent for trajectory in record.episode.trajectories)
    calls: Counter[str] = Counter()
    for trajectory in record.episode.trajectories:
        calls[trajectory.agent] += 1
        is_judged = trajectory.trainable and record.episode.error is None
        score = record.scores[judged] if is_judged and judged < len(record.scores) else None
        credit = record.credits[judged] if is_judged and judged < len(record.credits) else None
        streams = {
            name: arrays[judged] for name, arrays in record.streams.items() if is_judged and judged < len(arrays)
        }
        judged += is_judged
        call = calls[trajectory.agent] if counts[trajectory.agent] > 1 else 0
        result.append(SeatRecord(trajectory, score, credit, streams, call))
    return result


def turns_in_order(record: Record) -> list[TurnRecord]:
    """Returns the turns of all seats in the order of play (`info["move"]`), or by turn number if it was not
    recorded."""
    turns = [TurnRecord(seat, at) for seat in seats(record) for at in range(len(seat.trajectory.turns))]
    return sorted(turns, key=lambda played: played.turn.info.get("move", float(played.turn_index)))


def transcript(record: Record, context: EpisodeContext) -> Group:
    """Returns the whole episode, ready to be printed."""
    lines: list[RenderableType] = [_head(record, context)]
    if record.episode.close_error is not None:
        failure = clean(record.episode.close_error)
        lines.append(Text(f"This episode was complete before its world failed to close: {failure}", "yellow"))
    if record.episode.error is not None:
        lines.append(Text(f"This episode failed and was not trained on: {clean(record.episode.error)}", "red"))
    elif record.episode.traceback is not None and record.episode.close_error is None:
        lines.append(Text("An action broke the world, so the episode counts as lost.", "yellow"))
    if record.episode.traceback is not None:
        lines += [Indented(Text(clean(record.episode.traceback, None), "red"))]  # its end says most
        lines.append(Text(f"to play its task again: {play_again(context.folder, record.episode.task)}", "dim"))
    several = len(record.episode.trajectories) > 1
    for played in turns_in_order(record):
        lines += [Text(), turn_heading(played, several), *_turn(played, context)]
    for seat in seats(record):
        lines += [Text(), *_end(seat, several, context.limit)]
    if record.asked:
        lines += [Text(), *asked_text(record.asked, record.episode.id, context.limit)]
    lines += [Text(f"missing: {one_line(sentence, 500)}", "red") for sentence in context.missing]
    return Group(*lines)


def play_again(folder: Path, task: Task) -> str:
    """Returns the command that plays the task of an episode again, in the terminal."""
    return f"sojourn play {shell_word(folder)} --task {task.id}"


def as_json(record: Record, entry: EpisodeRow) -> str:
    """Returns the full record as JSON, tokens included, with the episode's row of the index as `entry`."""
    return json.dumps({"entry": jsonable(entry), **jsonable(record)})


def turn_heading(played: TurnRecord, several: bool) -> Rule:
    """Returns the line above a turn: its number, its seat if there are `several`, and what starts with it."""
    parent = played.turn.parent
    where = (
        ""
        if parent == played.turn_index - 1
        else ", a new context"
        if parent < 0
        else f", branches off turn {parent + 1}"
    )
    seat = f"{played.seat.name}, " if several else ""
    return Rule(Text(f"{seat}turn {played.turn_index + 1}{where}", "bold"), align="left", style="dim", characters="─")


def _head(record: Record, context: EpisodeContext) -> Text:
    episode, entry = record.episode, context.entry
    task = episode.task
    head = Text(one_line(episode.id), "bold")
    head.append(
        f"\n{one_line(', '.join((task.env, *task.tags)))}, seed {task.seed}, {one_line(task.split)}", "not bold"
    )
    head.append(f"\ntask {task.id} {clean(json.dumps(dict(task.data), ensure_ascii=False), 400)}", "not bold dim")
    if (branch := episode.branch) is not None:
        reason = f": {one_line(branch.reason, 200)}" if branch.reason else ""
        head.append(f"\na branch of {one_line(branch.of)} after {sum(branch.turns)} turns{reason}", "not bold dim")
    address = Address(entry.stage, entry.step, entry.place, _index_in_group(context))
    head.append(f"\naddress {one_line(str(address))}", "not bold dim")
    head.append(f", played in {number(episode.seconds)} s", "not bold dim")
    head.append(
        "".join(f"\n{sentence}" for sentence in _origin(context.origin)) if context.origin else "", "not bold dim"
    )
    others = [sibling.reward for sibling in context.siblings if sibling.id != entry.id]
    if others:
        rewards = " ".join("-" if reward is None else number(reward) for reward in others)
        head.append(f"\nrewards of the other episodes of its group: {clean(rewards, 400)}", "not bold dim")
    return head


def _origin(origin: RecordedOrigin) -> Iterator[str]:
    """Yields where the episode's group came from, where its policy did not play it for the step, and where it was
    recorded before or trained again."""
    if origin.origin not in ("policy", None):
        yield f"origin {one_line(origin.origin, 40)}"
    if origin.first is not None:
        first = origin.first
        yield f"first recorded in {one_line(first.stage, 40)}, step {first.step}: {one_line(first.id)}"
    by_origin = {use.origin: [at.step for at in origin.uses if at.origin == use.origin] for use in origin.uses}
    for name, steps in by_origin.items():
        shown = ", ".join(map(str, steps[:MAX_STEPS])) + (", ..." if len(steps) > MAX_STEPS else "")
        yield f"trained again in step {shown} ({one_line(name, 40)})"


def _index_in_group(context: EpisodeContext) -> int:
    """Returns the place of the episode in its group."""
    return next((at for at, sibling in enumerate(context.siblings) if sibling.id == context.entry.id), 0)


def _turn(played: TurnRecord, context: EpisodeContext) -> Iterator[RenderableType]:
    for message in played.turn.observed:
        yield from render_message(message, context)
    if played.turn.message is not None:
        yield from render_message(played.turn.message, context)
    else:
        yield from _unparsed(played.turn, context)
    yield Indented(Text(", ".join(turn_facts(played, context.version)), "dim italic"))
    if (notes := notes_text(played.turn.notes, context.limit)) is not None:
        yield Indented(notes)
    if played.turn.considered:
        several = len({one.agent for one in played.turn.considered}) > 1
        yield Indented(Text(f"tried in copies before it:\n{considered_text(played.turn, several)}", "dim"))


def _unparsed(turn: Turn, context: EpisodeContext) -> Iterator[RenderableType]:
    """Yields the text of a turn that could not be parsed as a message."""
    yield Text("assistant (could not be parsed)", "bold red")
    if context.vocabulary is not None:
        text = clean(context.vocabulary.text(turn.sample.tokens), context.limit)
        yield Indented(Text(text, "red"))


def render_message(message: Message, context: EpisodeContext) -> Iterator[RenderableType]:
    """Yields the role of a message, then its reasoning, text, tool calls and images."""
    answers = f", result of the call {one_line(message.answers, 60)}" if message.answers is not None else ""
    style = STYLES[message.role]
    yield Text(f"{message.role}{answers}", f"bold {style}".strip())
    body: list[Text] = []
    if message.thought:
        body.append(Text(f"(reasoning) {clean(message.thought, context.limit)}", "dim italic"))
    if message.text:
        body.append(Text(clean(message.text, context.limit), style))
    body += [Text(f"calls {clean(call_text(call), context.limit)}", f"bold {style}".strip()) for call in message.calls]
    body += [Text(f"[image {_image(context.folder, digest)}]", "magenta") for digest in message.images]
    for text in body:
        yield Indented(text)


def _image(folder: Path, digest: str) -> str:
    """Returns the digest of an image, its size in pixels if it is a PNG, and its size in bytes."""
    try:
        path = Blobs(folder / "blobs").path(digest)
        data = path.stat().st_size
        with open_regular(path) as file:
            head = file.read(24)
    except (RecordError, OSError):
        return f"{one_line(digest, 64)}, which is not in blobs/"
    png = head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) == 24
    pixels = "{}x{}, ".format(*struct.unpack(">II", head[16:24])) if png else ""
    return f"{digest[:16]}, {pixels}{size(data)}"


def turn_facts(played: TurnRecord, version: int | None) -> Iterator[str]:
    """Yields what is recorded of a turn: reward, advantage, number of tokens, log-probability, and version of the
    weights."""
    turn, sample = played.turn, played.turn.sample
    if played.seat.score is not None:
        yield f"reward {number(float(played.seat.score.turns[played.turn_index]))}"
    if played.seat.credit is not None and len(tokens := played.seat.credit.tokens[played.turn_index]):
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
        if value and name == PLANNED:
            yield "found by the search"
        elif value and name != "move":
            yield f"{one_line(name, 40)} {number(value)}"


def _end(seat: SeatRecord, several: bool, limit: int | None) -> Iterator[RenderableType]:
    """Yields how a seat ended, its reward and the parts of it, the text of its judge, and its branches."""
    trajectory = seat.trajectory
    success = "success" if trajectory.success else "no success"
    summary = Text(f"{seat.name}: " if several else "", "bold").append(f"{trajectory.ending}, {success}")
    if seat.score is not None:
        parts = ", ".join(f"{one_line(name, 40)} {number(value)}" for name, value in seat.score.parts.items())
        summary.append(f", reward {number(seat.score.total)}").append(f" ({parts})" if parts else "")
        if seat.score.result != seat.score.total:
            summary.append(f", of the outcome alone {number(seat.score.result)}")
    if trajectory.model != Trajectory.model:
        summary.append(f", played by the model {one_line(trajectory.model, 40)}", "dim")
    if not trajectory.trainable:
        summary.append(", not trained on", "dim")
    yield summary
    for name, text in seat.score.words.items() if seat.score is not None else ():
        yield Text(f"{one_line(name, 40)}: the judge's text", "dim")
        yield Indented(Text(clean(text, limit)))
    if any(turn.parent != at - 1 for at, turn in enumerate(trajectory.turns)):
        yield Text("branches", "dim")
        yield from map(Text, branch_tree(trajectory))


def branch_tree(trajectory: Trajectory) -> Iterator[str]:
    """Yields the tree of turns as indented lines; each line is a chain of turns without a branch."""
    children: dict[int, list[int]] = {}
    for at, turn in enumerate(trajectory.turns):
        children.setdefault(turn.parent, []).append(at)
    waiting = [(at, "") for at in reversed(children.get(-1, ()))]
    while waiting:
        at, indent = waiting.pop()
        chain = [at]
        while len(next_ := children.get(chain[-1], [])) == 1:
            chain.append(next_[0])
        ends = f"turns {chain[0] + 1} to {chain[-1] + 1}" if _consecutive(chain) and len(chain) > 2 else (
            "turn " + ", ".join(str(number_ + 1) for number_ in chain))  # fmt: skip
        yield f"{indent}{'└ ' if indent else ''}{ends}"
        waiting += [(child, indent[:40] + "  ") for child in reversed(next_)]


def _consecutive(chain: Sequence[int]) -> bool:
    return chain == list(range(chain[0], chain[-1] + 1))
