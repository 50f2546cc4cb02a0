"""Names to components, and tables to values: every key of a config is used or refused.

A component's config is its own dataclass: `build("loss", {"name": "ppo", "clip_low": 0.2})` finds `PPO`, checks each
key against its fields (nearest match in the message) and each value against the field's annotation.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import re
import traceback
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Union

from sojourn.config import plugins
from sojourn.config.components import COMPONENTS, MEMBERS, PLAIN_CLASS
from sojourn.config.old_keys import ANY, new_key
from sojourn.errors import ConfigError, MissingExtraError, SojournError, raised_at, told
from sojourn.secrets import masked_value


class Kind(NamedTuple):
    """Marks a field as a component of a kind: `estimator: Annotated[Estimator, Kind("estimator")]`."""

    name: str


class Range(NamedTuple):
    """Bounds of a number, kept where a config says it: `rank: Annotated[int, Range(1)]`."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def expected(self, hint: Any) -> str:
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        bounds = " and ".join(f"{word} {bound}" for word, bound in words.items() if math.isfinite(bound))
        return f"{_word(hint)} {'of ' if bounds.startswith('at') else ''}{bounds}"


class Text(NamedTuple):
    """A rule for texts of a config: a pattern for all of one, and its description."""

    pattern: str
    description: str

    def holds(self, value: Any) -> bool:
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None

    def expected(self, hint: Any) -> str:
        return self.description


LARGEST = 3e38  # what is computed in 32 bits becomes infinite soon after
PATH = r"[^\0]*[^\0\s][^\0]*"
SOME = Text(r"[^\0]*[^\0\s][^\0]*", "a text that is not empty")
STRING = Text(r"(?s).+", "a text of at least one character")
MORE = {"env": "sojourn-worlds"}  # the distribution that more components of a kind come from
LONGEST = 80  # characters of a value in a message
FOLDER = Text(PATH, "the path of a folder")


class Built(NamedTuple):
    """A value, and the complete table that makes it again, defaults included."""

    value: Any
    table: Any


def nearest(word: str, words: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of the words, else all of them."""
    words = sorted(words)
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean '{close[0]}'?" if close else f"use one of {', '.join(words)}"


def names(kind: str) -> list[str]:
    """Returns the names of a kind: Sojourn's own in their order, then those that other distributions register."""
    own = COMPONENTS[kind]
    more = plugins.plugins().get(kind, {})
    if taken := [found[0] for name, found in more.items() if name in own]:
        who = f"the distribution '{taken[0].distribution}' registers the {kind} '{taken[0].name}'"
        raise ConfigError(f"{who}, which is the name of one of Sojourn's own: rename it there, or uninstall it")
    return [*own, *more]


def find(kind: str, name: str) -> Any:
    """The class behind a registered name, or behind "module:attr" of the user's own."""
    what, target = f"{kind} '{name}'", COMPONENTS[kind].get(name, name if ":" in name else "")
    if not target:
        plugin = _plugin(kind, name)
        what, target = f"{what} of the distribution '{plugin.distribution}'", plugin.target
    module_name, _, attribute = target.partition(":")
    if not attribute or not all(module_name.split(".")):
        found = "" if target == name else f" is registered as '{target}'"
        raise ConfigError(f"{what}{found}: expected 'module:Class', such as 'my_package.mine:Mine'")
    module = _imported(module_name, what)
    if not hasattr(module, attribute):
        raise ConfigError(f"{what}: module '{module_name}' has no '{attribute}'")
    return getattr(module, attribute)


def _plugin(kind: str, name: str) -> plugins.Plugin:
    """The one component that other distributions register by a name."""
    found = plugins.plugins().get(kind, {}).get(name, ())
    if len(found) > 1:
        who = " and ".join(f"'{plugin.distribution}' ({plugin.target})" for plugin in found)
        raise ConfigError(
            f"{kind} '{name}' is registered by {who}: uninstall one of these distributions, or name the class that "
            "you mean as 'module:Class'"
        )
    if found:
        return found[0]
    more = MORE.get(kind, "")
    hint = f"; more come with: pip install {more}" if more and more not in plugins.distributions() else ""
    raise ConfigError(f"unknown {kind} '{name}': {nearest(name, names(kind))} (or your own 'module:Class'{hint})")


def named(path: str, where: str) -> Any:
    """Returns what "module:name" names; `where` is the key of the config, for the message when it names nothing."""
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f'{where} = "{path}" cannot be imported ({told(error)}): write "module:name"') from error
    return found


def _imported(module: str, what: str) -> Any:
    """The module; ConfigError for whatever its own code raises, a call of sys.exit included."""
    try:
        return importlib.import_module(module)
    except SojournError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None:
            raise ConfigError(f"{what}: importing '{module}' raises {_told(error)}: mend it first") from error
        if module == missing or module.startswith(f"{missing}."):
            raise ConfigError(f"{what}: no module '{missing}' to import: is it on the Python path?") from None
        needs = f"{what} needs the package '{missing}', which is not installed: pip install {missing}"
        raise MissingExtraError(needs) from None


def _told(error: BaseException) -> str:
    """The exception in one line, with the file and line it came from."""
    frame: Any = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, SyntaxError) and error.filename:
        frame = error
    message = " ".join(str(getattr(frame, "msg", error)).split())
    return f"{type(error).__name__}: {message} ({frame.filename}:{frame.lineno})"


