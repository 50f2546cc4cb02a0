"""The sampled tokens of a turn, coloured by one of the numbers that are known of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sojourn.record.vocabulary import Vocabulary
from sojourn.terminal.episode import Move

COLOURINGS = {
    "logprob": "log-probability: the rarer, the stronger",
    "advantage": "advantage: green above 0, red below",
    "lag": "versions between the weights that sampled it and those it trained",
}
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


def tokens_of(move: Move, colouring: str, vocabulary: Vocabulary | None, version: int | None) -> Tokens:
    sample = move.turn.sample
    found = sample.tokens[:MOST].tolist()
    advantages = move.seat.credit.tokens[move.number] if move.seat.credit is not None else np.full(len(found), np.nan)
    largest = float(np.nanmax(np.abs(advantages))) if np.isfinite(advantages).any() else 0.0
    lag = None if version is None or sample.versions.oldest < 0 else max(version - 1 - sample.versions.oldest, 0)
    shown: list[Token] = []
    for at, (token, text, special) in enumerate(_texts(found, vocabulary)):
        logprob, advantage = float(sample.logprobs[at]), float(advantages[at]) if at < len(advantages) else math.nan
        told = [f"token {token}", f"logprob {logprob:.3f} (probability {math.exp(min(logprob, 0.0)):.2g})"]
        told += [f"advantage {advantage:+.3g}"] if math.isfinite(advantage) else []
        told += [f"lag {lag}"] if lag is not None else []
        colour = {
            "logprob": _rising(-logprob / 5.0),
            "advantage": _both(advantage / largest) if largest and math.isfinite(advantage) else "h0",
            "lag": _rising((lag or 0) / 5.0),
        }[colouring]
        shown.append(Token(text, colour, ", ".join(told), special))
    return Tokens(shown, len(sample.tokens) - len(found))


def prompt_tokens(move: Move, vocabulary: Vocabulary | None) -> list[Token]:
    """Exactly what the model saw before the turn; only the last `10 * MOST` tokens of a longer one."""
    found = move.seat.trajectory.prompt(move.number).tolist()
    kept = found[-10 * MOST :]
    head = (
        [Token(f"[{len(found) - len(kept)} tokens before]", "h0", "left out", True)] if len(kept) < len(found) else []
    )
    return head + [Token(text, "h0", f"token {token}", special) for token, text, special in _texts(kept, vocabulary)]


def _texts(tokens: Sequence[int], vocabulary: Vocabulary | None) -> list[tuple[int, str, bool]]:
    """Each token with its text; those that end no character show their bytes, those of no vocabulary their id."""
    words = vocabulary or Vocabulary(())
    parts = words.parts(tokens)
    return [
        (token, part or words.raw(token).decode("ascii", "backslashreplace"), token in words.special)
        for token, part in zip(tokens, parts, strict=True)
    ]


def _rising(share: float) -> str:
    return f"h{min(STEPS, max(0, round(STEPS * share)))}"


def _both(share: float) -> str:
    step = min(STEPS, max(-STEPS, round(STEPS * share)))
    return "h0" if step == 0 else f"p{step}" if step > 0 else f"n{-step}"
