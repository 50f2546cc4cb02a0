"""A component that stands on another of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sojourn.protocols import Stateful


class Based:
    """With another component as `base`, whose memory is kept with it."""

    base: Any

    def state(self) -> Mapping[str, Any]:
        return {"base": self.base.state()} if isinstance(self.base, Stateful) else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if isinstance(self.base, Stateful):
            self.base.restore(state["base"])
