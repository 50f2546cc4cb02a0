"""The menu says what the components say, and the documentation's page is the menu."""

from pathlib import Path

import pytest

from sojourn import method_docs
from sojourn.config.components import COMPONENTS
from sojourn.errors import ConfigError

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
OWN = {"constant", "nll"}  # of nobody in particular


def test_the_page_is_what_the_command_prints():
    assert PAGE.read_text() == method_docs.markdown(), "make it again: sojourn methods --markdown > docs/methods.md"


@pytest.mark.parametrize("kind", ["estimator", "loss"])
def test_every_method_says_what_it_is_and_where_it_is_from(kind):
    found = method_docs.methods(kind)
    assert [method.name for method in found] == list(COMPONENTS[kind])
    for method in found:
        assert 20 <= len(method.what) <= 250 or method.name in {"reinforce", "nll"}, method
        assert "(" not in method.what or method.what.count("(") == method.what.count(")"), method
        assert method.sources or method.name in OWN, method
        assert method.composes


def test_what_methods_need_and_go_with():
    known = {(method.kind, method.name): method for method in method_docs.methods()}
    assert "worlds that offer `state_key()`" in known["estimator", "gigpo"].composes
    assert known["estimator", "aem"].needs == ("entropy",)
    assert "any estimator, as its base" in known["estimator", "aem"].composes
    assert "its memory" in known["estimator", "rae"].composes
    assert known["loss", "reinforce"].composes == "samples of the present weights alone"
    assert known["loss", "entropy"].needs == ("entropy, of its own pass",)
    assert known["loss", "value"].needs == ("a critic", "an estimator that says what a critic learns", "values")
    assert known["stream", "values"].needs == ("a critic",)
    assert known["estimator", "gae"].composes == "says what a critic learns"
    assert known["stream", "progress"].composes == "learns beside the policy; resumes with its memory"
    assert known["loss", "ppo"].sources[0] == "Schulman et al. 2017, arXiv:1707.06347, eq. 7"


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"'estimators' is no kind of method: .*estimator"):
        method_docs.methods("estimators")
