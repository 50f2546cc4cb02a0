"""What a world says of itself, for `sojourn envs` and its page, and how it asks for what it needs."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

from sojourn.errors import MissingExtraError


@dataclass(frozen=True, kw_only=True)
class About:
    """Facts of a world that nobody has to measure; a family has them as its class attribute `about`.

    `source`: where dynamics and data come from, with citation. `licence`: of the code and data that are used, as an
    SPDX expression where there is one. `extra`: the extra of its distribution that installs what it needs, empty where
    nothing is. `programs`: what the system must have, from the program to the Debian package it comes in. `seats`: how
    many play. `sees`: what observations are made of. `easy`: fields that make it as small as it gets, for smoke tests.
    `writes`: actions that put a text of the agent's into the world, with {} in its place, such as "type {}"; `submits`:
    actions that hand in what was written, such as "press Enter". Attacks (`sojourn check --attack`) use both beside
    what they find by themselves.
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


def require_module(module: str, requirement: str, world: str) -> ModuleType:
    """The module, imported now; where it is missing, one sentence that names the requirement to install, such as
    "sojourn-worlds[miniwob]"."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{world} needs the package '{module.partition('.')[0]}' ({error}): pip install '{requirement}'"
        ) from error


def require_program(program: str, package: str, world: str) -> str:
    """The path of a program of the system; one sentence with the remedy where it is missing."""
    found = shutil.which(program)
    if found is None:
        raise MissingExtraError(
            f"{world} needs the program '{program}': install it (Debian: apt-get install {package})"
        )
    return found
