"""The sampled tokens of an episode with their log-probabilities and advantages, and the exact prompt of a turn."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from sojourn.errors import RecordError
from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.terminal.clean import clean, escaped
from sojourn.terminal.episode import Move, Shown, facts, heading, moves
from sojourn.terminal.indented import Indented
from sojourn.terminal.numbers import signed

TOKENS = 400  # of a turn, that are shown
PROMPT = 20_000  # characters of a prompt
SURE = ((0.9, "dim"), (0.5, ""), (0.1, "yellow"), (0.0, "bold red"))  # from which probability on, how it looks
NAMES = "probability: [dim]0.9 and more[/], 0.5 and more, [yellow]0.1 and more[/], [bold red]less[/]"


def tokens(record: Record, shown: Shown, coloured: bool) -> Group:
    """Every turn's sampled tokens: as coloured text, or as lines of numbers."""
    several = len(record.episode.trajectories) > 1
    lines: list[RenderableType] = [Text.from_markup(NAMES)] if coloured else []
    for move in moves(record):
        lines += [heading(move, several), *(_coloured if coloured else _listed)(move, shown)]
        lines += [Indented(Text(", ".join(facts(move, shown.version)), "dim italic")), Text()]
    return Group(*lines)


def prompt(record: Record, turn: int, seat: str, vocabulary: Vocabulary, limit: int | None = PROMPT) -> Text:
    """The exact tokens that the model saw before a turn (from 1) of a seat, decoded; control tokens stand out."""
    trajectories = {trajectory.agent: trajectory for trajectory in record.episode.trajectories}
    chosen = trajectories.get(seat) if seat else next(iter(trajectories.values()), None)
    if chosen is None:
        raise RecordError(f"no seat '{seat}' in this episode: it has {', '.join(trajectories) or 'none'}")
    if not 1 <= turn <= len(chosen.turns):
        raise RecordError(f"no turn {turn} of '{chosen.agent}' in this episode: it has {len(chosen.turns)}")
    found = [int(token) for token in chosen.prompt(turn - 1)]
    told, told_length = Text(), 0
    for token, part in zip(found, vocabulary.parts(found), strict=True):
        if limit is not None and told_length > limit:
            told.append(" … clipped: --full shows all", "dim")
            break
        told_length += len(part)
        told.append(clean(part, None), "reverse" if token in vocabulary.special else "")
    return told.append(f"\n{len(found)} tokens", "dim")


def _coloured(move: Move, shown: Shown) -> Iterator[RenderableType]:
    """The text with how likely each token was, and where advantages differ within the turn, once more with them."""
    advantages = _advantages(move)
    pieces, sample = _pieces(move, shown), move.turn.sample
    told = Text()
    for piece, logprob in zip(pieces, sample.logprobs, strict=False):
        told.append(_visible(piece), next(style for least, style in SURE if math.exp(min(logprob, 0.0)) >= least))
    yield _left(told, move, len(pieces))
    if len(advantages) and float(np.ptp(advantages)) > 1e-6:
        again = Text("advantage: ", "dim")
        for piece, advantage in zip(pieces, advantages, strict=False):
            again.append(
                _visible(piece), "not dim green" if advantage > 0 else "not dim red" if advantage < 0 else "dim"
            )
        yield again


def _listed(move: Move, shown: Shown) -> Iterator[RenderableType]:
    """A line for each token: its place, id, log-probability, advantage and text."""
    advantages, sample = _advantages(move), move.turn.sample
    pieces = _pieces(move, shown)
    yield Text("  place      id  logprob  advantage  text")
    for at, (piece, token) in enumerate(zip(pieces, sample.tokens, strict=False)):
        advantage = signed(float(advantages[at])) if at < len(advantages) else "-"
        yield Text(f"{at:>7} {int(token):>7} {float(sample.logprobs[at]):>8.3f} {advantage:>10}  {_quoted(piece)}")
    yield _left(Text(), move, len(pieces))


def _advantages(move: Move) -> np.ndarray:
    return np.zeros(0) if move.seat.credit is None else move.seat.credit.tokens[move.number]


def _pieces(move: Move, shown: Shown) -> list[str]:
    """The text of each token; its bytes, where it is a part of a character; its id, where there is no vocabulary."""
    found = move.turn.sample.tokens.tolist()
    kept = found if shown.limit is None else found[:TOKENS]
    words = shown.vocabulary or Vocabulary(())
    parts = words.parts(kept)
    return [
        part or words.raw(token).decode("ascii", "backslashreplace") for part, token in zip(parts, kept, strict=True)
    ]


def _left(told: Text, move: Move, shown: int) -> Text:
    left = len(move.turn.sample.tokens) - shown
    return told.append(f" … {left:,} more tokens: --full shows all", "dim") if left else told


def _visible(piece: str) -> str:
    """With the ends of lines seen and obeyed."""
    return clean(piece, 200).replace("\n", "⏎\n")


def _quoted(piece: str) -> str:
    return '"' + escaped(piece[:60]).replace("\n", "\\n") + '"' + ("…" if len(piece) > 60 else "")
