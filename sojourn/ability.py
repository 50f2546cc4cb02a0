"""The base of small protocols that `isinstance` asks for again and again, in every episode."""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    ProtocolMeta = ABCMeta
else:
    ProtocolMeta = type(Protocol)


class AbilityMeta(ProtocolMeta):
    """Makes `isinstance` quick, and the same in all versions of Python, for protocols that are derived from `Ability`:
    an object has an ability where it has all members, and none of its methods is None.

    The check of `typing` finds out anew, until Python 3.11, what a protocol asks for; from 3.12 on it counts properties
    without reading them, also those that raise `AttributeError`.
    """

    def __instancecheck__(self, instance: Any) -> bool:
        if not vars(self).get("_is_protocol", False):  # a class that is derived from one, and no protocol itself
            return super().__instancecheck__(instance)
        members = _members.get(self)
        if members is None:
            members = _members[self] = _members_of(self)
        for name, is_method in members:
            if not hasattr(instance, name) or (is_method and getattr(instance, name) is None):
                return False
        return True


_members: dict[type, tuple[tuple[str, bool], ...]] = {}  # of protocols, and which are methods


class Ability(Protocol, metaclass=AbilityMeta):
    """The base of a protocol that says what an object may offer besides its role."""


def _members_of(protocol: type) -> tuple[tuple[str, bool], ...]:
    """Returns the public members of a protocol and of its bases."""
    bases = [base for base in protocol.__mro__ if vars(base).get("_is_protocol", False)]
    found = {name: None for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    return tuple((name, callable(getattr(protocol, name, None))) for name in found if not name.startswith("_"))
