"""Every world of this distribution is registered by its name, says what it is, and has its public fields frozen.

Run as a script, this prints what `public.txt` should hold.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FROZEN = HERE / "public.txt"
REGENERATE = "python worlds/tests/test_registered.py > worlds/tests/public.txt"
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
WORLDS = PROJECT["entry-points"]["sojourn.env"]


def public() -> list[str]:
    from test_public import component

    return sorted(line for name in WORLDS for line in component("env", name))


@pytest.mark.parametrize("name", WORLDS)
def test_every_world_is_registered_by_its_name_and_says_what_it_is(name: str) -> None:
    from sojourn.config.lookup import find
    from sojourn.envs.about import About

    family = find("env", name)
    assert family.__doc__
    assert family.__name__.lower() == name.replace("_", "")
    assert isinstance(family.about, About)
    assert family.about.source
    assert family.about.licence
    assert family.about.extra in {"", *PROJECT["optional-dependencies"]}
    if family.about.smallest:
        family(**family.about.smallest)


def test_what_is_installed_is_what_is_registered_here() -> None:
    from sojourn.config import plugins

    found = {name: plugin.target for name, several in plugins.plugins()["env"].items() for plugin in several}
    assert found.items() >= WORLDS.items(), "install this distribution again: pip install --no-deps -e worlds"


def test_the_public_fields_are_the_frozen_ones() -> None:
    assert FROZEN.read_text().splitlines() == public(), (
        f"the fields of a world have changed; where that is intended, say so in the commit and run\n    {REGENERATE}"
    )


if __name__ == "__main__":
    import sys

    root = HERE.parents[1]
    sys.path[:0] = [str(root), str(root / "tests")]
    print("\n".join(public()))
