"""What a world says of itself, and how it asks for what it needs."""

import pytest

from sojourn.envs.about import require_module, require_program
from sojourn.errors import MissingExtraError


def test_a_module_that_is_there_is_imported() -> None:
    assert require_module("json", "nothing", "toy").dumps([1]) == "[1]"


def test_what_is_missing_is_asked_for_by_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"needs the package 'nosuch'.*pip install 'my-worlds\[castle\]'"):
        require_module("nosuch.module", "my-worlds[castle]", "castle")


def test_a_missing_program_is_asked_for_by_its_package() -> None:
    assert require_program("sh", "dash", "castle").endswith("sh")
    with pytest.raises(MissingExtraError, match=r"the program 'nosuch'.*apt-get install such"):
        require_program("nosuch", "such", "castle")
