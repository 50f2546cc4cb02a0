"""Reads a config: TOML files, one parent by `extends`, and dotted overrides; keeps where every value came from."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import tomli_w

from sojourn.config.fields import PATH, Text
from sojourn.config.lookup import find, nearest
from sojourn.config.old_keys import upgraded
from sojourn.config.registry import convert, shown
from sojourn.errors import ConfigError, UnknownKeyError
from sojourn.files import read_text
from sojourn.secrets import MASK, looks_secret, masked_table, masked_value

T = TypeVar("T")

PARENT = "extends"  # the key that names the file, or the run folder, which a file is laid over
PRESET, PRESETS = "preset:", Path(__file__).parent.parent / "presets"  # published methods, which come with Sojourn
OVERRIDE = "command line"  # the origin of the values that were given there
COMMAND_LINE = math.inf  # the precedence of its values: above that of any file
VERSIONS = "versions.json"  # a config.toml with this file beside it was recorded by a run
MAX_DEPTH = 50  # nested tables and arrays; deeper ones would exhaust the stack
MAX_CHARACTERS = 1 << 20  # characters of a config
MAX_VALUES = 20_000  # of a config; each item of an array counts


class TooLargeError(ValueError):
    """Valid TOML is too large, or nested too deeply, to be a config."""


@dataclass
class Tables:
    """The merged tables of a config, and the origin of each leaf by its dotted path."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    _files: list[str] = field(default_factory=list)  # those that were merged, oldest first
    renamed: dict[str, dict[str, Any]] = field(default_factory=dict)  # the tables that overrides gave another name
    _overridden: set[str] = field(default_factory=set)  # leaves that overrides gave; a stage is named by its number

    def merge(self, other: Mapping[str, Any], origin: str) -> None:
        """Lays another config over this one, leaf by leaf; a table with another `name` replaces its predecessor."""
        self._files.append(origin)
        self._merge(self.data, other, "", origin)

    def _merge(self, into: dict[str, Any], other: Mapping[str, Any], where: str, origin: str) -> None:
        for key, value in other.items():
            path = f"{where}{key}"
            old = into.get(key)
            if isinstance(value, Mapping) and isinstance(old, list):
                self._merge_items(old, value, path, origin)
                continue
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
                refuse_secret(leaf, item)
                self.origins[leaf] = origin

    def _merge_items(self, old: list[Any], items: Mapping[str, Any], path: str, origin: str) -> None:
        """Lays tables over items of an array of the parent, by their names or numbers: `stages.rl.optim.lr = 1e-5`."""
        for key, item in items.items():
            number = _index(old, key, f"{origin}: {path}.{key}")
            if not isinstance(item, Mapping):
                raise ConfigError(
                    f"{origin}: {path}.{key} = {shown(item)}: expected a table of its keys, such as "
                    f"{path}.{key}.steps = 20"
                )
            one = {str(number): old[number]}
            self._merge(one, {str(number): item}, f"{path}.", origin)
            old[number] = one[str(number)]

    def override(self, text: str) -> None:
        """Applies `a.b.c=value`; the value is read as TOML, else as plain text."""
        path, equals, raw = (part.strip() for part in text.partition("="))
        if not equals:
            raise _malformed(text)
        self.set(path, _parsed_value(raw, path), text)

    def set(self, path: str, value: Any, text: str = "") -> None:
        """Sets the value at a dotted path as an override, written as `text`. `stages.<name>.` finds a stage."""
        _check_path(path, text or path)
        container, keys = self._find(path)
        resolved_path = ".".join(map(str, keys))
        for leaf, item in leaves(value, path):
            refuse_secret(leaf, item)
        self._refuse_repeated(path, resolved_path, value)
        if keys[-1] == "name" and isinstance(container, dict) and container.get("name", value) != value:
            self.renamed[path.rpartition(".")[0]] = {**container}
        container[keys[-1]] = value
        for stale in [p for p in self.origins if p == resolved_path or p.startswith(f"{resolved_path}.")]:
            del self.origins[stale]
        self.origins |= {leaf: OVERRIDE for leaf, _ in leaves(value, resolved_path)}

    def origin(self, path: str) -> str:
        """Returns where the newest value at the path, or below it, came from; empty where it is a default."""
        origins = {origin for leaf, origin in self.origins.items() if leaf == path or leaf.startswith(f"{path}.")}
        return max(origins, key=self._precedence, default="")

    def precedence(self, path: str) -> float:
        """Returns the number of the file that gave the value at the path, counted from the oldest; `COMMAND_LINE` where
        an override gave it, -1 where nothing did."""
        return self._precedence(self.origin(path))

    def _precedence(self, origin: str) -> float:
        return COMMAND_LINE if origin == OVERRIDE else self._files.index(origin) if origin in self._files else -1

    def built(self, make: Callable[[], T]) -> T:
        """Returns what `make` builds of these tables. Where an override named another component in place of one that is
        a kind of it, such as the backend torch in place of ray, the keys that only the old one has are left out; of
        other keys that the new one does not take, the error says where they came from."""
        try:
            return make()
        except UnknownKeyError as error:
            for path, old in self.renamed.items():
                if not (error.table == path or error.table.endswith(f".{path}")):
                    continue
                if stale := self._kept(path, old, error.keys):
                    if not self._leave_out(path, old, stale, error.kind):
                        raise self._explained(path, old, stale) from None
                    return self.built(make)
            raise

    def _kept(self, path: str, old: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
        """Returns those of the keys that an override kept of the component before."""
        _, resolved = self._find(f"{path}.name")
        at = ".".join(map(str, resolved[:-1]))
        return [key for key in keys if key in old and self.precedence(f"{at}.{key}") != COMMAND_LINE]

    def _leave_out(self, path: str, old: Mapping[str, Any], keys: Sequence[str], kind: str) -> bool:
        """Takes keys out of a component's table where the one before is a kind of it, and has them."""
        table, resolved = self._find(f"{path}.name")
        before, now = find(kind, old["name"]), find(kind, table["name"])
        if not (isinstance(before, type) and isinstance(now, type) and issubclass(before, now)):
            return False
        if not set(keys) <= {one.name for one in fields(before)}:
            return False
        at = ".".join(map(str, resolved[:-1]))
        for key in keys:
            for leaf, _ in leaves(table.pop(key), f"{at}.{key}"):
                self.origins.pop(leaf, None)
        return True

    def _explained(self, path: str, old: Mapping[str, Any], keys: Sequence[str]) -> ConfigError:
        table, _ = self._find(f"{path}.name")
        new = shown(table["name"])
        return ConfigError(
            f"{path}.name = {new} ({OVERRIDE}) keeps the other keys of {old['name']}, of which {table['name']} has "
            f"no {', '.join(keys)}: {path} = {{name = {new}}} leaves out all keys of before"
        )

    def _find(self, path: str) -> _Location:
        """Follows a dotted path, and makes the tables on the way that are missing."""
        keys, location = path.split("."), []
        here: Any = self.data
        for depth, key in enumerate(keys):
            if depth:
                here = here[location[-1]] if isinstance(here, list) else here.setdefault(location[-1], {})
            if not isinstance(here, (dict, list)):
                where = ".".join(keys[:depth])
                raise ConfigError(
                    f"override '{where}': it is the value {shown(masked_value(where, here))}, not a table"
                )
            location.append(_index(here, key, f"override '{path}'") if isinstance(here, list) else key)
        return _Location(here, location)

    def _refuse_repeated(self, path: str, resolved_path: str, value: Any) -> None:
        """Refuses a value that an earlier override gave already: one of the two was meant for another key."""
        if any(p == resolved_path or p.startswith(f"{resolved_path}.") for p in self._overridden):
            raise ConfigError(f"override '{path}': this value is given twice: give it once")
        self._overridden |= {leaf for leaf, _ in leaves(value, resolved_path)}


class _Location(NamedTuple):
    container: Any  # the table or array that holds the value
    keys: list[str | int]  # the keys that lead to the container and on to the value


def _check_path(path: str, text: str) -> None:
    if not path or path.count(".") >= MAX_DEPTH:
        raise _malformed(text)
    if path.partition(".")[0] == PARENT:
        raise ConfigError(f"override '{text}': only a file extends another: write it into the file")


def _malformed(text: str) -> ConfigError:
    return ConfigError(f"override '{text}': expected key=value, such as stages.rl.optim.lr=3e-6")


def _index(items: list[Any], key: str, where: str) -> int:
    """Returns the index of the item that the key names, by its number or by its name; `where` begins the error."""
    numbers = {str(item["name"]): n for n, item in enumerate(items) if isinstance(item, dict) and "name" in item}
    numbers |= {str(number): number for number in range(len(items))}
    if key not in numbers:
        raise ConfigError(f"{where}: no '{key}' in the array; {nearest(key, numbers)}")
    return numbers[key]


def _parsed_value(raw: str, path: str) -> Any:
    """Returns the value that the text is in TOML, or the text itself where it is no TOML."""
    try:
        tables = parsed(f"value = {raw}")
        return tables["value"] if len(tables) == 1 else raw  # further lines would be lost
    except TooLargeError as error:
        raise ConfigError(f"override '{path}': {error}") from None
    except ValueError:
        return raw


def parsed(text: str) -> dict[str, Any]:
    """Returns the tables of a TOML text. Raises ValueError where it is no TOML, TooLargeError where it is too large or
    nested too deeply to be a config."""
    if len(text) > MAX_CHARACTERS:
        raise TooLargeError(f"it holds {len(text):,} characters: expected at most {MAX_CHARACTERS:,}")
    deep = f"it is nested too deeply: expected at most {MAX_DEPTH} nested tables and arrays"
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise TooLargeError(deep) from None
    layer: list[Any] = [tables]
    count = 0
    for _ in range(MAX_DEPTH):
        layer = [inner for item in layer for inner in (item.values() if isinstance(item, dict) else item)]
        count += len(layer)
        layer = [inner for inner in layer if isinstance(inner, (dict, list))]
    if layer:
        raise TooLargeError(deep)
    if count > MAX_VALUES:
        raise TooLargeError(f"it holds {count:,} values: expected at most {MAX_VALUES:,}")
    return tables


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields every leaf below a value with its dotted path; an array of plain values is one leaf."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}.{number}")
    else:
        yield path, value


