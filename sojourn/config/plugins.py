"""Finds the components that other distributions register, as entry points of the group `sojourn.<kind>`.

    [project.entry-points."sojourn.env"]
    maze = "my_worlds.maze:Maze"

Reading them opens a file of every installed distribution, so it is done once, and only where a name needs it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

GROUP = "sojourn."


class Plugin(NamedTuple):
    """A component that another distribution registers; `target` is "module:Class"."""

    name: str
    target: str
    distribution: str
    version: str

    @property
    def package(self) -> str:
        """Returns the top-level package that defines it."""
        return top_level(self.target)


@cache
def plugins() -> Mapping[str, Mapping[str, tuple[Plugin, ...]]]:
    """Returns the registered components by kind and by name, in alphabetical order; a name has several plugins where
    several distributions register it."""
    from importlib import metadata  # slow to import

    owners: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        if f"[{GROUP}" in (distribution.read_text("entry_points.txt") or ""):
            owners.setdefault(distribution.name, distribution)  # the first on the path is what is imported
    found: list[tuple[str, Plugin]] = []  # with the group
    for owner, distribution in owners.items():
        version = distribution.version  # which parses the distribution's metadata
        for point in distribution.entry_points:
            if point.group.startswith(GROUP):
                target = point.value.partition("[")[0].strip()
                found.append((point.group, Plugin(point.name, target, owner, version)))
    registered: dict[str, dict[str, tuple[Plugin, ...]]] = {}
    for group, plugin in sorted(found, key=lambda pair: (pair[1].name, pair[1].distribution)):
        names = registered.setdefault(group.removeprefix(GROUP), {})
        names[plugin.name] = (*names.get(plugin.name, ()), plugin)
    return registered


@cache
def distributions() -> Mapping[str, str]:
    """Returns the version of each distribution that registers components, by its name."""
    return dict(sorted((plugin.distribution, plugin.version) for plugin in _all()))


@cache
def folders() -> tuple[Path, ...]:
    """Returns the folders, or single files, of the top-level packages that define registered components."""
    paths: list[Path] = []
    for package in sorted({plugin.package for plugin in _all()}):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):  # it cannot be imported: `lookup.find` raises an error that says so
            continue
        if spec is not None:
            single = [spec.origin] if spec.origin else []
            paths += [Path(place).resolve() for place in spec.submodule_search_locations or single]
    return tuple(paths)


@cache
def distribution_of(module: str) -> str:
    """Returns the distribution that a module was installed with; empty where there is none."""
    package = top_level(module)
    registered = {plugin.package: plugin.distribution for plugin in _all()}
    if package in registered:
        return registered[package]
    from importlib import metadata

    return next(iter(metadata.packages_distributions().get(package, ())), "")


def top_level(module: str) -> str:
    """Returns the top-level package of a module, or of a "module:Class"."""
    return module.partition(":")[0].partition(".")[0]


def _all() -> list[Plugin]:
    return [plugin for names in plugins().values() for several in names.values() for plugin in several]
