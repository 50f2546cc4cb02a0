"""The abilities of group sources, and those by which other components tell groups of several sources apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from sojourn.ability import Ability
from sojourn.composite import HasBases, replaced_bases
from sojourn.protocols import SourceConfig


@runtime_checkable
class Mixes(Ability, Protocol):
    """A group source whose steps have the groups of several others."""

    @property
    def parts(self) -> Sequence[SourceConfig[Any]]: ...


def parts_of(source: SourceConfig[Any]) -> Sequence[SourceConfig[Any]]:
    """Returns the sources that the groups of a stage come from; mostly one. Those of parts that mix, too, are among
    them."""
    return [one for part in source.parts for one in parts_of(part)] if isinstance(source, Mixes) else (source,)


def live_width(source: SourceConfig[Any]) -> int:
    """Returns how many groups the policy plays for each step."""
    return sum(part.width for part in parts_of(source) if part.live)


@runtime_checkable
class HasOrigin(Ability, Protocol):
    """A group source that gives its groups another `Group.origin` than "policy"."""

    @property
    def origin(self) -> str: ...


def origin_of(source: object) -> str:
    """Returns the origin of a source's groups: "policy" where it does not say."""
    return source.origin if isinstance(source, HasOrigin) else "policy"


@runtime_checkable
class NamesOrigins(Ability, Protocol):
    """An estimator, a loss or a stream that names `origins` of groups, of which its stage must have some."""

    @property
    def origins(self) -> Sequence[str]: ...


@runtime_checkable
class SplitsByOrigin(Ability, Protocol):
    """An estimator or a loss that treats groups by their origin.

    `origins` are those that it names; `of_origin` returns what it applies to the groups of one, None where nothing.
    """

    @property
    def origins(self) -> Sequence[str]: ...
    def of_origin(self, origin: str) -> object | None: ...


def applied(components: Iterable[object], origin: str) -> list[object]:
    """Returns the estimators or losses that are applied to the groups of an origin: those that do not split by it, and
    what the others choose for it; what contains one that splits contains what that chooses."""
    chosen = (_of_origin(component, origin) for component in components)
    return [one for one in chosen if one is not None]


def _of_origin(component: Any, origin: str) -> Any:
    """Returns an estimator or a loss as it is applied to the groups of an origin; None where it is not."""
    if isinstance(component, SplitsByOrigin):
        return _of_origin(component.of_origin(origin), origin)
    if isinstance(component, HasBases) and any(_of_origin(one, origin) is None for one in component.contained):
        return None
    return replaced_bases(component, lambda base: _of_origin(base, origin))


@runtime_checkable
class Branches(Ability, Protocol):
    """A group source that says whether its plays fork (`forks`), so that its groups differ in size."""

    @property
    def forks(self) -> bool: ...


@runtime_checkable
class GivesSamples(Ability, Protocol):
    """A group source that plays episodes with samples of its own, such as an expert's or those of an earlier play, in
    the seats of the policy and of all others."""

    @property
    def gives_samples(self) -> bool: ...


@runtime_checkable
class Recalls(Ability, Protocol):
    """Groups of a stage that the run has recorded already. In a mixture they are chosen when the other parts have
    theirs: while a live service waits for sessions, people may take older ones back."""

    @property
    def recalls(self) -> bool: ...


@runtime_checkable
class Sized(Ability, Protocol):
    """A group source whose groups all have `size` episodes, unless they fork."""

    @property
    def size(self) -> int: ...


@runtime_checkable
class Lags(Ability, Protocol):
    """A group source whose groups were sampled by weights of at most `max_lag` steps before."""

    @property
    def max_lag(self) -> int: ...


@runtime_checkable
class PlaysEarly(Ability, Protocol):
    """A group source whose live plays may begin up to `play_lag` steps early, though its groups may be older, as some
    that are recorded take the place of others."""

    @property
    def play_lag(self) -> int: ...


def group_size(source: object) -> int | None:
    """Returns how many episodes each group of a source has; None where that differs."""
    return source.size if isinstance(source, Sized) and not (isinstance(source, Branches) and source.forks) else None


def max_lag(source: object) -> int:
    """Returns the `max_lag` of a source; 0 where it has none."""
    return source.max_lag if isinstance(source, Lags) else 0


def play_lag(source: object) -> int:
    """Returns how many steps early the live plays of a source may begin; 0 where there are none."""
    return source.play_lag if isinstance(source, PlaysEarly) else max_lag(source)


StageT = TypeVar("StageT", contravariant=True)  # what is said of a stage: `StageContext` of `sources/context.py`


@runtime_checkable
class Checks(Ability, Protocol[StageT]):
    """A group source that is asked before a run begins, when its world is open.

    `check` raises `ConfigError` where the stage cannot be given such groups.
    """

    async def check(self, stage: StageT) -> None: ...
