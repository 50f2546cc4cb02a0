"""Another reward plus a score of the tool calls."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.fields import NONBLANK, Kind, Range
from sojourn.protocols import Reward
from sojourn.rewards.native import Native
from sojourn.types import Group, Message, Score, Trajectory, Turn

MAX_CHARS = 10_000  # of a text that may be a call


@dataclass(frozen=True, kw_only=True)
class ToolUse(HasBases):
    """Another reward, plus, at the last turn, `coef` times the mean score of the turns that called a tool, or 0 where
    no turn did (tool-aware policy optimisation of CodeV: Hou et al. 2025, arXiv:2511.19661).

    A turn's score is the number `info_key` of its `Turn.info`, where the world or a judge gives one. Else a rule
    decides: 1 for calls that worked, and `penalty` where a call failed, which a number of `error_keys` above 0 in
    `Turn.info` says, or, with `penalise_repeats`, where the agent had made the same call with the same arguments
    before. A call is a structured one, or a text that reads as a call as a whole, `name(1, key="two")`; calls of
    `ignored_tools`, such as the answer, do not count. A refused turn is a failed call, whatever its text. Texts that
    pass the same argument once by position and once by name are different calls.

    In the paper the score is that of a VLM which sees the question and the tool's output alone; the rule checks only
    the paper's red lines, not whether the output was useful. The source is accounts of the paper, which give the mean
    over the turns that used a tool and the red lines, but not the weights: `coef` is ours. Turn `penalise_repeats` off
    in worlds where repeating a call does something new.
    """

    base: Annotated[Reward, Kind("reward")] = field(default_factory=Native)
    coef: Annotated[float, Range(0)] = 0.5
    info_key: Annotated[str, NONBLANK] = "tool_score"
    penalty: float = -1.0
    error_keys: tuple[Annotated[str, NONBLANK], ...] = ("error",)
    penalise_repeats: bool = True
    ignored_tools: tuple[Annotated[str, NONBLANK], ...] = ()

    unverified = "the paper's abstract and accounts of its reward were read, not its text nor weights"

    async def __call__(self, group: Group) -> list[Score]:
        scores = await self.base(group)
        return [self._with_tool_score(t, score) for t, score in zip(group.trajectories, scores, strict=True)]

    def _with_tool_score(self, trajectory: Trajectory, score: Score) -> Score:
        tool_scores = list(self._tool_scores(trajectory))
        mean = float(np.mean(tool_scores)) if tool_scores else 0.0
        turns = score.turns.copy()
        turns[-1:] += np.float32(self.coef * mean)
        parts = {**score.parts, "tool_use": mean, "tool_turns": float(len(tool_scores))}
        return replace(score, turns=turns, parts=parts, outcome=score.result)

    def _tool_scores(self, trajectory: Trajectory) -> Iterator[float]:
        """Yields a score for each turn that called a tool."""
        earlier: set[str] = set()
        for turn in trajectory.turns:
            now = [call for name, call in calls(turn.message) if name not in self.ignored_tools]
            repeated = bool(earlier.intersection(now)) or len(set(now)) < len(now)
            earlier.update(now)
            if self.info_key in turn.info:
                yield turn.info[self.info_key]
            elif now or turn.info.get("malformed", 0.0) > 0:
                yield self.penalty if self._failed(turn) or (repeated and self.penalise_repeats) else 1.0

    def _failed(self, turn: Turn) -> bool:
        return any(turn.info.get(name, 0.0) > 0 for name in ("malformed", *self.error_keys))


def calls(message: Message | None) -> list[tuple[str, str]]:
    """Returns, for each tool call of a message, the tool's name and a text that is equal for equal calls."""
    if message is None:
        return []
    if message.calls:
        return [(c.name, json.dumps([c.name, c.arguments], sort_keys=True, default=str)) for c in message.calls]
    text = message.text.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about the agent's odd literals
            call = ast.parse(text[:MAX_CHARS], mode="eval").body
            dumped = ast.dump(call)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not text.startswith(f"{call.func.id}("):
        return []
    return [(call.func.id, dumped)]
