"""Base of components that contain other components of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sojourn.protocols import Stateful


class HasBases:
    """A component whose fields named in `bases` are components too: their states are part of its state."""

    bases: ClassVar[tuple[str, ...]] = ("base",)

    @property
    def contained(self) -> Sequence[Any]:
        """Returns the components that it contains."""
        return [getattr(self, name) for name in self.bases]

    def state(self) -> Mapping[str, Any]:
        return {name: component.state() for name, component in self._stateful_bases()}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, component in self._stateful_bases():
            component.restore(state[name])

    def _stateful_bases(self) -> list[tuple[str, Stateful]]:
        components = [(name, getattr(self, name)) for name in self.bases]
        return [(name, component) for name, component in components if isinstance(component, Stateful)]


def with_bases(components: Iterable[object]) -> Iterator[object]:
    """Yields components and, after each, those that it contains."""
    for component in components:
        yield component
        if isinstance(component, HasBases):
            yield from with_bases(component.contained)


def replaced_bases(component: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a component whose bases are what `change` makes of them; the component itself where that changes none."""
    if not isinstance(component, HasBases):
        return component
    bases = {name: getattr(component, name) for name in component.bases}
    changed = {name: new for name, base in bases.items() if (new := change(base)) is not base}
    return replace(component, **changed) if changed else component  # type: ignore[type-var]
