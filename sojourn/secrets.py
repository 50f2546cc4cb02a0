"""Recognises secrets, and masks them in everything that is recorded or shown.

A config holds no key: it names the environment variable that does, as `${NAME}`. Two measures keep keys out of records.
First, a config with a value that looks like a key is refused (`sojourn.config`). Second, `masked` and `masked_table`
are applied to everything that is written or shown: they mask values that look like keys, and the values of environment
variables that a config names or whose names say that they hold a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

MASK = "<masked>"
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
MAPS = frozenset({"headers", "environment"})  # tables of a config whose values may be keys under any name
MIN_LENGTH = 8  # of a variable's value that is masked; shorter values, words and paths are not masked

# What a pattern tries at every place is bounded: a client may send megabytes of any character.
_KNOWN = re.compile(  # the prefixes that issuers give their keys
    r"\b(?:(?:sk|pk|rk)[-_][\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[a-z]-[\w-]{10,}|eyJ[\w-]{8,2000}\.[\w-]{8,}(?:\.[\w-]*)?|AIza[\w-]{30,}"
    r"|npm_\w{20,}|pypi-[\w-]{16,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)",
    re.DOTALL,
)
_PLACED = re.compile(  # keys by their position; the named group before the key is kept
    r"(?P<bearer>\b[Bb]earer\s+)(?!\$\{)[\w.~+/=-]{12,}"
    r"|(?P<basic>\b[Bb]asic\s+)(?!\$\{)(?=\S*[0-9=])[A-Za-z0-9+/]{12,}={0,2}"
    r"|(?P<user>://[^/\s:@'\"]*:)(?!\$\{)[^/\s@'\"]+(?=@)"
    r"|(?P<alone>://)(?!\$\{)[^/\s:@'\"]{16,}(?=@)"
    r"|(?P<query>(?:[?&;]|(?<!-)--)(?:[\w-]{0,60}[_-])?"
    r"(?i:api_?key|key|token|secret|password|passwd|sig|signature|auth)=)(?!\$\{)[^&;\s#'\"]+"
)
_ASSIGNED = re.compile(  # names with their values, as in error messages
    r"(?P<name>(?<![\w.-])[\w.-]*(?i:api[_-]?key|access[_-]?key|private[_-]?key|token|secret|password|passwd"
    r"|authorization)['\"]?\s*(?:=|(?<!token)(?<!token['\"]):)\s*['\"]?)"
    rf"(?!\$\{{|{MASK}|[A-Z][A-Z0-9_]*\b|(?:Bearer|Basic)\s)[^\s'\",;&)\]}}]{{4,}}"
)
_LONG = re.compile(r"[A-Za-z0-9]{32,}")
_NAME = re.compile(  # of a config's key, in lower case with underscores
    r"(?:^|_)(?:api_?key|access_?key|private_?key|secret_?key|secret|password|passwd|passphrase|authorization"
    r"|credentials?)$|(?:^|_)(?:api|access|auth|bearer|refresh|session|hf|hub|private)_?token$|^token$"
)
_VARIABLE = re.compile(  # of a header or an environment variable
    r"(?:^|_)(?:key|apikey|token|pass|passphrase|auth|cookie|pat|dsn)$|secret|password|passwd|authorization"
    r"|credential|api_?key|access_?key|private_?key"
)
_HARMLESS = re.compile(
    r"(?i)|true|false|yes|no|on|off|none|null|optional|required|disabled|bearer|basic|token|[0-9]{1,4}"
)
_named: set[str] = set()  # variables whose values a config uses: they are masked, whatever they look like


def references(text: str) -> list[str]:
    """Returns the environment variables that a text names as `${NAME}`."""
    return REFERENCE.findall(text)


def filled(text: str) -> str:
    """Returns the text with the environment variables that it names replaced by their values, which are masked from now
    on. Raises KeyError for a variable that is not set."""
    _named.update(references(text))
    return REFERENCE.sub(lambda match: os.environ[match[1]], text)


def names_secret(name: str) -> bool:
    """Returns whether the name of an environment variable or a header says that it holds a key."""
    return _VARIABLE.search(_plain(name)) is not None


def looks_secret(path: str, value: Any) -> bool:
    """Returns whether the value of a config, at a dotted path, looks like a key."""
    if isinstance(value, (list, tuple)):
        before = ["", *value]
        return any(looks_secret(path, item) or _option(prior, item) for prior, item in zip(before, value, strict=False))
    if not isinstance(value, str):
        return False
    text = re.sub(r"\$?\{\w+\}", "", value).strip()  # without names of variables and of a task's fields
    if _HARMLESS.fullmatch(text):
        return False
    *above, name = path.split(".") if path else [""]
    if MAPS & {*above}:
        return names_secret(name) or _by_shape(text) or _dense(text)
    by_name = _NAME.search(_plain(name)) and not re.fullmatch(r"[A-Z][A-Z0-9_]*", text)
    return bool(by_name) or _by_shape(value)


def masked(text: str) -> str:
    """Returns the text with everything masked that looks like a key or is the value of a variable that holds one."""
    return masker()(text)


def masker() -> Callable[[str], str]:
    """Returns what masks many texts, each as `masked` does, by the environment variables of now."""
    forms = [(form, name) for name, value in _values() for form in {value, quote(value, safe="")}]

    def mask(text: str) -> str:
        for form, name in forms:
            text = text.replace(form, f"${{{name}}}")
        return _ASSIGNED.sub(_mask_match, _cut(text))

    return mask


def masked_value(path: str, value: Any) -> Any:
    """Returns a config's value at a dotted path with its keys masked; other values stay as they are."""
    if isinstance(value, Mapping):
        return masked_table(value, path)
    if isinstance(value, (list, tuple)):
        pairs = zip(["", *value], value, strict=False)
        return [MASK if _option(before, item) else masked_value(path, item) for before, item in pairs]
    if not looks_secret(path, value):
        return value
    return cut if (cut := _cut(value)) != value else MASK


