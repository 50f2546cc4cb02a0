"""A seat that ranks what the search engine finds, of which another seat is shown the first few.

After CoSearch (Zeng et al. 2026, arXiv:2604.17555): a generative ranker reads the question, the sub-query and the
candidates, and writes the numbers of the best ones in order. Its reward for that is the paper's ranking quality, the
mean of Hit@1, Hit@3 and Hit@5: whether one of the first k passages holds the answer. It is 0 where no candidate does,
or where the answer is a mere yes or no, which the info `answerable` = 0 says; the estimator `cosearch` adds what the
answer of the episode was worth. A ranking in a wrong form is worth `FORMAT_PENALTY`, and the engine's order is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sojourn_worlds.search.corpus import Passage
from sojourn_worlds.search.marking import normalised

SEAT = "ranker"
CUTOFFS = (1, 3, 5)
FORMAT_PENALTY = -0.2
TRIVIAL = frozenset({"yes", "no", "true", "false"})
SHOWN_WORDS = 60  # of each candidate
SYSTEM_PROMPT = (
    "Rank passages for somebody who answers a question by searching, and who is shown the best of them alone. "
    "You may say in <reason></reason> why, first. Then say the numbers of the {count} best passages, best first, "
    "such as {example}."
)


def ranked(text: str, found: int, count: int) -> tuple[int, ...]:
    """Returns the places, from 0, that a text ranks first; none where it is not `count` different numbers of the
    candidates with " > " between them, after one reason at most."""
    said = re.fullmatch(r"(?:<reason>.*?</reason>)?(.*)", text.strip(), re.DOTALL)
    chain = said[1].strip() if said else ""
    if not re.fullmatch(r"\[\d{1,4}\](\s*>\s*\[\d{1,4}\])*", chain, re.ASCII):
        return ()
    places = tuple(int(number) - 1 for number in re.findall(r"\d+", chain))
    fits = len(set(places)) == len(places) == count and all(0 <= place < found for place in places)
    return places if fits else ()


def written(places: Sequence[int]) -> str:
    """Returns a ranking as it is said."""
    return " > ".join(f"[{place + 1}]" for place in places)


def holds_answer(passage: Passage, answers: Sequence[str]) -> bool:
    """Returns whether the words of an answer, which is more than yes or no, stand in a passage."""
    text = f" {normalised(f'{passage.title} {passage.text}')} "
    wanted = [plain for plain in map(normalised, answers) if plain and plain not in TRIVIAL]
    return any(f" {plain} " in text for plain in wanted)


def quality(passages: Sequence[Passage], answers: Sequence[str]) -> float:
    """Returns the mean of Hit@k over the cutoffs: the fraction of them before which a passage holds the answer."""
    hits = [holds_answer(passage, answers) for passage in passages]
    return sum(any(hits[:cutoff]) for cutoff in CUTOFFS) / len(CUTOFFS)
