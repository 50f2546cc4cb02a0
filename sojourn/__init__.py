"""Sojourn: train LLM agents end to end, by online reinforcement learning, in the environments they act in."""

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

__version__ = "0.1.0"

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
