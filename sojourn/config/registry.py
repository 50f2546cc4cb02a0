"""Turns the tables of a config into typed components, strictly: an unknown key is an error that names the closest key.

A component's config is its own dataclass: `build("loss", {"name": "ppo", "clip_low": 0.2})` finds the class `PPO`,
checks each key against its fields (the error names the nearest one) and each value against the field's annotation.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union

from sojourn.config.components import MEMBERS, PLAIN_CLASS
from sojourn.config.fields import Kind, Range, Text, type_in_words
from sojourn.config.lookup import find, import_object, names, nearest, registered_name, user_code
from sojourn.config.old_keys import ANY, is_removed, new_key
from sojourn.config.passed import PREFIX
from sojourn.errors import ConfigError, UnknownKeyError
from sojourn.secrets import masked_value

LARGEST = 3e38  # a number beyond it soon becomes infinite in computations of 32 bits
LONGEST = 80  # characters of a value in a message


class Built(NamedTuple):
    """A value, and the complete table that makes it again, defaults included."""

    value: Any
    table: Any


def build(kind: str, table: Mapping[str, Any], where: str = "") -> Built:
    """Returns the component of a kind that a table `{name = ..., fields}` describes."""
    where = where or kind
    if isinstance(table, str):
        raise ConfigError(f"{where} = {shown(table)}: expected a table: write {{name = {shown(table)}}}")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} = {shown(table)}: expected a table with a 'name', such as {{name = '...'}}")
    if "name" not in table:
        raise ConfigError(f"{where} has no 'name': {nearest('', names(kind))}")
    name = table["name"]
    if not isinstance(name, str):
        raise _wrong(f"{where}.name", name, type_in_words(str))
    with user_code(f"{where} = {shown(name)}"):
        cls = find(kind, name)
        fields = {key: value for key, value in table.items() if key != "name"}
        if kind == "env" and (is_plain(cls) or _lacks_reward(cls)):
            built = _family_of_plain_class(cls, fields, where)
        elif name.startswith(PREFIX) and not isinstance(cls, type):
            built = Built(cls, fields)  # an object, whole as it is
        else:
            built = construct(cls, fields, where, kind, name)
        _check_members(kind, built.value)
    return Built(built.value, {"name": name, **built.table})


def is_plain(cls: Any) -> bool:
    """Returns whether something is a plain class, whose methods are an agent's tools, not a world with a field
    `reward`."""
    return isinstance(cls, type) and callable(getattr(cls, "reward", None))


def _lacks_reward(cls: Any) -> bool:
    """Returns whether something is a class that can only be meant as a plain class without its `reward`, of which its
    family says so."""
    is_family = dataclasses.is_dataclass(cls) or all(_has(cls, member) for member in MEMBERS["env"])
    return isinstance(cls, type) and not is_family


def _family_of_plain_class(cls: Any, fields: Mapping[str, Any], where: str) -> Built:
    """Returns the environment family of a plain class. Fields that the family does not have are arguments of the class,
    which checks them itself."""
    as_family = import_object(PLAIN_CLASS, where)
    size = Annotated[int, Range(1)]
    for key, value in fields.items():
        convert(size if key in ("train", "test") else Any, value, f"{where}.{key}")
    return Built(as_family(cls, **fields), dict(fields))


def _check_members(kind: str, value: Any) -> None:
    """Refuses a component that has not the members of its kind: it would fail where it is first used."""
    if not all(_has(value, member) for member in MEMBERS[kind]):
        article = "an" if kind[0] in "aeiou" else "a"
        members = ", ".join(MEMBERS[kind])
        raise ConfigError(f"{type(value).__name__} is no {kind}: {article} {kind} has {members}")


def _has(value: Any, member: str) -> bool:
    if member.startswith("no "):
        return not hasattr(value, member.removeprefix("no "))
    name = member.removesuffix("(...)")
    return hasattr(value, name) and (name == member or callable(getattr(value, name)))


def construct(cls: Any, table: Mapping[str, Any], where: str, kind: str = "", name: str = ANY) -> Built:
    """Makes a dataclass from a table, and fills the defaults into the table. `kind` and `name` are those of
    `config.old_keys`; by default, the kind is the last key of the path `where`."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        what = getattr(cls, "__qualname__", shown(cls))
        raise ConfigError(
            f"{where}: {what} is no dataclass, whose fields would be its keys: write @dataclass(frozen=True) above the "
            "class, or, in Python, give an object in place of the class"
        )
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")}
    prefix = f"{where}." if where else ""
    kind = kind or next((key for key in reversed(where.split(".")) if not key.isdigit()), "")
    if unknown := [key for key in table if key not in fields]:
        message = str(unknown_key(unknown[0], fields, prefix, kind, name))
        raise UnknownKeyError(message, where, unknown, kind)
    hints = _hints(cls, where)
    values, complete = {}, {}
    for key, f in fields.items():
        if key in table:
            built = convert(hints[key], _with_name(f, hints[key], table[key]), f"{prefix}{key}")
        elif f.default is not dataclasses.MISSING:
            built = Built(f.default, as_toml(f.default, _of_component(hints[key])))
        elif f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
            built = Built(default, as_toml(default, _of_component(hints[key])))
        else:
            raise ConfigError(f"'{prefix}{key}' is missing: {cls.__name__} needs it")
        values[key] = built.value
        if built.table is not None:
            complete[key] = built.table
    try:
        return Built(cls(**values), complete)
    except ValueError as error:
        raise ConfigError(f"{where or cls.__name__}: {' '.join(str(error).split())}") from None


