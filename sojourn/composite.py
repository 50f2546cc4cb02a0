"""A component that stands on others of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sojourn.protocols import Stateful


class HasBases:
    """With other components as its `bases`, whose memory is kept with it."""

    bases: ClassVar[tuple[str, ...]] = ("base",)

    base: Any

    def state(self) -> Mapping[str, Any]:
        return {name: part.state() for name, part in self._remembering()}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, part in self._remembering():
            part.restore(state[name])

    def _remembering(self) -> list[tuple[str, Stateful]]:
        parts = [(name, getattr(self, name)) for name in self.bases]
        return [(name, part) for name, part in parts if isinstance(part, Stateful)]
