"""A source of given plays, for tests of sources that change those of another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from made import chatml

from sojourn.types import Group, Message, Role, Sample, Stop, Versions


def said(text: str) -> Sample:
    tokens = np.array(chatml().encode_reply(Message(Role.ASSISTANT, text)))
    return Sample(tokens, np.full(len(tokens), -1.0, np.float32), Versions(0, 0), Stop.END)


@dataclass(frozen=True)
class Given:
    """A source that gives one group, again in each step."""

    group: Group
    live: bool = True
    width: int = 1

    def tasks(self, steps):
        return 0

    def bind(self, context, stage, steps, first=0):
        return GivenGroups(self.group)


@dataclass
class GivenGroups:
    group: Group

    async def take(self, step):
        return [self.group]

    async def close(self): ...
