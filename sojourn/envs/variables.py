"""Says what worlds take from the environment of this process, and what of it the programs that they start see."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from sojourn.config.toml import leaves, refuse_key
from sojourn.errors import ConfigError
from sojourn.secrets import filled, names_secret, references

INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|XDG_\w+|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY"
    r"|DBUS_SESSION_BUS_ADDRESS|LD_LIBRARY_PATH|JAVA_HOME|(?:OMP|MKL|OPENBLAS|NUMEXPR)_\w+|CUDA_\w+|NVIDIA_\w+"
    r"|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?:https?|all|no)_proxy|HF_\w+|SOJOURN_\w+|PLAYWRIGHT_\w+",
    re.IGNORECASE,
)


def inherited() -> dict[str, str]:
    """Our variables as a foreign program gets them: those that say how this machine is set up, and none that holds a
    key by its name or as a URL with a password."""
    return {
        name: value
        for name, value in os.environ.items()
        if INHERITED.fullmatch(name) and not names_secret(name) and not re.search(r"://[^/\s]*@", value)
    }


def check_variables(world: str, fields: Mapping[str, Any]) -> None:
    """Refuses fields with a key in place of the name of a variable, and names of variables that are not set."""
    for path, value in leaves(fields, ""):
        refuse_key(f"{world}.{path}", value)
        for name in references(value) if isinstance(value, str) else ():
            if name not in os.environ:
                raise ConfigError(
                    f"{world}.{path} takes its value from the environment variable {name}, which is not set: export "
                    f"{name}=... before the run"
                )


def taken(fields: Mapping[str, str]) -> dict[str, str]:
    """The values with the environment variables that they name put in."""
    return {name: filled(value) for name, value in fields.items()}


def hidden(text: str, *fields: str) -> str:
    """The text with the values of the variables that the fields name put back to their names."""
    for name in {name for field in fields for name in references(field)}:
        if value := os.environ.get(name):
            text = text.replace(value, f"${{{name}}}")
    return text
