"""Another reward, and what the calls of tools were worth."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from sojourn.composite import HasBases
from sojourn.config.registry import SOME, Kind, Range
from sojourn.rewards.native import Native
from sojourn.types import Group, Message, Score, Trajectory, Turn

LONGEST = 10_000  # characters of a call that is read


@dataclass(frozen=True, kw_only=True)
class ToolUse(HasBases):
    """Another reward, plus at the last turn `coef` times the mean score of the turns that used a tool, 0 where none did
    (tool-aware policy optimisation of CodeV: Hou et al. 2025, arXiv:2511.19661).

    A turn's score is the number `by` of its `Turn.info`, where the world or a judge leaves one. Else it is told by
    rule: 1 for calls that worked; `penalty` where one failed, which a number of `failed` above 0 in `Turn.info` says,
    and with `repeats` where the agent had made the same call, with the same arguments, before. A call is structured, or
    all of a text that reads as one, `name(1, key="two")`; those named in `ignore`, such as the answer, are no tools.
    A refused turn is a call that failed, whatever it said. Texts that give the same argument once by place and once by
    name are not the same call.

    In the paper the score is that of a VLM which sees the question and the tool's output alone; the rule knows only its
    red lines, not whether the output served. The source is accounts of the paper, which give the mean over the turns
    that used a tool and the red lines, not the weights: `coef` is ours. Turn `repeats` off in worlds where the same
    call again does something new.
    """

    base: Annotated[Any, Kind("reward")] = field(default_factory=Native)
    coef: Annotated[float, Range(0)] = 0.5
    info_key: Annotated[str, SOME] = "tool_score"
    penalty: float = -1.0
    error_keys: tuple[Annotated[str, SOME], ...] = ("error",)
    penalise_repeats: bool = True
    ignored_tools: tuple[Annotated[str, SOME], ...] = ()

    unverified: ClassVar[str] = "the paper's abstract and accounts of its reward were read, not its text nor weights"

    async def __call__(self, group: Group) -> list[Score]:
        judged = await self.base(group)
        return [self._plus(t, score) for t, score in zip(group.trajectories, judged, strict=True)]

    def _plus(self, trajectory: Trajectory, score: Score) -> Score:
        known = list(self._scores(trajectory))
        mean = float(np.mean(known)) if known else 0.0
        turns = score.turns.copy()
        turns[-1:] += np.float32(self.coef * mean)
        parts = {**score.parts, "tool_use": mean, "tool_turns": float(len(known))}
        return replace(score, turns=turns, parts=parts, outcome=score.result)

    def _scores(self, trajectory: Trajectory) -> Iterator[float]:
        """One for each turn that used a tool."""
        made: set[str] = set()
        for turn in trajectory.turns:
            now = [call for name, call in calls(turn.message) if name not in self.ignored_tools]
            again = bool(made.intersection(now)) or len(set(now)) < len(now)
            made.update(now)
            if self.info_key in turn.info:
                yield turn.info[self.info_key]
            elif now or turn.info.get("malformed", 0.0) > 0:
                yield self.penalty if self._failed(turn) or (again and self.penalise_repeats) else 1.0

    def _failed(self, turn: Turn) -> bool:
        return any(turn.info.get(name, 0.0) > 0 for name in ("malformed", *self.error_keys))


def calls(said: Message | None) -> list[tuple[str, str]]:
    """The name of each call of a message, and the call with its arguments: alike where the calls are."""
    if said is None:
        return []
    if said.calls:
        return [(c.name, json.dumps([c.name, c.arguments], sort_keys=True, default=str)) for c in said.calls]
    text = said.text.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the parser, about the agent's odd literals
            call = ast.parse(text[:LONGEST], mode="eval").body
            written = ast.dump(call)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not text.startswith(f"{call.func.id}("):
        return []
    return [(call.func.id, written)]