def refuse_secret(path: str, value: Any) -> None:
    """Refuses a value that looks like a secret key, which every record of the run would contain, and one that was
    masked when it was recorded."""
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
    """Refuses a key that all stages share, but that changes nothing because stages set it themselves.

    A key of the command line is refused where any stage has its own value, unless that was overridden as well. A key of
    a file is refused where every stage has its own value, unless a file that was laid over this one gave it.
    """
    own = [_values(stage.data) for stage in stages]
    for path, value in _values(shared).items():
        missed = [n for n, values in enumerate(own) if [values.get(path)] != [value]]  # in a list, nan is itself
        if value == {} or not missed:
            continue
        shared_rank = tables.precedence(path)
        overridden = shared_rank == COMMAND_LINE
        ranks = {number: tables.precedence(f"stages.{number}.{path}") for number in missed}
        kept = [n for n in missed if (ranks[n] < shared_rank if overridden else ranks[n] <= shared_rank)]
        unused = len(missed) == len(stages) and (overridden or kept == missed)
        if unused or (overridden and kept):
            raise ConfigError(_unused(path, value, tables, [names[n] for n in (missed if unused else kept)]))


def _values(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of nested tables by dotted path; an array is one value."""
    values: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{prefix}{key}"
        values |= _values(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return values


def _unused(path: str, value: Any, tables: Tables, kept: Sequence[str]) -> str:
    stages = "every stage" if len(kept) == len(tables.data.get("stages", kept)) else f"the stage {' and '.join(kept)}"
    remedy = " or ".join(f"stages.{name}.{path}" for name in kept)
    return (
        f"{path} = {shown(value)} ({tables.origin(path)}) would change nothing where {stages} has its own: set {remedy}"
    )


def read(path: Path, overrides: Sequence[str] = ()) -> Tables:
    """Returns the tables of a TOML file (or of a run folder's config.toml), laid over its parent, with the
    overrides."""
    tables = Tables()
    for file in _with_ancestors(path):
        tables.merge(file.content, str(file.path))
    for text in overrides:
        tables.override(text)
    return tables


class _File(NamedTuple):
    path: Path
    content: dict[str, Any]


def _with_ancestors(path: Path) -> list[_File]:
    """Returns the file and its ancestors, oldest first, each read once."""
    files: list[_File] = []
    seen: set[Path] = set()
    here: Path | None = path
    while here is not None:
        here = here / "config.toml" if here.is_dir() else here
        content = _load(here)
        if here.resolve() in seen:
            raise ConfigError(f"{here} extends itself, through {' -> '.join(str(file.path) for file in files)}")
        seen.add(here.resolve())
        parent = content.pop(PARENT, None)
        files.append(_File(here, content))
        here = None if parent is None else _parent(parent, here)
    return files[::-1]


def _beside(folder: Path) -> str:
    """Returns what can be named instead of a file of this folder, as the end of a sentence."""
    found = sorted(folder.glob("*.toml"))[:1]
    return ": expected a recipe or a run folder" + "".join(f", such as {file}" for file in found)


def _parent(value: Any, path: Path) -> Path:
    """Returns the file that a parent names: a path from the file's own folder, or "preset:name"."""
    where = f"{path}: {PARENT}"
    given = convert(Annotated[str, Text(PATH, "the path of a recipe, or 'preset:' and its name")], value, where).value
    if not given.startswith(PRESET):
        return path.parent / given
    preset = PRESETS / f"{(name := given.removeprefix(PRESET))}.toml"
    known = sorted(file.stem for file in PRESETS.glob("*.toml"))
    if name not in known:
        raise ConfigError(f"{where} = {shown(given)}: there is no such preset: {nearest(name, known)}")
    return preset


def _load(path: Path) -> dict[str, Any]:
    try:
        tables = parsed(read_text(path, 4 * MAX_CHARACTERS, "utf-8-sig"))
        return upgraded(tables) if path.name == "config.toml" and (path.parent / VERSIONS).is_file() else tables
    except FileNotFoundError:
        raise ConfigError(f"no config file at '{path}'{_beside(path.parent)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read '{path}': {error}") from None
    except TooLargeError as error:
        raise ConfigError(f"'{path}' cannot be used: {error}") from None
    except ValueError as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}") from None


def dump(table: Mapping[str, Any]) -> str:
    """Returns the TOML text from which `read` makes the same tables; what looks like a secret key is masked."""
    return tomli_w.dumps(masked_table(table))