def unknown_key(key: str, known: Iterable[str], prefix: str = "", kind: str = "", name: str = ANY) -> ConfigError:
    """Returns the error for a key that a table does not have: it says the new name of an old key, or that it was
    removed, else the nearest one."""
    if is_removed(kind, name, key):
        return ConfigError(f"{prefix}{key} is no longer a key: delete its line")
    if new := new_key(kind, name, key):
        return ConfigError(f"{prefix}{key} is now {prefix}{new}: rename it")
    return ConfigError(f"unknown key '{prefix}{key}': {nearest(key, known) if known else 'it takes none'}")


def _hints(cls: Any, where: str) -> dict[str, Any]:
    try:
        return _read_hints(cls)
    except Exception as error:  # evaluates what the class's author wrote
        raise ConfigError(
            f"{where or cls.__name__}: a type hint of {cls.__name__} cannot be read "
            f"({type(error).__name__}: {error}): import what it names at the top of its module"
        ) from None


def _hints_or_none(cls: type) -> dict[str, Any]:
    """Returns the type hints of a class; none where they cannot be read."""
    try:
        return _read_hints(cls)
    except Exception:  # evaluates what the class's author wrote, of which whoever builds the class says so
        return {}


@cache
def _read_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _with_name(f: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    """Returns a component's table with a name: one without it means the field's default component, with other
    values."""
    kinds = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Kind)]
    factory = f.default_factory
    if factory is not dataclasses.MISSING and kinds and isinstance(value, Mapping) and "name" not in value:
        return {"name": as_toml(factory(), component=True).get("name"), **value}
    return value


