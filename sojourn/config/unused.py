"""Refuses keys of a component that would have no effect beside its other keys, as no key is ever silently ignored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any


def refuse_unused(component: Any, keys: Iterable[str], why: str) -> None:
    """Raises `ValueError` for the first of the keys, fields of the component, that does not have its default value.
    `why` goes on from "key = value", such as "with turns = 1, which plays nothing on"."""
    known = {field.name: field for field in fields(component)}
    for key in keys:
        value = getattr(component, key)
        if value != _default(known[key]):
            shown = type(value).__name__ if is_dataclass(value) else value
            raise ValueError(f"{key} = {shown} {why}: leave it out")


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
