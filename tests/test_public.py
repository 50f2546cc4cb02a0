"""Public names, signatures, facts and config fields are frozen: `public.txt` lists them, one a line.

Run as a script, this prints what that file should hold.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

FROZEN = Path(__file__).parent / "public.txt"
REGENERATE = "python tests/test_public.py > tests/public.txt"


def public() -> list[str]:
    import sojourn
    from sojourn import abilities, api, protocols, types
    from sojourn.config.components import COMPONENTS

    lines = [f"sojourn.{name} is {getattr(sojourn, name).__module__}.{name}" for name in sojourn.__all__]
    for module in (types, protocols, abilities):
        for cls in own_classes(module):
            lines += members(cls, f"{module.__name__.removeprefix('sojourn.')}.{cls.__name__}")
    for name in ("evaluate", "load", "open", "train"):
        lines += [f"sojourn.{line}" for line in method(name, getattr(api, name))]
    for cls in (api.Policy, api.Run):
        lines += members(cls, f"sojourn.{cls.__name__}")
    for kind, names in COMPONENTS.items():
        for name in names:
            lines += component(kind, name)
    return sorted(lines)


def own_classes(module: ModuleType) -> list[type]:
    found = [value for name, value in vars(module).items() if inspect.isclass(value) and not name.startswith("_")]
    return [cls for cls in found if f"{cls.__module__}.".startswith(f"{module.__name__}.")]


def members(cls: type, where: str) -> Iterator[str]:
    """How it is made, its fields or values, its annotated attributes, and its own public methods and properties."""
    if issubclass(cls, Enum):
        yield from (f"{where}.{name} = {str(member.value)!r}" for name, member in cls.__members__.items())
    elif dataclasses.is_dataclass(cls):
        yield f"{where}({', '.join(field.name for field in dataclasses.fields(cls))})"
        yield from (f"{where}.{field_line(field)}" for field in dataclasses.fields(cls))
    elif issubclass(cls, tuple):
        yield f"{where}({', '.join(cls._fields)})"
    else:
        yield from (f"{where}.{name}: {kind}" for name, kind in inspect.get_annotations(cls).items())
    for name, value in vars(cls).items():
        if not name.startswith("_") or name == "__call__":
            yield from (f"{where}.{line}" for line in method(name, value))


def method(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, classmethod):
        yield f"{name}{signature(value.__func__)} (classmethod)"
    elif inspect.isfunction(value):
        yield f"{'async ' if inspect.iscoroutinefunction(value) else ''}{name}{signature(value)}"
    elif function := getattr(value, "fget", None) or getattr(value, "func", None):  # a property, cached or not
        yield f"{name} -> {inspect.signature(function).return_annotation} (property)"


def signature(function: Any) -> str:
    """With annotations as the source writes them."""
    return str(inspect.signature(function)).replace("'", "")


def field_line(field: dataclasses.Field[Any]) -> str:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    return f"{field.name}: {field.type}" + ("" if default is dataclasses.MISSING else f" = {default!r}")


def component(kind: str, name: str) -> Iterator[str]:
    """What a config may say of it."""
    from sojourn.config.lookup import find

    yield f"{kind} {name}"
    for field in dataclasses.fields(find(kind, name)):
        if field.init and not field.name.startswith("_"):
            yield f"{kind} {name}.{field_line(field)}"


def test_the_public_interface_is_the_frozen_one():
    frozen, now = FROZEN.read_text().splitlines(), public()
    changes = [
        line for line in difflib.unified_diff(frozen, now, "frozen", "now", lineterm="", n=0) if line[:2] != "@@"
    ]
    assert frozen == now, (
        "the public interface has changed; where that is intended, say so in the commit and run\n"
        f"    {REGENERATE}\n" + "\n".join(changes)
    )


def test_what_is_frozen_covers_every_kind_of_thing():
    lines = set(FROZEN.read_text().splitlines())
    expected = {
        "sojourn.Task is sojourn.types.Task",
        "types.Task(env, data, seed, split, tags)",
        "types.Turn.parent: int",
        "types.Stop.END = 'end'",
        "types.Trajectory.prompt(self, turn: int) -> IntArray",
        "types.Group.trajectories -> tuple[Trajectory, ...] (property)",
        "protocols.Renderer.stops -> tuple[int, ...] (property)",
        "protocols.Env.async step(self, agent: str, action: Message) -> Step",
        "loss ppo",
        "groups slots.max_lag: Annotated[int, Range(0)] = 0",
    }
    assert expected <= lines


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(Path(__file__).parent.parent))
    print("\n".join(public()))
