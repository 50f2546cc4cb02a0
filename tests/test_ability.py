"""`isinstance` asks for an ability quickly, and in the same way in all versions of Python."""

from typing import Protocol, runtime_checkable

from sojourn.ability import Ability


@runtime_checkable
class HasKey(Ability, Protocol):
    def key(self) -> str: ...


@runtime_checkable
class HasLabel(Ability, Protocol):
    label: str | None


@runtime_checkable
class HasBoth(HasKey, HasLabel, Protocol): ...


class Keyed:
    def key(self):
        return "a"


class Without(Keyed):
    key = None


class Raises:
    @property
    def key(self):
        raise AttributeError("there is none on this page")

    label = None


class Derived(HasKey):
    """A class that is derived from a protocol, and is none."""

    def key(self):
        return "a"


class Later:
    pass


def test_an_object_has_an_ability_where_it_has_all_members():
    assert isinstance(Keyed(), HasKey)
    assert isinstance(Derived(), HasKey)
    assert not isinstance(Keyed(), HasBoth)
    assert not isinstance(Keyed(), HasLabel)
    both = Keyed()
    both.label = "b"
    assert isinstance(both, HasBoth)


def test_a_method_that_is_none_is_none_and_a_property_that_raises_is_not_there():
    assert not isinstance(Without(), HasKey)
    assert not isinstance(Raises(), HasKey)
    assert isinstance(Raises(), HasLabel)  # a value may be None


def test_objects_of_one_class_may_differ():
    one, other = Later(), Later()
    one.key = lambda: "a"
    assert isinstance(one, HasKey)
    assert not isinstance(other, HasKey)
    other.key = None
    assert not isinstance(other, HasKey)


def test_a_class_that_is_derived_from_a_protocol_is_asked_by_its_name():
    assert isinstance(Derived(), Derived)
    assert not isinstance(Keyed(), Derived)
    assert issubclass(Keyed, HasKey)
    assert not issubclass(Later, HasKey)
