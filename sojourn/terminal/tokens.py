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
from sojourn.terminal.episode import EpisodeContext, TurnRecord, turn_facts, turn_heading, turns_in_order
from sojourn.terminal.indented import Indented
from sojourn.terminal.numbers import signed

MAX_TOKENS = 400  # of a turn, that are shown
MAX_PROMPT = 20_000  # characters of a prompt
PROBABILITY_STYLES = (
    (0.9, "dim"),
    (0.5, ""),
    (0.1, "yellow"),
    (0.0, "bold red"),
)  # from which probability on, how it looks
LEGEND = "probability: [dim]0.9 and more[/], 0.5 and more, [yellow]0.1 and more[/], [bold red]less[/]"


def tokens(record: Record, shown: EpisodeContext, coloured: bool) -> Group:
    """Every turn's sampled tokens: as coloured text, or as lines of numbers."""
    several = len(record.episode.trajectories) > 1
    lines: list[RenderableType] = [Text.from_markup(LEGEND)] if coloured else []
    for played in turns_in_order(record):
        lines += [turn_heading(played, several), *(_coloured if coloured else _listed)(played, shown)]
        lines += [Indented(Text(", ".join(turn_facts(played, shown.version)), "dim italic")), Text()]
    return Group(*lines)


def prompt(record: Record, turn: int, seat: str, vocabulary: Vocabulary, limit: int | None = MAX_PROMPT) -> Text:
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


def _coloured(played: TurnRecord, shown: EpisodeContext) -> Iterator[RenderableType]:
    """The text with how likely each token was, and where advantages differ within the turn, once more with them."""
    advantages = _advantages(played)
    pieces, sample = _pieces(played, shown), played.turn.sample
    told = Text()
    for piece, logprob in zip(pieces, sample.logprobs, strict=False):
        told.append(
            _visible(piece), next(style for least, style in PROBABILITY_STYLES if math.exp(min(logprob, 0.0)) >= least)
        )
    yield _left(told, played, len(pieces))
    if len(advantages) and float(np.ptp(advantages)) > 1e-6:
        again = Text("advantage: ", "dim")
        for piece, advantage in zip(pieces, advantages, strict=False):
            again.append(
                _visible(piece), "not dim green" if advantage > 0 else "not dim red" if advantage < 0 else "dim"
            )
        yield again


def _listed(played: TurnRecord, shown: EpisodeContext) -> Iterator[RenderableType]:
    """A line for each token: its place, id, log-probability, advantage and text."""
    advantages, sample = _advantages(played), played.turn.sample
    pieces = _pieces(played, shown)
    yield Text("  place      id  logprob  advantage  text")
    for at, (piece, token) in enumerate(zip(pieces, sample.tokens, strict=False)):
        advantage = signed(float(advantages[at])) if at < len(advantages) else "-"
        yield Text(f"{at:>7} {int(token):>7} {float(sample.logprobs[at]):>8.3f} {advantage:>10}  {_quoted(piece)}")
    yield _left(Text(), played, len(pieces))


def _advantages(played: TurnRecord) -> np.ndarray:
    return np.zeros(0) if played.seat.credit is None else played.seat.credit.tokens[played.turn_index]


def _pieces(played: TurnRecord, shown: EpisodeContext) -> list[str]:
    """The text of each token; its bytes, where it is a part of a character; its id, where there is no vocabulary."""
    found = played.turn.sample.tokens.tolist()
    kept = found if shown.limit is None else found[:MAX_TOKENS]
    words = shown.vocabulary or Vocabulary(())
    parts = words.parts(kept)
    return [
        part or words.raw(token).decode("ascii", "backslashreplace") for part, token in zip(parts, kept, strict=True)
    ]


def _left(told: Text, played: TurnRecord, shown: int) -> Text:
    left = len(played.turn.sample.tokens) - shown
    return told.append(f" … {left:,} more tokens: --full shows all", "dim") if left else told


def _visible(piece: str) -> str:
    """With the ends of lines seen and obeyed."""
    return clean(piece, 200).replace("\n", "⏎\n")


def _quoted(piece: str) -> str:
    return '"' + escaped(piece[:60]).replace("\n", "\\n") + '"' + ("…" if len(piece) > 60 else "")
