"""Configuration as text: TOML, one parent by `extends`, dotted overrides, and where every value came from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from sojourn.errors import ConfigError
from sojourn.registry import nearest


@dataclass
class Tables:
    """Merged tables, and the origin of each leaf by its dotted path."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def merge(self, other: Mapping[str, Any], origin: str) -> None:
        """Lays another config over this one, leaf by leaf; a table with another `name` replaces its predecessor."""
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
            into[key] = _copy(value)
            for stale in [p for p in self.origins if p == path or p.startswith(f"{path}.")]:
                del self.origins[stale]
            for leaf, _ in leaves(value, path):
                self.origins[leaf] = origin

    def override(self, text: str) -> None:
        """Applies `a.b.c=value`; the value is read as TOML, else as plain text. `stages.<name>.` finds a stage."""
        path, equals, raw = text.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"override '{text}': expected key=value, such as stages.rl.optim.lr=3e-6")
        keys = path.strip().split(".")
        here: Any = self.data
        for depth, key in enumerate(keys[:-1]):
            here = self._enter(here, key, ".".join(keys[: depth + 1]))
        value = _value(raw)
        here[_index(here, keys[-1], path) if isinstance(here, list) else keys[-1]] = value
        whole = path.strip()
        for stale in [p for p in self.origins if p == whole or p.startswith(f"{whole}.")]:
            del self.origins[stale]
        self.origins |= {leaf: "command line" for leaf, _ in leaves(value, whole)}

    def _enter(self, here: Any, key: str, path: str) -> Any:
        if isinstance(here, list):
            return here[_index(here, key, path)]
        inner = here.setdefault(key, {})
        if not isinstance(inner, (dict, list)):
            raise ConfigError(f"override '{path}': '{key}' is the value {inner!r}, not a table")
        return inner


def _index(items: list[Any], key: str, path: str) -> int:
    if key.isdigit() and int(key) < len(items):
        return int(key)
    names = [str(item.get("name")) for item in items if isinstance(item, dict)]
    if key in names:
        return names.index(key)
    raise ConfigError(f"override '{path}': no '{key}' in the array; {nearest(key, names)}")


def _value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw.strip()


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


def read(path: Path, overrides: Sequence[str] = ()) -> Tables:
    """The tables of a TOML file (or of a run folder's config.toml), over its parent, under the overrides."""
    tables = Tables()
    for file in _family(path):
        content = _load(file)
        content.pop("extends", None)
        tables.merge(content, str(file))
    for text in overrides:
        tables.override(text)
    return tables


def _family(path: Path) -> list[Path]:
    """The file and its ancestors, oldest first."""
    line: list[Path] = []
    here: Path | None = path / "config.toml" if path.is_dir() else path
    while here is not None:
        if here.resolve() in [p.resolve() for p in line]:
            raise ConfigError(f"{here} extends itself, through {' -> '.join(map(str, line))}")
        line.append(here)
        parent = _load(here).get("extends")
        here = here.parent / str(parent) if parent is not None else None
    return line[::-1]


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config file at '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read '{path}': {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}") from None


def dump(table: Mapping[str, Any]) -> str:
    """TOML text that `read` gives back as the same tables."""
    return tomli_w.dumps(dict(table))
