"""A database of which an episode copies only the records that it touches."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any


class Table(dict[str, Any]):
    """Records by key, shared with the table that it came from; a record is copied when it is first read by its key.

    Iterating over all records gives the shared ones, which must not be changed.
    """

    def __init__(self, records: Mapping[str, Any]) -> None:
        super().__init__(records)
        self.mine: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self.mine:
            super().__setitem__(key, copy.deepcopy(super().__getitem__(key)))
            self.mine.add(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        super().__setitem__(key, record)
        self.mine.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]


class Tables(dict[str, Table]):
    """A database that is never changed once made: a call works on the copy that `begin()` returns, which is kept or
    dropped.
    """

    touched: frozenset[tuple[str, str]] = frozenset()  # of those that it came from

    @classmethod
    def of(cls, database: Mapping[str, Mapping[str, Any]]) -> Tables:
        return cls({name: Table(records) for name, records in database.items()})

    def begin(self) -> Tables:
        twin = Tables.of(self)
        twin.touched = self.read
        return twin

    @property
    def read(self) -> frozenset[tuple[str, str]]:
        """Returns the table and key of every record that was read by its key, here and in the databases that it came
        from.
        """
        return self.touched | frozenset(self._mine())

    def digest(self, base: Mapping[str, Mapping[str, Any]]) -> str:
        """Returns a hash of all that differs from a database: equal where the whole is."""
        places = sorted(self.read)
        rows = {f"{table}/{key}": dict.get(self[table], key) for table, key in places}
        known = {f"{table}/{key}": base[table].get(key) for table, key in places}
        changed = {place: record for place, record in rows.items() if record != known[place]}
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()

    def _mine(self) -> Iterator[tuple[str, str]]:
        return ((name, key) for name, table in self.items() for key in table.mine)
