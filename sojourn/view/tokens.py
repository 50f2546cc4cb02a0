"""Colours the sampled tokens of a turn by log-probability, advantage, lag or a recorded stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sojourn.record.episodes.step_file import Record
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.terminal.episode import SeatRecord, TurnRecord, seats
from sojourn.types import FloatArray

COLOURINGS = {
    "logprob": "Log-probability under the sampling policy: the less likely a token, the stronger its colour.",
    "advantage": "Advantage: green above 0, red below 0.",
    "target": "Target of the critic's value before the token, relative to the largest of the episode.",
    "lag": "Number of weight versions between the one that sampled the token and the one that it trained.",
    "entropy": "Entropy in nats of the distribution that the token was sampled from.",
    "weight": "Weight of the token in the loss, relative to the largest of the episode.",
}
COLOUR_MAX = {"logprob": 5.0, "lag": 5.0, "entropy": 3.0}  # absolute values that get the strongest colour
SAME_SIGN = frozenset({"logprob", "lag", "entropy", "weight"})  # their values all have one sign, so one colour will do
MAX_TOKENS = 2_000  # of a turn that are shown
COLOUR_LEVELS = 5


class Token(NamedTuple):
    """A token as text. `colour` is a class of the style sheet."""

    text: str
    colour: str
    tooltip: str
    special: bool = False


class Tokens(NamedTuple):
    """The tokens that are shown, and the number of those that are left out."""

    shown: Sequence[Token]
    omitted: int


def colourings(record: Record) -> dict[str, str]:
    """Returns the numbers that the tokens of an episode can be coloured by, recorded streams included, with a
    description of each."""
    targets = any(credit.targets is not None for credit in record.credits)
    names = ["logprob", *["advantage"] * bool(record.credits), *["target"] * targets, "lag", *record.streams]
    return {name: COLOURINGS.get(name, f"The stream {name}, relative to its largest in the episode.") for name in names}


def colour_maximum(record: Record, colouring: str) -> float:
    """Returns the absolute value that gets the strongest colour: a fixed one, or the largest of the episode."""
    if colouring in COLOUR_MAX:
        return COLOUR_MAX[colouring]
    arrays = [array for seat in seats(record) for array in _token_values(seat, colouring)]
    values = np.abs(np.concatenate([*arrays, np.zeros(1, np.float32)]))
    return float(values[np.isfinite(values)].max())


def _token_values(seat: SeatRecord, name: str) -> Sequence[FloatArray]:
    """Returns the advantages, the critic's targets or the values of a stream, one array per turn."""
    if name in ("advantage", "target") and seat.credit is not None:
        return seat.credit.tokens if name == "advantage" else seat.credit.targets or ()
    return seat.streams.get(name, ())


def sampled_tokens(
    played: TurnRecord, colouring: str, colour_max: float, vocabulary: Vocabulary | None, version: int | None
) -> Tokens:
    """Returns the tokens of a turn, coloured by the number of this name; `colour_max` gets the strongest colour."""
    sample = played.turn.sample
    tokens = sample.tokens[:MAX_TOKENS].tolist()
    lag = None if version is None or sample.versions.oldest < 0 else max(version - 1 - sample.versions.oldest, 0)
    columns = dict(_values_by_name(played, lag))
    coloured: list[Token] = []
    for at, (token, text, special) in enumerate(_token_texts(tokens, vocabulary)):
        values = {name: float(column[at]) for name, column in columns.items() if at < len(column)}
        facts = [f"token {token}", *(f"{name} {value:.4g}" for name, value in values.items() if math.isfinite(value))]
        value = values.get(colouring, math.nan)
        coloured.append(Token(text, _colour(value, colour_max, colouring in SAME_SIGN), ", ".join(facts), special))
    return Tokens(coloured, len(sample.tokens) - len(tokens))


def _values_by_name(played: TurnRecord, lag: int | None) -> Iterator[tuple[str, Sequence[float] | FloatArray]]:
    """Yields the name and the values of every number that is recorded for the turn's tokens."""
    sample = played.turn.sample
    yield "logprob", sample.logprobs
    if played.seat.credit is not None:
        yield "advantage", played.seat.credit.tokens[played.turn_index]
        if played.seat.credit.targets is not None:
            yield "target", played.seat.credit.targets[played.turn_index]
    if lag is not None:
        yield "lag", [float(lag)] * len(sample.tokens)
    for name, arrays in played.seat.streams.items():
        yield name, arrays[played.turn_index]


def prompt_tokens(played: TurnRecord, vocabulary: Vocabulary | None) -> list[Token]:
    """Returns the exact prompt of a turn as tokens; of a long one, the last `10 * MAX_TOKENS`."""
    prompt = played.seat.trajectory.prompt(played.turn_index).tolist()
    kept = prompt[-10 * MAX_TOKENS :]
    omitted = len(prompt) - len(kept)
    head = [Token(f"[{omitted} earlier tokens are left out]", "h0", "", True)] if omitted else []
    texts = _token_texts(kept, vocabulary)
    return head + [Token(text, "h0", f"token {token}", special) for token, text, special in texts]


def _token_texts(tokens: Sequence[int], vocabulary: Vocabulary | None) -> list[tuple[int, str, bool]]:
    """Returns id, text and whether it is special for each token.

    A token that ends within a character is shown by its bytes, and one outside the vocabulary by its id.
    """
    known = vocabulary or Vocabulary(())
    parts = known.parts(tokens)
    return [
        (token, part or known.raw(token).decode("ascii", "backslashreplace"), token in known.special)
        for token, part in zip(tokens, parts, strict=True)
    ]


def _colour(value: float, colour_max: float, same_sign: bool) -> str:
    """Returns a class of the style sheet: h1 to h5 by absolute value, or p1 to p5 and n1 to n5 by signed value."""
    if not math.isfinite(value) or not colour_max:
        return "h0"
    level = min(COLOUR_LEVELS, max(-COLOUR_LEVELS, round(COLOUR_LEVELS * value / colour_max)))
    return f"h{abs(level)}" if same_sign or level == 0 else f"p{level}" if level > 0 else f"n{-level}"
