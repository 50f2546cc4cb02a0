"""What a world says of itself, and how it asks for what it needs."""

import pytest

from sojourn.config.components import COMPONENTS
from sojourn.config.registry import find
from sojourn.envs.about import About, need, need_program
from sojourn.errors import MissingExtraError

OTHERS = ("tools", "mixed")  # what they are made of says it


@pytest.mark.parametrize("name", [name for name in COMPONENTS["env"] if name not in OTHERS])
def test_every_world_says_what_it_is(name: str) -> None:
    family = find("env", name)
    assert isinstance(family.about, About)
    assert family.about.source
    assert family.about.licence
    if family.about.easy:
        family(**family.about.easy)


def test_a_module_that_is_there_is_imported() -> None:
    assert need("json", "nothing", "toy").dumps([1]) == "[1]"


def test_what_is_missing_is_asked_for_by_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"needs the package 'nosuch'.*pip install 'sojourn\[castle\]'"):
        need("nosuch.module", "castle", "castle")


def test_a_missing_program_is_asked_for_by_its_package() -> None:
    assert need_program("sh", "dash", "castle").endswith("sh")
    with pytest.raises(MissingExtraError, match=r"the program 'nosuch'.*apt-get install such"):
        need_program("nosuch", "such", "castle")