def as_toml(value: Any, component: bool = False) -> Any:
    """Returns a value as TOML can hold it. A component's table has its name, "module:Class" where its class is not
    registered: so of the value, where it is a `component`, and of fields that are annotated as components."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls, hints = type(value), _hints_or_none(type(value))
        names = [f.name for f in dataclasses.fields(value) if f.init and not f.name.startswith("_")]
        table = {name: as_toml(getattr(value, name), _of_component(hints.get(name))) for name in names}
        table = {key: item for key, item in table.items() if item is not None}
        name = registered_name(cls) or (f"{cls.__module__}:{cls.__qualname__}" if component else "")
        return {"name": name, **table} if name else table
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: as_toml(item, component) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_toml(item, component) for item in value]
    return value


def _of_component(hint: Any) -> bool:
    """Returns whether the values of a field are components, or arrays or tables of them."""
    marks = getattr(hint, "__metadata__", ())
    return any(isinstance(one, Kind) for one in marks) or any(map(_of_component, typing.get_args(hint)))


def convert(hint: Any, value: Any, where: str) -> Built:
    """Returns a TOML value as its annotation asks for it. Raises ConfigError with one sentence: the value, and what was
    expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        kinds = [a for a in arguments[1:] if isinstance(a, Kind)]
        if kinds:
            return _components(arguments[0], kinds[0].name, value, where)
        built = convert(arguments[0], value, where)
        for rule in arguments[1:]:
            if isinstance(rule, (Range, Text)) and not rule.holds(built.value):
                raise _wrong(where, value, rule.expected(arguments[0]))
        return built
    if origin in (Union, types.UnionType):
        return _union(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{where} = {shown(value)}: {nearest(shown(value), map(str, arguments))}")
        return Built(value, value)
    if origin in (tuple, list, Sequence) or hint in (tuple, list):
        return _sequence(arguments, value, where)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(where, value, "a table")
        hint = arguments[1] if len(arguments) == 2 else Any
        items = {key: convert(hint, item, f"{where}.{key}") for key, item in value.items()}
        return Built({key: item.value for key, item in items.items()}, {key: i.table for key, i in items.items()})
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong(where, value, f"a table with the keys of {getattr(hint, '__name__', hint)}")
        return construct(hint, value, where)
    return _scalar(hint, value, where)


def _components(hint: Any, kind: str, value: Any, where: str) -> Built:
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _wrong(where, value, "an array of tables")
        built = [build(kind, item, f"{where}.{number}") for number, item in enumerate(value)]
        return Built(tuple(b.value for b in built), [b.table for b in built])
    return build(kind, value, where)


def _union(options: Sequence[Any], value: Any, where: str) -> Built:
    if value is None and type(None) in options:
        return Built(None, None)
    failure: ConfigError | None = None
    for option in options:
        if option is type(None):
            continue
        try:
            return convert(option, value, where)
        except ConfigError as error:
            failure = failure or error
    raise failure or _wrong(where, value, "another type")


def _sequence(arguments: Sequence[Any], value: Any, where: str) -> Built:
    if not isinstance(value, (list, tuple)):
        raise _wrong(where, value, "an array")
    hints = list(arguments)
    if len(hints) < 2 or hints[-1] is Ellipsis:
        hints = [hints[0] if hints else Any] * len(value)
    if len(hints) != len(value):
        raise _wrong(where, value, f"an array of {len(hints)}")
    built = [convert(hint, item, f"{where}.{n}") for n, (hint, item) in enumerate(zip(hints, value, strict=True))]
    return Built(tuple(b.value for b in built), [b.table for b in built])


def _scalar(hint: Any, value: Any, where: str) -> Built:
    if isinstance(hint, type) and issubclass(hint, Enum):
        allowed = [member.value for member in hint]
        if value not in allowed:
            raise ConfigError(f"{where} = {shown(value)}: {nearest(shown(value), map(str, allowed))}")
        return Built(hint(value), value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = _float(value, where)
    if hint is not Any and not _fits(hint, value):
        raise _wrong(where, value, type_in_words(hint))
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(where, value, "a finite number")
    if isinstance(value, float) and abs(value) > LARGEST:
        raise _wrong(where, value, f"a number between -{LARGEST:g} and {LARGEST:g}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _wrong(where, value, "a whole number that 64 bits can hold")
    return Built(value, as_toml(value))


def _fits(hint: Any, value: Any) -> bool:
    return isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _wrong(where, value, "a number that a float can hold") from None


def _wrong(where: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{where} = {shown(masked_value(where, value))}: expected {expected}")


def shown(value: Any) -> str:
    """Returns the value as text for a message, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python prints, or the user's own __repr__
        return "a huge number" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
