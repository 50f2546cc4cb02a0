"""Secrets: what looks like one, and masking it wherever it would show.

A config holds no key: it names the environment variable that does, as `${NAME}`. Two walls keep keys out of records.
The first refuses a config with a value that looks like a key (`sojourn.config`). The second, `masked` and
`masked_table`, stands before everything that is written or shown: it masks values that look like keys, and the values
of environment variables that a config names or whose own names say that they hold one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

MASK = "<masked>"
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
MAPS = frozenset({"headers", "environment"})  # tables of a config that are for keys too, under any name
SHORTEST = 8  # characters of a variable's value that is masked; words and paths are not

_KNOWN = re.compile(  # how issuers mark their keys
    r"\b(?:(?:sk|pk|rk)[-_][\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[a-z]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?|AIza[\w-]{30,}"
    r"|npm_\w{20,}|pypi-[\w-]{16,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)",
    re.DOTALL,
)
_PLACED = re.compile(  # what is a key by where it stands; the part before it is kept
    r"(?P<bearer>\b[Bb]earer\s+)(?!\$\{)[\w.~+/=-]{12,}"
    r"|(?P<basic>\b[Bb]asic\s+)(?!\$\{)(?=\S*[0-9=])[A-Za-z0-9+/]{12,}={0,2}"
    r"|(?P<user>://[^/\s:@'\"]*:)(?!\$\{)[^/\s@'\"]+(?=@)"
    r"|(?P<alone>://)(?!\$\{)[^/\s:@'\"]{16,}(?=@)"
    r"|(?P<query>(?:[?&;]|--)(?:[\w-]*[_-])?(?i:api_?key|key|token|secret|password|passwd|sig|signature|auth)=)"
    r"(?!\$\{)[^&;\s#'\"]+"
)
_SAID = re.compile(  # in what is told of errors: names and their values
    r"(?P<said>(?<![\w.-])[\w.-]*(?i:api[_-]?key|access[_-]?key|private[_-]?key|token|secret|password|passwd"
    r"|authorization)['\"]?\s*(?:=|(?<!token)(?<!token['\"]):)\s*['\"]?)"
    rf"(?!\$\{{|{MASK}|[A-Z][A-Z0-9_]*\b|(?:Bearer|Basic)\s)[^\s'\",;&)\]}}]{{4,}}"
)
_LONG = re.compile(r"[A-Za-z0-9]{32,}")
_NAME = re.compile(  # of a key of a config, in lower case with underscores
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
_named: set[str] = set()  # variables that were taken for a config: their values are masked, whatever they look like


def references(text: str) -> list[str]:
    """The environment variables that a text names as `${NAME}`."""
    return REFERENCE.findall(text)


def filled(text: str) -> str:
    """The text with the values of the environment variables that it names. Raises KeyError for one that is not set."""
    _named.update(references(text))
    return REFERENCE.sub(lambda found: os.environ[found[1]], text)


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
    said = re.sub(r"\$?\{\w+\}", "", value).strip()  # without names of variables, and of what a task says
    if _HARMLESS.fullmatch(said):
        return False
    *above, name = path.split(".") if path else [""]
    if MAPS & {*above}:
        return names_secret(name) or _by_shape(said) or _dense(said)
    by_name = _NAME.search(_plain(name)) and not re.fullmatch(r"[A-Z][A-Z0-9_]*", said)
    return bool(by_name) or _by_shape(value)


def masked(text: str) -> str:
    """The text with everything masked that looks like a key, or is the value of a variable that holds one."""
    for name, value in _values():
        for form in {value, quote(value, safe="")}:
            text = text.replace(form, f"${{{name}}}")
    return _SAID.sub(_kept, _cut(text))


def masked_value(path: str, value: Any) -> Any:
    """The value of a config, at a dotted path, with its keys masked; what `looks_secret` passes stays as it is."""
    if isinstance(value, Mapping):
        return masked_table(value, path)
    if isinstance(value, (list, tuple)):
        pairs = zip(["", *value], value, strict=False)
        return [MASK if _option(before, item) else masked_value(path, item) for before, item in pairs]
    if not looks_secret(path, value):
        return value
    return cut if (cut := _cut(value)) != value else MASK


def masked_table(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """A config with its keys masked, and otherwise as it is."""
    return {key: masked_value(f"{path}.{key}" if path else str(key), value) for key, value in table.items()}


def _values() -> Iterator[tuple[str, str]]:
    """The environment variables that hold keys, the longest values first, as one may be a part of another."""
    held = [(name, value.strip()) for name, value in os.environ.items() if name in _named or names_secret(name)]
    long = [pair for pair in held if len(pair[1]) >= SHORTEST and not re.fullmatch(r"[a-z]{,15}|/.*", pair[1])]
    yield from sorted(long, key=lambda pair: -len(pair[1]))


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _by_shape(text: str) -> bool:
    if _KNOWN.search(text) or any(_random(found) for found in _LONG.findall(text)):
        return True
    return any(MASK not in found[0] for found in _PLACED.finditer(text))


def _cut(text: str) -> str:
    text = _PLACED.sub(_kept, _KNOWN.sub(MASK, text))
    return _LONG.sub(lambda found: MASK if _random(found[0]) else found[0], text)


def _kept(found: re.Match[str]) -> str:
    return f"{found[found.lastgroup or 0]}{MASK}"


def _option(before: Any, value: Any) -> bool:
    """Returns whether a value follows the option of a command that asks for a key, as in --api-key VALUE."""
    if not (isinstance(before, str) and isinstance(value, str)) or not before.startswith("-"):
        return False
    return "=" not in before and names_secret(before.strip("-")) and not value.startswith("-")


def _random(text: str) -> bool:
    """Returns whether a run of letters and digits is too mixed to be a word or a digest."""
    return all(sum(kind(c) for c in text) >= 4 for kind in (str.isdigit, str.isupper, str.islower))


def _dense(text: str) -> bool:
    """Returns whether a header or variable has a run of letters and digits that is no word, no date and no path."""
    runs = re.findall(r"[A-Za-z0-9+_=-]{20,}", text)
    return any(min(sum(map(str.isdigit, run)), sum(map(str.isalpha, run))) >= 4 for run in runs)
