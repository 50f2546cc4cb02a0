"""Configuration as text: TOML, one parent by `extends`, dotted overrides, and where every value came from."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tomli_w

from sojourn.config.old_keys import upgraded
from sojourn.config.registry import PATH, Text, convert, nearest, shown
from sojourn.errors import ConfigError
from sojourn.files import read_text
from sojourn.secrets import MASK, looks_secret, masked_table, masked_value

PARENT = "extends"  # the key of a file that names the file, or the run folder, it is laid over
OVERRIDE = "command line"  # the origin of what was given there
COMMAND_LINE = math.inf  # its age: newer than any file
VERSIONS = "versions.json"  # the file beside a config.toml which tells that a run recorded it
DEEPEST = 50  # tables and arrays in each other; what is deeper is no config, and would exhaust the stack
LARGEST = 1 << 20  # characters of a config
VALUES = 20_000  # of a config, each item of an array counted


class UnfitError(ValueError):
    """TOML that is no config: too large, or nested too deeply."""


@dataclass
class Tables:
    """Merged tables, and the origin of each leaf by its dotted path."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    _files: list[str] = field(default_factory=list)  # what was laid over what, oldest first
    _given: set[str] = field(default_factory=set)  # the leaves that overrides gave, stages by their number

    def merge(self, other: Mapping[str, Any], origin: str) -> None:
        """Lays another config over this one, leaf by leaf; a table with another `name` replaces its predecessor."""
        self._files.append(origin)
        self._merge(self.data, other, "", origin)

    def _merge(self, into: dict[str, Any], other: Mapping[str, Any], where: str, origin: str) -> None:
        for key, value in other.items():
            path = f"{where}{key}"
            old = into.get(key)
            if (
                isinstance(value, Mapping)
                and isinstance(old, dict)
                and value.get("name", old.get("name")) == old.get("name")
            ):
                self._merge(old, value, f"{path}.", origin)
                continue
            if key in into:
                for stale, _ in leaves(old, path):
                    self.origins.pop(stale, None)
            into[key] = _copy(value)
            for leaf, item in leaves(value, path):
                refuse_key(leaf, item)
                self.origins[leaf] = origin

    def override(self, text: str) -> None:
        """Applies `a.b.c=value`; the value is read as TOML, else as plain text. `stages.<name>.` finds a stage."""
        path, raw = _split(text)
        here, keys = self._find(path)
        value, place = _value(raw, path), ".".join(map(str, keys))
        for leaf, item in leaves(value, path):
            refuse_key(leaf, item)
        self._once(path, place, value)
        here[keys[-1]] = value
        for stale in [p for p in self.origins if p == place or p.startswith(f"{place}.")]:
            del self.origins[stale]
        self.origins |= {leaf: OVERRIDE for leaf, _ in leaves(value, place)}

    def origin(self, path: str) -> str:
        """Where the newest value at the path or below it came from; empty where nothing says so."""
        found = {origin for leaf, origin in self.origins.items() if leaf == path or leaf.startswith(f"{path}.")}
        return max(found, key=self._age, default="")

    def age(self, path: str) -> float:
        """The number of the file that gave the newest value at the path, `COMMAND_LINE` if that did; else -1."""
        return self._age(self.origin(path))

    def _age(self, origin: str) -> float:
        return COMMAND_LINE if origin == OVERRIDE else self._files.index(origin) if origin in self._files else -1

    def _find(self, path: str) -> _Spot:
        """Where a dotted path leads, through tables that are made on the way."""
        keys, place = path.split("."), []
        here: Any = self.data
        for depth, key in enumerate(keys):
            if depth:
                here = here[place[-1]] if isinstance(here, list) else here.setdefault(place[-1], {})
            if not isinstance(here, (dict, list)):
                where = ".".join(keys[:depth])
                raise ConfigError(
                    f"override '{where}': it is the value {shown(masked_value(where, here))}, not a table"
                )
            place.append(_index(here, key, path) if isinstance(here, list) else key)
        return _Spot(here, place)

    def _once(self, path: str, place: str, value: Any) -> None:
        """Refuses a value that an earlier override gave already: one of the two was meant for something else."""
        if any(p == place or p.startswith(f"{place}.") for p in self._given):
            raise ConfigError(
                f"override '{path}': this value is given twice (--split and --greedy count): give it once"
            )
        self._given |= {leaf for leaf, _ in leaves(value, place)}


class _Spot(NamedTuple):
    here: Any  # the table or array
    place: list[str | int]  # the keys that lead there and on to the value


def _split(text: str) -> list[str]:
    """The dotted path and the raw value of an override."""
    path, equals, raw = (part.strip() for part in text.partition("="))
    if not equals or not path or path.count(".") >= DEEPEST:
        raise ConfigError(f"override '{text}': expected key=value, such as stages.rl.optim.lr=3e-6")
    if path.partition(".")[0] == PARENT:
        raise ConfigError(f"override '{text}': only a file extends another: write it into the file")
    return [path, raw]


def _index(items: list[Any], key: str, path: str) -> int:
    """The number of the item that has the number or the name."""
    numbers = {str(item["name"]): n for n, item in enumerate(items) if isinstance(item, dict) and "name" in item}
    numbers |= {str(number): number for number in range(len(items))}
    if key not in numbers:
        raise ConfigError(f"override '{path}': no '{key}' in the array; {nearest(key, numbers)}")
    return numbers[key]


