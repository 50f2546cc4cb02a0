"""The keys of a config that were renamed.

Where a person's config has the old name of a key, the error says the new one; the config that a run folder recorded is
read as if it had been written with the new names.

A line is `(kind, name, old key): new key`. For a component, the kind and the name are those of the registry, and the
name "*" means every component of the kind that has a registered name. For any other table, the kind is the key of the
table ("optim", "limits", "aggregate", ...; "stages" for a stage; "" for the top level), and the name is "*".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sojourn.config.components import COMPONENTS

ANY = "*"
TOP, STAGES = "", "stages"  # at the top level are also keys for all stages
OLD_KEYS: dict[tuple[str, str, str], str] = {
    ("env", "*", "brief"): "system",
}
KIND_OF_KEY = {"filters": "filter", "losses": "loss", "sinks": "sink", "streams": "stream", "worlds": "env"}


def new_key(kind: str, name: str, key: str) -> str:
    """Returns what a key of a table is called today; empty where it was never renamed."""
    owned = kind in COMPONENTS and ":" in name  # somebody's own class, whose keys are not ours
    names = (name,) if owned else (name, ANY)
    kinds = (TOP, STAGES) if kind == TOP else (kind,)
    return next((OLD_KEYS[k, n, key] for k in kinds for n in names if (k, n, key) in OLD_KEYS), "")


def upgraded(config: Mapping[str, Any], kind: str = TOP) -> dict[str, Any]:
    """Returns a recorded table with each renamed key under its new name, unless the new name is there as well."""
    name = str(config.get("name", ANY))
    keys = {key: new_key(kind, name, key) for key in config}
    keys = {key: new if new and new not in config else key for key, new in keys.items()}
    return {new: _upgraded(config[key], new, kind) for key, new in keys.items()}


def _upgraded(value: Any, key: str, outer: str) -> Any:
    """Returns what is under a key of a table of the kind `outer`; a component's own components are of its kind."""
    if isinstance(value, list):
        return [_upgraded(item, key, outer) for item in value]
    if not isinstance(value, Mapping):
        return value
    kind = KIND_OF_KEY.get(key, key)
    nested = outer in COMPONENTS and kind not in COMPONENTS and "name" in value
    return upgraded(value, outer if nested else kind)
