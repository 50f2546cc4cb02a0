"""Sojourn: train LLM agents end to end, by online reinforcement learning, in the environments they act in."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sojourn.types import (
    Batch,
    Credit,
    Ending,
    Episode,
    Group,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Score,
    Step,
    Stop,
    Task,
    Tool,
    ToolCall,
    Trajectory,
    Turn,
)
from sojourn.version import VERSION

if TYPE_CHECKING:
    from sojourn.api import Policy as Policy
    from sojourn.api import Run as Run
    from sojourn.api import evaluate as evaluate
    from sojourn.api import load as load
    from sojourn.api import open as open
    from sojourn.api import train as train

__version__ = VERSION
_PYTHON = ("Policy", "Run", "evaluate", "load", "open")  # of `sojourn.api`, which is imported when one is used first


def __getattr__(name: str) -> Any:
    if name in _PYTHON:
        return getattr(importlib.import_module("sojourn.api"), name)
    raise AttributeError(f"module 'sojourn' has no attribute '{name}'")


class _Package(ModuleType):
    """The package `sojourn.train`, which can be called: `sojourn.train(recipe)` is `sojourn.api.train(recipe)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from sojourn import api

        return api.train(*arguments, **options)


importlib.import_module("sojourn.train").__class__ = _Package  # which has nothing in its `__init__`

__all__ = [
    "Batch",
    "Credit",
    "Ending",
    "Episode",
    "Group",
    "Message",
    "Observation",
    "Prompt",
    "Role",
    "Sample",
    "SamplingParams",
    "Score",
    "Step",
    "Stop",
    "Task",
    "Tool",
    "ToolCall",
    "Trajectory",
    "Turn",
]