def masked_table(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns a config with its keys masked."""
    return {key: masked_value(f"{path}.{key}" if path else str(key), value) for key, value in table.items()}


def _values() -> Iterator[tuple[str, str]]:
    """Yields the names and values of environment variables that hold keys, longest first, as one may contain
    another."""
    held = [(name, value.strip()) for name, value in os.environ.items() if name in _named or names_secret(name)]
    long = [pair for pair in held if len(pair[1]) >= MIN_LENGTH and not re.fullmatch(r"[a-z]{,15}|/.*", pair[1])]
    yield from sorted(long, key=lambda pair: -len(pair[1]))


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _by_shape(text: str) -> bool:
    if _KNOWN.search(text) or any(_random(run) for run in _LONG.findall(text)):
        return True
    return any(MASK not in match[0] for match in _PLACED.finditer(text))


def _cut(text: str) -> str:
    text = _PLACED.sub(_mask_match, _KNOWN.sub(MASK, text))
    return _LONG.sub(lambda match: MASK if _random(match[0]) else match[0], text)


def _mask_match(match: re.Match[str]) -> str:
    """Returns a match with its key masked and its named group kept."""
    return f"{match[match.lastgroup or 0]}{MASK}"


def _option(before: Any, value: Any) -> bool:
    """Returns whether a value follows the option of a command that asks for a key, as in --api-key VALUE."""
    if not (isinstance(before, str) and isinstance(value, str)) or not before.startswith("-"):
        return False
    return "=" not in before and names_secret(before.strip("-")) and not value.startswith("-")


def _random(text: str) -> bool:
    """Returns whether a run of letters and digits is too mixed to be a word or a hexadecimal digest."""
    return all(sum(kind(c) for c in text) >= 4 for kind in (str.isdigit, str.isupper, str.islower))


def _dense(text: str) -> bool:
    """Returns whether the value of a header or variable has a long run of mixed letters and digits."""
    runs = re.findall(r"[A-Za-z0-9+_=-]{20,}", text)
    return any(min(sum(map(str.isdigit, run)), sum(map(str.isalpha, run))) >= 4 for run in runs)
