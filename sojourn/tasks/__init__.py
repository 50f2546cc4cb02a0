"""Sequences of tasks, which worlds offer by split and curricula draw from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

from sojourn.types import Task


@dataclass(frozen=True)
class Generated(Sequence[Task]):
    """A lazy sequence of tasks: `make(index)` makes a task when it is asked for, for 0 <= index < length."""

    make: Callable[[int], Task]
    length: int

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self.make(i) for i in range(*index.indices(self.length))]
        if not -self.length <= index < self.length:
            raise IndexError(f"task {index} of {self.length}")
        return self.make(index % self.length)
