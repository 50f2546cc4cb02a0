"""Questions that are proposed as text, with their answers and the passages that they take.

After Search Self-play (Lu et al. 2025, arXiv:2510.18821), in which a question is kept if it is answered right from the
documents that its proposer found. Here the check asks no model: the answer must be words of the passages that are named
as evidence, and the question must name something else that one of them is about. So it cannot tell whether the
question asks for that answer; whether it is ever solved tells that. The proposer is shown passages, and does not search
itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sojourn.errors import ActionError
from sojourn_worlds.search.corpus import Corpus
from sojourn_worlds.search.marking import normalised
from sojourn_worlds.search.questions import Question

LINES = ("question", "answer", "evidence")
MOST_EVIDENCE = 4
LONGEST = {"question": 500, "answer": 100, "evidence": 200}  # characters


class Written(NamedTuple):
    """A question as it was written."""

    question: str
    answer: str
    evidence: tuple[str, ...]


def told(corpus: Corpus, shown: tuple[str, ...]) -> str:
    """Returns how a question is written, and the passages that it may be about."""
    passages = [corpus.by_id[id] for id in shown if id in corpus.by_id]
    texts = "\n\n".join(f"[{passage.id}] {passage.title}: {passage.text}" for passage in passages)
    return (
        f'Others are to answer it by searching for these passages:\n\n{texts}\n\nWrite three lines: "question:" and a '
        'question, "answer:" and its answer, which is words of a passage, and "evidence:" and '
        "the numbers of the passages that it takes, with commas between them. Write nothing else."
    )


def write(question: str, answer: str, evidence: tuple[str, ...]) -> str:
    return f"question: {question}\nanswer: {answer}\nevidence: {', '.join(evidence)}"


def read(text: str) -> Written:
    """Reads three lines; raises `ActionError` where they are malformed."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(":")
        name, rest = name.strip().lower(), rest.strip()
        if name not in LINES or name in found or not rest or len(rest) > LONGEST[name]:
            raise ActionError(f'"{line[:60]}" is none of the lines {", ".join(LINES)}, or comes twice, or is too long.')
        found[name] = rest
    if missing := [name for name in LINES if name not in found]:
        raise ActionError(f'There is no line that begins with "{missing[0]}:".')
    evidence = tuple(dict.fromkeys(filter(None, re.split(r"[,\s]+", found["evidence"]))))
    if len(evidence) > MOST_EVIDENCE:
        raise ActionError(f"A question takes at most {MOST_EVIDENCE} passages.")
    return Written(found["question"], found["answer"], evidence)


def question_of(written: Written, corpus: Corpus) -> Question | None:
    """Returns the question; None where its answer cannot be reached with its evidence."""
    passages = [corpus.by_id.get(id) for id in written.evidence]
    known = [passage for passage in passages if passage is not None]
    answer = normalised(written.answer)
    if not answer or len(known) < len(passages):
        return None
    if not any(f" {answer} " in f" {normalised(f'{one.title} {one.text}')} " for one in known):
        return None
    about = {name for passage in known for name in passage.names}
    if about and not any(name in about and normalised(name) != answer for name in corpus.names_in(written.question)):
        return None
    aliases = corpus.facts.aliases.get(written.answer, ()) if corpus.facts is not None else ()
    return Question(written.question, written.answer, aliases, written.evidence, ())
