"""The address of an episode: its place in a run, by the numbers that people see."""

from __future__ import annotations

import re
from typing import NamedTuple

FORM = "stage:step/group/place"
_ADDRESS = re.compile(r"(.*):(\d{1,18})/(\d{1,18})/(\d{1,18})", re.ASCII | re.DOTALL)


class Address(NamedTuple):
    """Names the episode at `place` of a group of a step, all counted from 0, such as rl:3/0/1.

    The colon tells it apart from an id, such as rl/12/0/1-948dab5fa14977ae, which counts slots and not steps.
    """

    stage: str
    step: int
    group: int
    place: int

    def __str__(self) -> str:
        return f"{self.stage}:{self.step}/{self.group}/{self.place}"

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """Returns the address that a text is, None where it is none."""
        match = _ADDRESS.fullmatch(text)
        return cls(match[1], int(match[2]), int(match[3]), int(match[4])) if match else None
