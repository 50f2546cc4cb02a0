"""Retrieval: full-text search with BM25 by one of three engines, or by the similarity of embeddings.

"fts5" is SQLite's (in the standard library), "bm25s" and "tantivy" are packages that answer faster in large corpora.
Each takes a query as a bag of words, any of which may match, and stop words do not count. Titles weigh more than texts.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from sojourn.envs.about import require_module
from sojourn_worlds.search.corpus import Corpus, Passage
from sojourn_worlds.search.dense import Embedder, check

ENGINES = ("fts5", "bm25s", "tantivy", "dense")
TITLE_WEIGHT = 3
LARGE = 3_000  # passages
WORDS_ASKED = 40  # of a query; more do not count
_SMALL = """a an and are as at be by did do does for from had has have he her his how i in is it its of on or she that
the their there they this to was were what when where which who whom whose why will with"""
STOP_WORDS = frozenset(_SMALL.split())


def words(text: str) -> list[str]:
    """Returns the lower-case words and numbers of a text except stop words, each once, in order."""
    terms = dict.fromkeys(re.findall(r"\w+", text.lower()))
    return [word for word in terms if word not in STOP_WORDS][:WORDS_ASKED]


class Engine(Protocol):
    def __call__(self, query: str, count: int) -> list[int]:
        """Returns the indices of the best passages, best first."""
        ...


class Index:
    """The search engine of one corpus, made on first use; safe to use from several threads."""

    def __init__(self, corpus: Corpus, engine: str, embedder: str = "") -> None:
        if embedder:
            check(embedder)
        self.corpus = corpus
        self.slow = engine == "dense" or len(corpus.passages) > LARGE  # better asked in a thread
        makers: dict[str, Callable[[], Engine]] = {
            "fts5": lambda: SQLite(corpus.passages),
            "bm25s": lambda: BM25S(corpus.passages),
            "tantivy": lambda: Tantivy(corpus.passages),
            "dense": lambda: Dense(corpus.passages, embedder),
        }
        self._make = makers[engine]
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self.search = lru_cache(maxsize=4096)(self._search)

    def _search(self, query: str, count: int) -> tuple[Passage, ...]:
        """Returns the best passages for a query, best first; none where the query consists of stop words."""
        if not words(query):
            return ()
        engine = self.ready()
        with self._lock:
            return tuple(self.corpus.passages[number] for number in engine(query, count))

    def ready(self) -> Engine:
        """Returns the engine, made if it is not there yet."""
        with self._lock:
            if self._engine is None:
                self._engine = self._make()
            return self._engine


class SQLite:
    def __init__(self, passages: Sequence[Passage]) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE shelf USING fts5(title, body, content='', tokenize='porter unicode61')"
        )
        rows = ((number, passage.title, passage.text) for number, passage in enumerate(passages))
        self._database.executemany("INSERT INTO shelf(rowid, title, body) VALUES (?, ?, ?)", rows)

    def __call__(self, query: str, count: int) -> list[int]:
        match = " OR ".join(f'"{word}"' for word in words(query))
        order = f"bm25(shelf, {TITLE_WEIGHT}.0, 1.0), rowid"
        sql = f"SELECT rowid FROM shelf WHERE shelf MATCH ? ORDER BY {order} LIMIT ?"
        return [row[0] for row in self._database.execute(sql, (match, count))]


class BM25S:
    """BM25 by the package bm25s (Lù 2024, arXiv:2407.03618); titles weigh more because they are repeated."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        bm25s = require_module("bm25s", "sojourn-worlds[search]", "search")
        token_lists = [_tokens(" ".join([passage.title] * TITLE_WEIGHT + [passage.text])) for passage in passages]
        self._model = bm25s.BM25()
        self._known = {word for tokens in token_lists for word in tokens}
        self._model.index(token_lists, show_progress=False)

    def __call__(self, query: str, count: int) -> list[int]:
        asked = [word for word in words(query) if word in self._known]
        if not asked:
            return []
        scores = self._model.get_scores(asked)
        return _best(scores, count, above=0.0)


class Tantivy:
    def __init__(self, passages: Sequence[Passage]) -> None:
        self._tantivy = require_module("tantivy", "sojourn-worlds[search]", "search")
        builder = self._tantivy.SchemaBuilder()
        builder.add_unsigned_field("number", stored=True)
        for name in ("title", "body"):
            builder.add_text_field(name, tokenizer_name="en_stem")
        self._index = self._tantivy.Index(builder.build())
        writer = self._index.writer(heap_size=50_000_000, num_threads=1)
        for number, passage in enumerate(passages):
            writer.add_document(self._tantivy.Document(number=number, title=passage.title, body=passage.text))
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        self._searcher = self._index.searcher()

    def __call__(self, query: str, count: int) -> list[int]:
        asked = " ".join(f'"{word}"' for word in words(query))
        parsed = self._index.parse_query(asked, ["title", "body"], field_boosts={"title": float(TITLE_WEIGHT)})
        hits = self._searcher.search(parsed, count + 20).hits  # ties at the end are cut by our own order
        ranked = [(-score, self._searcher.doc(address)["number"][0]) for score, address in hits]
        return [number for _, number in sorted(ranked)[:count]]


class Dense:
    """Cosine similarity of mean token embeddings, as sentence transformers do (Reimers & Gurevych 2019,
    arXiv:1908.10084).
    """

    def __init__(self, passages: Sequence[Passage], embedder: str) -> None:
        self._embedder = Embedder.load(embedder)
        self._vectors = self._embedder([f"{passage.title}. {passage.text}" for passage in passages])  # (P, D)

    def __call__(self, query: str, count: int) -> list[int]:
        return _best(self._vectors @ self._embedder([query])[0], count)


def _tokens(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]


def _best(scores: np.ndarray, count: int, above: float = -np.inf) -> list[int]:
    """Returns the indices of the largest scores, largest first; among equals the first."""
    order = np.lexsort((np.arange(len(scores)), -np.asarray(scores)))[:count]
    return [int(number) for number in order if scores[number] > above]
