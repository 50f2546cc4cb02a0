"""What a plain class may have besides its tools and `reward`: small protocols, which `offers` asks for.

They hold for the class as well as for its objects; `sojourn/envs/tools.py` says what each member means. The expert and
the state key are those of any play: `HasExpert` and `HasStateKey`. Any method may also be a coroutine function.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class DeclaresTasks(Protocol):
    """A class that lists its tasks: as a sequence, by split, or as a static method that is given the split."""

    @property
    def tasks(self) -> Any: ...


@runtime_checkable
class HasGoal(Protocol):
    """An object with a first message for the agent: a text, or a method that returns it."""

    @property
    def goal(self) -> Any: ...


@runtime_checkable
class JudgesSuccess(Protocol):
    """An object that says at the end whether the agent succeeded."""

    def success(self) -> Any: ...


@runtime_checkable
class ListsChoices(Protocol):
    """An object that lists all calls that are possible now."""

    def choices(self) -> Any: ...


@runtime_checkable
class ReleasesResources(Protocol):
    """An object that holds resources until it is closed, and so cannot be copied."""

    def close(self) -> Any: ...


def offers(owner: object, role: type) -> bool:
    """Returns whether a class, or an object, has the members of a role itself: members that `__getattr__` makes up do
    not count, as they may with `isinstance`."""
    members = [name for name in vars(role) if not name.startswith("_")]
    return all(inspect.getattr_static(owner, name, None) is not None for name in members)


def has_coroutines(plain: type) -> bool:
    """Returns whether a class has a coroutine function, so that its objects belong to an event loop."""
    members = (inspect.getattr_static(plain, name, None) for name in dir(plain))
    return any(inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member) for member in members)
