"""Environment variables: which of them the programs of a world inherit, and how the fields of a world refer to them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from sojourn.config.toml import leaves, refuse_secret
from sojourn.errors import ConfigError
from sojourn.secrets import filled, names_secret, references

INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|XDG_\w+|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY"
    r"|DBUS_SESSION_BUS_ADDRESS|LD_LIBRARY_PATH|JAVA_HOME|(?:OMP|MKL|OPENBLAS|NUMEXPR)_\w+|CUDA_\w+|NVIDIA_\w+"
    r"|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?:https?|all|no)_proxy|HF_\w+|SOJOURN_\w+|PLAYWRIGHT_\w+",
    re.IGNORECASE,
)


def inherited_variables() -> dict[str, str]:
    """Returns the variables of this process that a foreign program inherits: those that describe this machine, without
    any whose name says that it holds a secret, or whose value is a URL with a password."""
    return {
        name: value
        for name, value in os.environ.items()
        if INHERITED.fullmatch(name) and not names_secret(name) and not re.search(r"://[^/\s]*@", value)
    }


def check_variables(world: str, fields: Mapping[str, Any]) -> None:
    """Refuses fields that hold a secret itself instead of the name of a variable, and names of variables that are not
    set."""
    for path, value in leaves(fields, ""):
        refuse_secret(f"{world}.{path}", value)
        for name in references(value) if isinstance(value, str) else ():
            if name not in os.environ:
                raise ConfigError(
                    f"{world}.{path} takes its value from the environment variable {name}, which is not set: export "
                    f"{name}=... before the run"
                )


def fill_variables(fields: Mapping[str, str]) -> dict[str, str]:
    """Returns the fields with each `${NAME}` in them replaced by the value of that environment variable."""
    return {name: filled(value) for name, value in fields.items()}


def mask_variables(text: str, *fields: str) -> str:
    """Returns the text with the values of the variables that the fields refer to replaced by `${NAME}` again."""
    for name in {name for field in fields for name in references(field)}:
        if value := os.environ.get(name):
            text = text.replace(value, f"${{{name}}}")
    return text
