"""Describes a world for `sojourn envs` and its page; imports what a world needs, or says how to install it."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.errors import MissingExtraError


@dataclass(frozen=True, kw_only=True)
class About:
    """Facts of a world that need no measurement; a family has them as its class attribute `about`.

    `source` says where the dynamics and the data come from, with the citation. `licence` is that of the code and data
    used, as an SPDX expression where there is one. `extra` names the extra of the world's distribution that installs
    what the world needs; it is empty where nothing is needed. `programs` maps each program that the system must have to
    its Debian package. `seats` says how many agents play. `modalities` lists what observations are made of.
    `smallest` holds the fields that make the world as small as possible, for smoke tests. `text_actions` are actions
    that put a text of the agent's into the world, with {} in its place, such as "type {}"; `submit_actions` are actions
    that hand in what was written, such as "press Enter". Attacks (`sojourn check --attack`) use both, beside the
    actions that they find by themselves.
    """

    source: str
    licence: str
    extra: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    seats: str = "1"
    modalities: tuple[str, ...] = ("text",)
    smallest: Mapping[str, object] = field(default_factory=dict)
    text_actions: tuple[str, ...] = ()
    submit_actions: tuple[str, ...] = ()


@runtime_checkable
class HasAbout(Ability, Protocol):
    """A world, or a class of worlds, that says what it is."""

    @property
    def about(self) -> About: ...


def about_of(world: object) -> About | None:
    """Returns what a world, or a class of worlds, says of itself; None where it says nothing."""
    return world.about if isinstance(world, HasAbout) else None


def require_module(module: str, requirement: str, world: str) -> ModuleType:
    """Imports and returns a module. Where it is missing, raises `MissingExtraError` with one sentence that names the
    `requirement` to install, such as "sojourn-worlds[miniwob]"."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{world} needs the package '{module.partition('.')[0]}' ({error}): pip install '{requirement}'"
        ) from error


def require_program(program: str, package: str, world: str) -> str:
    """Returns the path of a program of the system. Where it is missing, raises `MissingExtraError` with one sentence
    that names the Debian `package` to install."""
    path = shutil.which(program)
    if path is None:
        raise MissingExtraError(
            f"{world} needs the program '{program}': install it (Debian: apt-get install {package})"
        )
    return path