def _value(raw: str, path: str) -> Any:
    """The value as TOML, else as plain text."""
    try:
        return parsed(f"value = {raw}")["value"]
    except UnfitError as error:
        raise ConfigError(f"override '{path}': {error}") from None
    except ValueError:
        return raw


def parsed(text: str) -> dict[str, Any]:
    """TOML text as tables. Raises ValueError for what is no TOML, UnfitError for what is no config all the same."""
    if len(text) > LARGEST:
        raise UnfitError(f"it holds {len(text):,} characters: expected at most {LARGEST:,}")
    deep = f"it is nested too deeply: expected at most {DEEPEST} tables and arrays in each other"
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise UnfitError(deep) from None
    layer: list[Any] = [tables]
    count = 0
    for _ in range(DEEPEST):
        layer = [inner for item in layer for inner in (item.values() if isinstance(item, dict) else item)]
        count += len(layer)
        layer = [inner for inner in layer if isinstance(inner, (dict, list))]
    if layer:
        raise UnfitError(deep)
    if count > VALUES:
        raise UnfitError(f"it holds {count:,} values: expected at most {VALUES:,}")
    return tables


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf below a value with its dotted path; an array of plain values is one leaf."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}.{number}")
    else:
        yield path, value


def refuse_key(path: str, value: Any) -> None:
    """Refuses a value that looks like a key, which would be in every record of the run, and one that was masked."""
    if MASK in str(value):
        raise ConfigError(f'{path} was masked when it was recorded: write "${{NAME}}", the name of a variable, instead')
    if looks_secret(path, value):
        name = path.rpartition(".")[2]
        variable = "MY_KEY" if name.isdigit() else re.sub(r"\W", "_", name).upper()
        raise ConfigError(
            f"{path} holds what looks like a key, and a config is recorded and shown: put the key into an environment "
            f'variable, and write "${{{variable}}}" in its place where the field takes one (headers, environment and '
            "url of a world), or have the component read it from there itself"
        )


def refuse_unused(shared: Mapping[str, Any], stages: Sequence[Tables], names: Sequence[str], tables: Tables) -> None:
    """Refuses a key for all stages that the stages' own keep from its use: one of the command line that any stage keeps
    out, unless it was overridden there as well, and one of a file that every stage keeps out, unless by a file that was
    laid over this one."""
    found = [_values(stage.data) for stage in stages]
    for path, value in _values(shared).items():
        missed = [n for n, values in enumerate(found) if [values.get(path)] != [value]]  # in a list, nan is itself
        if value == {} or not missed:
            continue
        age = tables.age(path)
        given = age == COMMAND_LINE
        ages = {number: tables.age(f"stages.{number}.{path}") for number in missed}
        kept = [number for number in missed if (ages[number] < age if given else ages[number] <= age)]
        unused = len(missed) == len(stages) and (given or kept == missed)
        if unused or (given and kept):
            raise ConfigError(_unused(path, value, tables, [names[n] for n in (missed if unused else kept)]))


def _values(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by dotted path; an array is one value."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{prefix}{key}"
        found |= _values(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return found


def _unused(path: str, value: Any, tables: Tables, kept: Sequence[str]) -> str:
    whose = "every stage" if len(kept) == len(tables.data.get("stages", kept)) else f"the stage {' and '.join(kept)}"
    ways = " or ".join(f"stages.{name}.{path}" for name in kept)
    return f"{path} = {shown(value)} ({tables.origin(path)}) would change nothing where {whose} has its own: say {ways}"


def read(path: Path, overrides: Sequence[str] = ()) -> Tables:
    """The tables of a TOML file (or of a run folder's config.toml), over its parent, under the overrides."""
    tables = Tables()
    for file in _family(path):
        tables.merge(file.content, str(file.path))
    for text in overrides:
        tables.override(text)
    return tables


class _File(NamedTuple):
    path: Path
    content: dict[str, Any]


def _family(path: Path) -> list[_File]:
    """The file and its ancestors, oldest first, each read once."""
    line: list[_File] = []
    seen: set[Path] = set()
    here: Path | None = path
    while here is not None:
        here = here / "config.toml" if here.is_dir() else here
        content = _load(here)
        if here.resolve() in seen:
            raise ConfigError(f"{here} extends itself, through {' -> '.join(str(file.path) for file in line)}")
        seen.add(here.resolve())
        parent = content.pop(PARENT, None)
        line.append(_File(here, content))
        here = None if parent is None else here.parent / _parent(parent, here)
    return line[::-1]


def _parent(value: Any, path: Path) -> str:
    return convert(Annotated[str, Text(PATH, "the path of a recipe")], value, f"{path}: {PARENT}").value


def _load(path: Path) -> dict[str, Any]:
    try:
        tables = parsed(read_text(path, 4 * LARGEST, "utf-8-sig"))
        return upgraded(tables) if path.name == "config.toml" and (path.parent / VERSIONS).is_file() else tables
    except FileNotFoundError:
        raise ConfigError(f"no config file at '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read '{path}': {error}") from None
    except UnfitError as error:
        raise ConfigError(f"'{path}' cannot be used: {error}") from None
    except ValueError as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}") from None


def dump(table: Mapping[str, Any]) -> str:
    """TOML text that `read` gives back as the same tables; what looks like a key is masked."""
    return tomli_w.dumps(masked_table(table))
