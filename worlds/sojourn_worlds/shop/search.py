"""Full-text search over a catalogue: SQLite FTS5 with BM25, where WebShop uses Lucene's BM25 through pyserini.

A query is a bag of words, any of which may match; stop words do not count, and words are stemmed (Porter). It returns
fifty results at most, as in WebShop (`SEARCH_RETURN_N`). Ties are broken by the order of the catalogue, so results do
not vary.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from functools import lru_cache

from sojourn_worlds.shop.catalogue import Catalogue, Product

RESULTS = 50
WEIGHTS = (4.0, 4.0, 2.0, 1.0, 1.0)  # title, kind and category, features, option values, description
_SMALL = """a an and any are as at be below buy by can dollar dollars find for from get have i im in is it item like
looking less lower me more my need of on or please price product some something than that the them this to under want
which with would you your"""
STOP_WORDS = frozenset(_SMALL.split())


def words(text: str) -> list[str]:
    """Returns the lower-case words and numbers of a text, in order."""
    return re.findall(r"[a-z0-9]+", text.lower())


class Index:
    """The search engine of one catalogue; safe to use from several threads."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE shelf USING fts5(title, category, features, options, description, "
            "content='', tokenize='porter unicode61')"
        )
        rows = ((number, *_columns(product)) for number, product in enumerate(catalogue.products))
        self._database.executemany(
            "INSERT INTO shelf(rowid, title, category, features, options, description) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
        self.search = lru_cache(maxsize=4096)(self._search)

    def _search(self, query: str) -> tuple[Product, ...]:
        """Returns the best products for a query, best first; none where the query consists of stop words."""
        asked = list(dict.fromkeys(word for word in words(query) if word not in STOP_WORDS))
        if not asked:
            return ()
        match = " OR ".join(f'"{word}"' for word in asked)
        order = f"bm25(shelf, {', '.join(map(str, WEIGHTS))}), rowid"
        with self._lock:
            rows = self._database.execute(
                f"SELECT rowid FROM shelf WHERE shelf MATCH ? ORDER BY {order} LIMIT {RESULTS}", (match,)
            ).fetchall()
        return tuple(self.catalogue.products[row[0]] for row in rows)


def _columns(product: Product) -> tuple[str, str, str, str, str]:
    options = " ".join(value for values in product.options.values() for value in values)
    category = " ".join([product.kind, *product.category])
    return product.title, category, " ".join(product.features), options, product.description
