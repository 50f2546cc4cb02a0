"""The sampled tokens of a turn, coloured by one of the numbers that are known of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.terminal.episode import Move, Seat, seats
from sojourn.types import FloatArray

COLOURINGS = {
    "logprob": "log-probability: the rarer, the stronger",
    "advantage": "advantage: green above 0, red below",
    "lag": "versions between the weights that sampled it and those it trained",
    "entropy": "entropy of the distribution that it was drawn from, in nats",
    "weight": "its share in the loss, against the largest of the episode",
}
SCALES = {"logprob": 5.0, "lag": 5.0, "entropy": 3.0}  # from here on the colour is full
WARM = frozenset({"logprob", "lag", "entropy", "weight"})  # numbers of one sign
MOST = 2_000  # tokens of a turn that are shown
STEPS = 5  # of a colour


class Token(NamedTuple):
    """A token as text: `colour` is a class of the style sheet, `told` what a pointer on it is told."""

    text: str
    colour: str
    told: str
    special: bool = False


class Tokens(NamedTuple):
    """The tokens that are shown, and how many are left out."""

    shown: Sequence[Token]
    left: int


def colourings(record: Record) -> dict[str, str]:
    """What the tokens of an episode can be coloured by, and what that is; streams that were recorded included."""
    known = ["logprob", *(["advantage"] if record.credits else []), "lag", *record.streams]
    return {name: COLOURINGS.get(name, f"the stream {name}, against its largest in the episode") for name in known}


def largest(record: Record, colouring: str) -> float:
    """What has the full colour."""
    if colouring in SCALES:
        return SCALES[colouring]
    arrays = [of for seat in seats(record) for of in _numbers(seat, colouring)]
    values = np.abs(np.concatenate([*arrays, np.zeros(1, np.float32)]))
    return float(values[np.isfinite(values)].max())


def _numbers(seat: Seat, name: str) -> Sequence[FloatArray]:
    if name == "advantage":
        return seat.credit.tokens if seat.credit is not None else ()
    return seat.streams.get(name, ())


def tokens_of(move: Move, colouring: str, full: float, vocabulary: Vocabulary | None, version: int | None) -> Tokens:
    """`full` is the number that has the full colour."""
    sample = move.turn.sample
    found = sample.tokens[:MOST].tolist()
    lag = None if version is None or sample.versions.oldest < 0 else max(version - 1 - sample.versions.oldest, 0)
    columns = dict(_columns(move, lag))
    shown: list[Token] = []
    for at, (token, text, special) in enumerate(_texts(found, vocabulary)):
        values = {name: float(column[at]) for name, column in columns.items() if at < len(column)}
        told = [f"token {token}", *(f"{name} {value:.4g}" for name, value in values.items() if math.isfinite(value))]
        value = values.get(colouring, math.nan)
        shown.append(Token(text, _colour(value, full, colouring in WARM), ", ".join(told), special))
    return Tokens(shown, len(sample.tokens) - len(found))


def _columns(move: Move, lag: int | None) -> Iterator[tuple[str, Sequence[float] | FloatArray]]:
    """Every number that is known of the turn's tokens, by name."""
    sample = move.turn.sample
    yield "logprob", sample.logprobs
    if move.seat.credit is not None:
        yield "advantage", move.seat.credit.tokens[move.number]
    if lag is not None:
        yield "lag", [float(lag)] * len(sample.tokens)
    for name, arrays in move.seat.streams.items():
        yield name, arrays[move.number]


def prompt_tokens(move: Move, vocabulary: Vocabulary | None) -> list[Token]:
    """Exactly what the model saw before the turn; only the last `10 * MOST` tokens of a longer one."""
    found = move.seat.trajectory.prompt(move.number).tolist()
    kept = found[-10 * MOST :]
    left = len(found) - len(kept)
    head = [Token(f"[{left} tokens before]", "h0", "left out", True)] if left else []
    return head + [Token(text, "h0", f"token {token}", special) for token, text, special in _texts(kept, vocabulary)]


def _texts(tokens: Sequence[int], vocabulary: Vocabulary | None) -> list[tuple[int, str, bool]]:
    """Each token with its text; those that end no character show their bytes, those of no vocabulary their id."""
    words = vocabulary or Vocabulary(())
    parts = words.parts(tokens)
    return [
        (token, part or words.raw(token).decode("ascii", "backslashreplace"), token in words.special)
        for token, part in zip(tokens, parts, strict=True)
    ]


def _colour(value: float, full: float, warm: bool) -> str:
    """A class: the stronger the greater, where all have one sign; else green above 0, and red below."""
    if not math.isfinite(value) or not full:
        return "h0"
    step = min(STEPS, max(-STEPS, round(STEPS * value / full)))
    return f"h{abs(step)}" if warm or step == 0 else f"p{step}" if step > 0 else f"n{-step}"
