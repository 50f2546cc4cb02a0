"""Finds the class of a component by its kind and its name, and imports what "module:name" names.

A name is one of Sojourn's own, one that another distribution registers, or the user's own "module:Class".
"""

from __future__ import annotations

import difflib
import importlib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sojourn.config import plugins
from sojourn.config.components import COMPONENTS
from sojourn.config.passed import PREFIX, passed
from sojourn.errors import ConfigError, MissingExtraError, SojournError, describe_error, raised_at

MORE_FROM = {"env": "sojourn-worlds"}  # the distribution that more components of a kind come from


def likely(word: str, words: Iterable[str]) -> str:
    """Returns ": did you mean 'x'?" for the closest of the words, to end a sentence with; empty where none is close."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f": did you mean '{close[0]}'?" if close else ""


def nearest(word: str, words: Iterable[str]) -> str:
    """Returns "did you mean 'x'?" for the closest of the words; where none is close, it lists all of them."""
    words = sorted(words)
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean '{close[0]}'?" if close else f"use one of {', '.join(words)}"


def names(kind: str) -> list[str]:
    """Returns the names of a kind: Sojourn's own in their order, then those that other distributions register."""
    ours = COMPONENTS[kind]
    registered = plugins.plugins().get(kind, {})
    if taken := [plugin[0] for name, plugin in registered.items() if name in ours]:
        who = f"the distribution '{taken[0].distribution}' registers the {kind} '{taken[0].name}'"
        raise ConfigError(f"{who}, which is the name of one of Sojourn's own: rename it there, or uninstall it")
    return [*ours, *registered]


def is_registered(kind: str, name: str) -> bool:
    """Returns whether a kind has a component of this name."""
    return name in COMPONENTS[kind] or name in plugins.plugins().get(kind, {})


def find(kind: str, name: str) -> Any:
    """Returns the class behind a registered name, or behind the "module:Class" of the user's own, or an object that was
    passed."""
    if name.startswith(PREFIX):
        return passed(kind, name)
    what, target = f"{kind} '{name}'", COMPONENTS[kind].get(name, name if ":" in name else "")
    if not target:
        plugin = _plugin(kind, name)
        what, target = f"{what} of the distribution '{plugin.distribution}'", plugin.target
    module_name, _, attribute = target.partition(":")
    if not attribute or not all(module_name.split(".")):
        registered_as = "" if target == name else f" is registered as '{target}'"
        raise ConfigError(f"{what}{registered_as}: expected 'module:Class', such as 'my_package.mine:Mine'")
    module = _import_module(module_name, what)
    if not hasattr(module, attribute):
        raise ConfigError(f"{what}: module '{module_name}' has no '{attribute}'")
    return getattr(module, attribute)


def _plugin(kind: str, name: str) -> plugins.Plugin:
    """Returns the one component that other distributions register by a name."""
    candidates = plugins.plugins().get(kind, {}).get(name, ())
    if len(candidates) > 1:
        who = " and ".join(f"'{plugin.distribution}' ({plugin.target})" for plugin in candidates)
        raise ConfigError(
            f"{kind} '{name}' is registered by {who}: uninstall one of these distributions, or name the class that "
            "you mean as 'module:Class'"
        )
    if candidates:
        return candidates[0]
    more = MORE_FROM.get(kind, "")
    hint = f"; more come with: pip install {more}" if more and more not in plugins.distributions() else ""
    raise ConfigError(f"unknown {kind} '{name}': {nearest(name, names(kind))} (or your own 'module:Class'{hint})")


def registered_name(cls: type) -> str:
    """Returns the name that a class is registered by; empty where it is not registered."""
    target = f"{cls.__module__}:{cls.__qualname__}"
    if plugins.top_level(target) == "sojourn":
        return next((name for known in COMPONENTS.values() for name, path in known.items() if path == target), "")
    known = plugins.plugins().values()
    return next(
        (name for kind in known for name, plugins_of_name in kind.items() if plugins_of_name[0].target == target), ""
    )


def import_object(path: str, where: str) -> Any:
    """Returns what "module:name" names; `where` is the key of the config, for the message when it names nothing."""
    module, _, attributes = path.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            value = getattr(value, attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(
            f'{where} = "{path}" cannot be imported ({describe_error(error)}): write "module:name"'
        ) from error
    return value


def _import_module(module: str, what: str) -> Any:
    """Returns the module. Raises ConfigError for whatever its own code raises, a call of sys.exit included."""
    try:
        return importlib.import_module(module)
    except (SojournError, KeyboardInterrupt):
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None:
            raise ConfigError(f"{what}: importing '{module}' raises {_described(error)}: mend it first") from error
        if module == missing or module.startswith(f"{missing}."):
            raise ConfigError(f"{what}: no module '{missing}' to import: is it on the Python path?") from None
        needs = f"{what} needs the package '{missing}', which is not installed: pip install {missing}"
        raise MissingExtraError(needs) from None


def _described(error: BaseException) -> str:
    """Returns the exception in one line, with the file and the line that it came from."""
    frame: Any = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, SyntaxError) and error.filename:
        frame = error
    message = " ".join(str(getattr(frame, "msg", error)).split())
    return f"{type(error).__name__}: {message} ({frame.filename}:{frame.lineno})"


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Turns whatever the user's own code raises inside the block, but Ctrl-C, into a ConfigError of one sentence that
    says where it was raised."""
    try:
        yield
    except (SojournError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not raised_at(error):
            raise
        raise ConfigError(f"{what}: your code raises {describe_error(error)}: mend it first") from error
