"""How answers are marked: exact match and token F1 of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250), evidence recall.

Answers are normalised as there: lower case, no punctuation, no articles, single spaces. It differs in that accents are
dropped too, that hyphens and slashes separate words, and that an answer with several known names is worth nothing,
since token overlap would reward an answer that lists many.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple


class Mark(NamedTuple):
    exact: float
    f1: float
    evidence: float  # how much of the evidence was opened


def normalised(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.lower())
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    plain = re.sub(r"[-/–—]", " ", plain)
    plain = "".join(letter for letter in plain if letter.isalnum() or letter.isspace())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def f1(reply: str, answer: str) -> float:
    """Returns the harmonic mean of precision and recall over words, 0 to 1."""
    ours, theirs = normalised(reply).split(), normalised(answer).split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def mark(
    reply: str,
    answers: Sequence[str],
    evidence: Collection[str],
    opened: Collection[str],
    names: Collection[str] = (),
) -> Mark:
    """Returns the best mark of an answer, which contains `names`, against any of the accepted answers.

    Without evidence, its recall is what the answer is worth.
    """
    exact = max(float(normalised(reply) == normalised(answer)) for answer in answers)
    overlap = max(f1(reply, answer) for answer in answers) if len(names) <= 1 or exact else 0.0
    recall = len(set(evidence) & set(opened)) / len(set(evidence)) if evidence else overlap
    return Mark(exact, overlap, recall)


def mark_spans(
    reply: str,
    spans: Sequence[Sequence[str]],
    evidence: Collection[str],
    opened: Collection[str],
    names_in: Callable[[str], Collection[str]],
) -> Mark:
    """Returns the mark of an answer for several masks, which has a part for each, in order, between semicolons.

    It is exact where all parts are; F1 is the mean over the masks, where a part that is missing is worth nothing and
    those that are too many are not read.
    """
    parts = [part.strip() for part in reply.split(";")]
    marks = [mark(part, answers, (), (), names_in(part)) for part, answers in zip(parts, spans, strict=False)]
    recall = len(set(evidence) & set(opened)) / len(set(evidence))
    right = len(parts) == len(spans) and all(one.exact for one in marks)
    return Mark(float(right), sum(one.f1 for one in marks) / len(spans), recall)


def gives_away(question: str, answers: Sequence[str]) -> bool:
    """Returns whether a question names its answer, or leaves yes and no: guessing is then right every second time."""
    asked = f" {normalised(question)} "
    plain = [normalised(answer) for answer in answers]
    return any(answer in ("yes", "no") or f" {answer} " in asked for answer in plain)
