"""Splits of what many tasks share: each question belongs to one of them by its own hash, whatever the seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from sojourn.tasks.splits import SPLITS

Item = TypeVar("Item")


def split_of(text: str) -> str:
    """Returns the split of a text: every fifth, by its hash, is of the test split."""
    return "test" if int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 5 == 0 else "train"


def divide(items: Iterable[Item], text_of: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Returns items by split; where there are two or more, each split has at least one."""
    by_split: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for item in dict.fromkeys(items):
        by_split[split_of(text_of(item))].append(item)
    for split, other in zip(SPLITS, SPLITS[::-1], strict=True):
        if not by_split[split] and len(by_split[other]) > 1:
            by_split[split].append(by_split[other].pop())
    return by_split
