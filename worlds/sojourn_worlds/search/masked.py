"""Masked passages: texts about one thing in which names and numbers are hidden, to be found by searching.

It is the task of retrieval-augmented mask prediction (MaskSearch: Wu et al. 2025, arXiv:2505.20285), whose texts are of
Wikipedia, whose spans a language model chooses, and which masks one to four. Here the texts are the passages of the
corpus about one subject, and the spans are the other names in them, and numbers; the subject stays, so that there is
something to search for. The passages themselves can be found, as those of Wikipedia can.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sojourn.errors import ConfigError
from sojourn_worlds.search.corpus import Corpus, Passage
from sojourn_worlds.search.marking import normalised
from sojourn_worlds.search.questions import Question

MOST_MASKS = 4
NUMBER = re.compile(r"(?<![\w.,])\d[\d.,]*(?<![.,])(?!\w)")
LONGEST_TEXT = 1_500  # letters of the passages that a task shows


class Span(NamedTuple):
    """Holds what a mask hides, and the passage that states it."""

    value: str
    passage: Passage


def mask_spans(
    rng: random.Random, corpus: Corpus, count: int, accept: Callable[[Question], bool] | None = None
) -> Question:
    """Returns a task with so many masks that `accept` accepts. It shows the passages that have a mask."""
    aliases = corpus.facts.aliases if corpus.facts else {}
    for _ in range(10_000):
        subject = rng.choice(corpus.passages).names[0]
        spans = [span for passage in corpus.naming[subject.lower()] for span in _spans(passage, subject)]
        chosen = rng.sample(spans, count) if len(spans) >= count else []
        if not chosen or len({normalised(span.value) for span in chosen}) < count:
            continue
        evidence = list(dict.fromkeys(span.passage for span in chosen))
        shown, values = _masked(evidence, [span.value for span in chosen])
        if not shown or len(shown) > LONGEST_TEXT:
            continue
        ids = tuple(passage.id for passage in evidence)
        spans_said = tuple((value, *aliases.get(value, ())) for value in values)
        task = Question(shown, "; ".join(values), (), ids, (f"masks-{count}",), spans_said)
        if accept is None or accept(task):
            return task
    raise ConfigError(f"no passages with {count} masks were found in 10000 attempts: use fewer masks")


def _spans(passage: Passage, subject: str) -> Iterator[Span]:
    """Yields the names and numbers that the passage states of its subject."""
    if passage.names[0] != subject:
        return
    names = [name for name in passage.names[1:] if _place(name).search(passage.text)]
    for value in dict.fromkeys([*names, *NUMBER.findall(passage.text)]):
        yield Span(value, passage)


def _masked(passages: list[Passage], values: list[str]) -> tuple[str, list[str]]:
    """Returns the passages with each value replaced by a mask wherever it stands, and the values in the order of their
    masks; nothing where a value would still be there, inside of a word or of another value."""
    text = "\n".join(f"{passage.title}\n{passage.text}" for passage in passages)
    pattern = "|".join(_place(value).pattern for value in sorted(values, key=len, reverse=True))
    order = list(dict.fromkeys(found[0] for found in re.finditer(pattern, text)))
    if sorted(order) != sorted(values):
        return "", []
    left = f" {normalised(re.sub(pattern, ' ', text))} "
    if any(f" {normalised(value)} " in left for value in values):
        return "", []
    return re.sub(pattern, lambda found: f"[mask {order.index(found[0]) + 1}]", text), order


def _place(value: str) -> re.Pattern[str]:
    """Returns what matches a value that is no part of a longer word or number."""
    return re.compile(rf"(?<![\w.,]){re.escape(value)}(?!\w|[.,]\d)")
