"""The training loop, the stages of a run around it, and the assembly of a run from its recipe.

The package is callable: `sojourn.train(recipe)` is `sojourn.api.train(recipe)`.
"""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from sojourn import api

        return api.train(*arguments, **options)


sys.modules[__name__].__class__ = _Package
