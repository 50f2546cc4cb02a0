"""Prints the sampled tokens of an episode with log-probabilities, advantages and recorded streams, and the exact prompt
of a turn."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from sojourn.errors import RecordError
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.terminal.clean import clean, escaped, one_line
from sojourn.terminal.episode import EpisodeContext, TurnRecord, seats, turn_facts, turn_heading, turns_in_order
from sojourn.terminal.indented import Indented
from sojourn.terminal.numbers import number, signed

MAX_TOKENS = 400  # of a turn that are shown
MAX_PROMPT = 20_000  # characters of a prompt that are shown
STREAM_WIDTH = 9  # of the column of a stream with a short name, in characters
PROBABILITY_STYLES = (
    (0.9, "dim"),
    (0.5, ""),
    (0.1, "yellow"),
    (0.0, "bold red"),
)  # lowest probability, style
LEGEND = "probability: [dim]at least 0.9[/], at least 0.5, [yellow]at least 0.1[/], [bold red]less[/]"


def tokens(record: Record, context: EpisodeContext, coloured: bool) -> Group:
    """Returns the sampled tokens of every turn, as coloured text or as a table with one line per token."""
    several = len(record.episode.trajectories) > 1
    lines: list[RenderableType] = [Text.from_markup(LEGEND)] if coloured else []
    for played in turns_in_order(record):
        lines += [turn_heading(played, several), *(_coloured if coloured else _listed)(played, context)]
        lines += [Indented(Text(", ".join(turn_facts(played, context.version)), "dim italic")), Text()]
    return Group(*lines)


def prompt(record: Record, turn: int, seat: str, vocabulary: Vocabulary, limit: int | None = MAX_PROMPT) -> Text:
    """Returns the exact prompt of a turn (counted from 1) of a seat, decoded, with special tokens in reverse video."""
    trajectories = {one.name: one.trajectory for one in seats(record)}
    chosen = trajectories.get(seat) if seat else next(iter(trajectories.values()), None)
    if chosen is None:
        raise RecordError(f"--seat {seat}: this episode has the seats {', '.join(trajectories) or '(none)'}")
    if not 1 <= turn <= len(chosen.turns):
        raise RecordError(f"--prompt {turn}: the seat '{chosen.agent}' of this episode has {len(chosen.turns)} turns")
    ids = [int(token) for token in chosen.prompt(turn - 1)]
    text, length = Text(), 0
    for token, part in zip(ids, vocabulary.parts(ids), strict=True):
        if limit is not None and length > limit:
            text.append(" … clipped: --full shows all", "dim")
            break
        length += len(part)
        text.append(clean(part, None), "reverse" if token in vocabulary.special else "")
    return text.append(f"\n{len(ids)} tokens", "dim")


def _coloured(played: TurnRecord, context: EpisodeContext) -> Iterator[RenderableType]:
    """Yields the text coloured by probability, and once more by advantage if advantages differ within the turn."""
    advantages = _advantages(played)
    pieces, sample = _pieces(played, context), played.turn.sample
    text = Text()
    for piece, logprob in zip(pieces, sample.logprobs, strict=False):
        probability = math.exp(min(logprob, 0.0))
        text.append(_visible(piece), next(style for lowest, style in PROBABILITY_STYLES if probability >= lowest))
    yield _with_omitted(text, played, len(pieces))
    if len(advantages) and float(np.ptp(advantages)) > 1e-6:
        by_advantage = Text("advantage: ", "dim")
        for piece, advantage in zip(pieces, advantages, strict=False):
            by_advantage.append(
                _visible(piece), "not dim green" if advantage > 0 else "not dim red" if advantage < 0 else "dim"
            )
        yield by_advantage
    for name, values in _streams(played).items():
        shown = values[: len(pieces)]
        kept = shown[:1] if len(shown) and (shown == shown[0]).all() else shown  # one for all tokens
        yield Text(f"{name}: {' '.join(number(float(value)) for value in kept)}", "dim")


def _listed(played: TurnRecord, context: EpisodeContext) -> Iterator[RenderableType]:
    """Yields a line for each token: its position, id, log-probability, advantage, recorded streams and text."""
    advantages, sample, streams = _advantages(played), played.turn.sample, _streams(played)
    pieces, widths = _pieces(played, context), {name: max(STREAM_WIDTH, len(name)) for name in streams}
    titles = "".join(f"  {name:>{widths[name]}}" for name in streams)
    yield Text(f"     at      id  logprob  advantage{titles}  text")
    for at, (piece, token) in enumerate(zip(pieces, sample.tokens, strict=False)):
        advantage = signed(float(advantages[at])) if at < len(advantages) else "-"
        values = "".join(f"  {number(float(values[at])):>{widths[name]}}" for name, values in streams.items())
        facts = f"{at:>7} {int(token):>7} {float(sample.logprobs[at]):>8.3f} {advantage:>10}{values}"
        yield Text(f"{facts}  {_quoted(piece)}")
    yield _with_omitted(Text(), played, len(pieces))


def _streams(played: TurnRecord) -> dict[str, np.ndarray]:
    """Returns the recorded streams of a turn's tokens by name."""
    return {one_line(name, 40): arrays[played.turn_index] for name, arrays in played.seat.streams.items()}


def _advantages(played: TurnRecord) -> np.ndarray:
    return np.zeros(0) if played.seat.credit is None else played.seat.credit.tokens[played.turn_index]


def _pieces(played: TurnRecord, context: EpisodeContext) -> list[str]:
    """Returns the text of each token: bytes for a part of a character, the id if there is no vocabulary."""
    tokens = played.turn.sample.tokens.tolist()
    kept = tokens if context.limit is None else tokens[:MAX_TOKENS]
    known = context.vocabulary or Vocabulary(())
    parts = known.parts(kept)
    return [
        part or known.raw(token).decode("ascii", "backslashreplace") for part, token in zip(parts, kept, strict=True)
    ]


def _with_omitted(text: Text, played: TurnRecord, shown: int) -> Text:
    """Appends the number of tokens that are not shown, if there are any."""
    omitted = len(played.turn.sample.tokens) - shown
    return text.append(f" … {omitted:,} more tokens: --full shows all", "dim") if omitted else text


def _visible(piece: str) -> str:
    """Returns a token's text with line ends both marked and kept."""
    return clean(piece, 200).replace("\n", "⏎\n")


def _quoted(piece: str) -> str:
    return '"' + escaped(piece[:60]).replace("\n", "\\n") + '"' + ("…" if len(piece) > 60 else "")
