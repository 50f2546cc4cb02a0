"""The user's own passages and questions, from files.

Passages: a folder (or one file) of .txt and .md, cut at blank lines into pieces of up to a thousand letters, and of
.jsonl with one {"title", "text"} per line ("id" if there is one). Questions: .json or .jsonl as HotpotQA (Yang et al.
2018), 2WikiMultihopQA (Ho et al. 2020) or MuSiQue (Trivedi et al. 2022) give them, or {"question", "answer",
"evidence"} with ids or titles of passages; "answer" may be a list, of which the first is shown to readers. Where no
passages are given, those that come with the questions are the corpus, all questions' together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import ConfigError
from sojourn_worlds.search.corpus import Corpus, Passage
from sojourn_worlds.search.marking import normalised
from sojourn_worlds.search.questions import Question

TEXTS = (".txt", ".md")
LONGEST = 1000  # letters of a passage cut from a text


class Piece(NamedTuple):
    title: str
    text: str
    id: str = ""


class Read(NamedTuple):
    """A question whose evidence is still as the file names it: ids, titles, or titles and texts."""

    text: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    comes_with: tuple[Piece, ...]


@lru_cache(2)
def load(passages: str, questions: str) -> tuple[Corpus, tuple[Question, ...]]:
    """Returns the corpus and its questions; an empty name of passages means those that come with the questions."""
    asked = list(_questions(Path(questions)))
    if not asked:
        raise ConfigError(f'search: questions = "{questions}" has no question with an answer: give one a line')
    pieces = list(_pieces(Path(passages))) if passages else [piece for one in asked for piece in one.comes_with]
    corpus = _corpus(list(dict.fromkeys(pieces)), passages or questions)
    titled: dict[str, str] = {}
    for passage in corpus.passages:
        titled.setdefault(passage.title, passage.id)
        titled.setdefault(f"{passage.title}\n{passage.text}", passage.id)
    questions_read = []
    for one in asked:
        known = [
            id if id in corpus.by_id else titled.get(id) or titled.get(id.partition("\n")[0], "") for id in one.evidence
        ]
        if not all(known):
            lost = one.evidence[known.index("")].partition("\n")[0]
            raise ConfigError(
                f'search: the evidence "{lost}" of "{one.text[:60]}" is no passage: name an id or a title'
            )
        questions_read.append(
            Question(one.text, one.answers[0], one.answers[1:], tuple(dict.fromkeys(known)), ("file",))
        )
    return corpus, tuple(questions_read)


def _corpus(pieces: Sequence[Piece], name: str) -> Corpus:
    if not pieces:
        raise ConfigError(f'search: "{name}" holds no passage: give .txt, .md or .jsonl files, or questions with some')
    taken, passages = {piece.id for piece in pieces if piece.id}, []
    free = (str(number) for number in range(1, 10**12) if str(number) not in taken)
    for piece in pieces:
        passages.append(Passage(piece.id or next(free), piece.title, piece.text, (piece.title,)))
    if len({passage.id for passage in passages}) < len(passages):
        raise ConfigError(f'search: two passages of "{name}" have the same id: make them different or leave them out')
    digest = hashlib.sha256(repr(passages).encode()).hexdigest()[:16]
    first = Corpus(tuple(passages), digest)
    linked = [p._replace(names=tuple(dict.fromkeys([p.title, *first.names_in(p.text)]))) for p in passages]
    return Corpus(tuple(linked), digest)


def _pieces(path: Path) -> Iterator[Piece]:
    if not path.exists():
        raise ConfigError(f'search: corpus = "{path}", but there is no such file: use "invented", "factbook" or a path')
    base = path if path.is_dir() else path.parent
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.suffix in TEXTS:
            yield from _cut(file.read_text("utf-8", "replace"), file.relative_to(base).with_suffix("").as_posix())
        elif file.suffix == ".jsonl":
            for line in _lines(file):
                text = line.get("text") or line.get("contents") or line.get("paragraph_text")
                if isinstance(text, str) and text.strip():
                    id = "" if line.get("id") is None else _plain(line["id"])  # which may be 0
                    yield Piece(_plain(line.get("title") or file.stem), _plain(text), id)


def _cut(text: str, name: str) -> Iterator[Piece]:
    """Joins paragraphs while they are short; a heading becomes the title of those that follow it."""
    heading, held = name, ""
    for paragraph in [*text.split("\n\n"), ""]:
        plain_text = _plain(paragraph)
        title = plain_text.lstrip("# ") if plain_text.startswith("#") and "\n" not in paragraph.strip() else ""
        if held and (title or not plain_text or len(held) + len(plain_text) > LONGEST):
            yield Piece(heading, held)
            held = ""
        if title:
            heading = f"{name}: {title}"
        else:
            held = f"{held} {plain_text}".strip()


def _questions(path: Path) -> Iterator[Read]:
    if not path.is_file():
        raise ConfigError(f'search: questions = "{path}", but there is no such file: name a .json or .jsonl file')
    for number, line in enumerate(_lines(path), 1):
        answers = line.get("answer")
        answers = [*(answers if isinstance(answers, list) else [answers]), *line.get("answer_aliases", [])]
        answers = [_plain(answer) for answer in answers if normalised(_plain(answer or ""))]
        if not isinstance(line.get("question"), str):
            raise ConfigError(f'search: question {number} of "{path}" has no "question": give {{"question", "answer"}}')
        if answers and line.get("answerable", True):  # MuSiQue has contrasting questions without an answer
            evidence, pieces = _supports(line)
            yield Read(_plain(line["question"]), tuple(dict.fromkeys(answers)), evidence, pieces)


def _supports(line: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Piece, ...]]:
    """Returns the evidence of a line and the passages in it."""
    if "paragraphs" in line:  # MuSiQue
        marked = [
            (Piece(_plain(p["title"]), _plain(p["paragraph_text"])), p.get("is_supporting")) for p in line["paragraphs"]
        ]
        return tuple(f"{piece.title}\n{piece.text}" for piece, needed in marked if needed), tuple(p for p, _ in marked)
    if "context" in line:  # HotpotQA and 2WikiMultihopQA, as lists or (HotpotQA on some hubs) as columns
        context, facts = line["context"], line.get("supporting_facts", [])
        if isinstance(context, Mapping):
            context = list(zip(context["title"], context["sentences"], strict=True))
        titles = facts["title"] if isinstance(facts, Mapping) else [fact[0] for fact in facts]
        pieces = tuple(Piece(_plain(title), _plain(" ".join(sentences))) for title, sentences in context)
        texts = {piece.title: f"{piece.title}\n{piece.text}" for piece in pieces}
        return tuple(dict.fromkeys(texts.get(_plain(title), _plain(title)) for title in titles)), pieces
    return tuple(str(one) for one in line.get("evidence", [])), ()


def _lines(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a .jsonl file, or of a .json file with a list."""
    text = path.read_text("utf-8")
    try:
        if path.suffix == ".json":
            records = json.loads(text)
        else:
            records = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise ConfigError(f'search: "{path}" is not {path.suffix} ({error}): give one JSON record a line') from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ConfigError(
            f'search: "{path}" holds {type(records).__name__}: give a list of records {{"question", ...}}'
        )
    return records


def _plain(text: Any) -> str:
    return " ".join(str(text).split())