def build(kind: str, table: Mapping[str, Any], where: str = "") -> Built:
    """The component of a kind that a table `{name = ..., fields}` describes."""
    where = where or kind
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} = {shown(table)}: expected a table with a 'name', such as {{name = '...'}}")
    if "name" not in table:
        raise ConfigError(f"{where} has no 'name': {nearest('', names(kind))}")
    name = table["name"]
    if not isinstance(name, str):
        raise _wrong(f"{where}.name", name, _word(str))
    with own_code(f"{where} = {shown(name)}"):
        cls = find(kind, name)
        fields = {key: value for key, value in table.items() if key != "name"}
        made = (
            _family(cls, fields, where)
            if kind == "env" and is_plain(cls)
            else construct(cls, fields, where, kind, name)
        )
        _refuse_misfit(kind, made.value)
    return Built(made.value, {"name": name, **made.table})


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Tells of whatever the user's own code raises, but Ctrl-C, in one sentence that says where."""
    try:
        yield
    except (SojournError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not raised_at(error):
            raise
        raise ConfigError(f"{what}: your code raises {told(error)}: mend it first") from error


def is_plain(cls: Any) -> bool:
    """Returns whether it is a plain class, whose methods are an agent's tools, and no world with a field `reward`."""
    return isinstance(cls, type) and callable(getattr(cls, "reward", None))


def _family(cls: Any, fields: Mapping[str, Any], where: str) -> Built:
    """The world of a plain class; what is not for the world itself is for the class, which has its own checks."""
    as_family = named(PLAIN_CLASS, where)
    size = Annotated[int, Range(1)]
    for key, value in fields.items():
        convert(size if key in ("train", "test") else Any, value, f"{where}.{key}")
    return Built(as_family(cls, **fields), dict(fields))


def _refuse_misfit(kind: str, value: Any) -> None:
    """Refuses a component of another kind: it would fail where it is first used."""
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
    """A dataclass from a table, strictly; the table that comes back has the defaults filled in. `kind` and `name` are
    those of `config.old_keys`; by default, the kind is the last key of the path `where`."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ConfigError(f"{where}: {cls!r} is not a dataclass, so it cannot take a config")
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")}
    prefix = f"{where}." if where else ""
    kind = kind or next((key for key in reversed(where.split(".")) if not key.isdigit()), "")
    for key in table:
        if key not in fields:
            raise unknown_key(key, fields, prefix, kind, name)
    hints = _hints(cls, where)
    values, complete = {}, {}
    for name, f in fields.items():
        if name in table:
            built = convert(hints[name], _named(f, hints[name], table[name]), f"{prefix}{name}")
        elif f.default is not dataclasses.MISSING:
            built = Built(f.default, plain(f.default))
        elif f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
            built = Built(default, plain(default))
        else:
            raise ConfigError(f"'{prefix}{name}' is missing: {cls.__name__} needs it")
        values[name] = built.value
        if built.table is not None:
            complete[name] = built.table
    try:
        return Built(cls(**values), complete)
    except ValueError as error:
        raise ConfigError(f"{where or cls.__name__}: {' '.join(str(error).split())}") from None


def unknown_key(key: str, known: Iterable[str], prefix: str = "", kind: str = "", name: str = ANY) -> ConfigError:
    """The error for a key that a table does not have: it says the new name of an old one, else the nearest match."""
    if new := new_key(kind, name, key):
        return ConfigError(f"{prefix}{key} is now {prefix}{new}: rename it")
    return ConfigError(f"unknown key '{prefix}{key}': {nearest(key, known) if known else 'it takes none'}")


def _hints(cls: Any, where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception as error:  # evaluates what the class's author wrote
        raise ConfigError(
            f"{where or cls.__name__}: a type hint of {cls.__name__} cannot be read "
            f"({type(error).__name__}: {error}): import what it names at the top of its module"
        ) from None


def _named(f: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    """A component's table that says no name means the field's default component, with other values."""
    kinds = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Kind)]
    factory = f.default_factory
    if factory is not dataclasses.MISSING and kinds and isinstance(value, Mapping) and "name" not in value:
        return {"name": plain(factory()).get("name"), **value}
    return value


def plain(value: Any) -> Any:
    """A config value as TOML can hold it; components must have been given as tables to be written back by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        table = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        table = {key: item for key, item in table.items() if item is not None}
        name = _registered_name(type(value))
        return {"name": name, **table} if name else table
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _registered_name(cls: type) -> str:
    """The name that a class is registered by; empty where it is by none."""
    target = f"{cls.__module__}:{cls.__qualname__}"
    if plugins.top_level(target) == "sojourn":
        return next((name for known in COMPONENTS.values() for name, path in known.items() if path == target), "")
    known = plugins.plugins().values()
    return next((name for kind in known for name, found in kind.items() if found[0].target == target), "")


def convert(hint: Any, value: Any, where: str) -> Built:
    """A TOML value as the annotation asks for it, or one sentence that says what was expected."""
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
        raise _wrong(where, value, _word(hint))
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(where, value, "a finite number")
    if isinstance(value, float) and abs(value) > LARGEST:
        raise _wrong(where, value, f"a number between -{LARGEST:g} and {LARGEST:g}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _wrong(where, value, "a whole number that 64 bits can hold")
    return Built(value, plain(value))


def _fits(hint: Any, value: Any) -> bool:
    return isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _wrong(where, value, "a number that a float can hold") from None


def _word(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}
    return words.get(hint, str(getattr(hint, "__name__", hint)))


def _wrong(where: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{where} = {shown(masked_value(where, value))}: expected {expected}")


def shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python prints, or the user's own __repr__
        return "a huge number" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
