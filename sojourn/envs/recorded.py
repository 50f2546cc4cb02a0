"""Recorded conversations as a world: it shows what was shown, for as long as the agent does what was done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from sojourn.call_text import call_text
from sojourn.codec import to_plain
from sojourn.config.fields import NONBLANK, Range
from sojourn.envs.about import About
from sojourn.errors import ConfigError, InfrastructureError, RecordError
from sojourn.record.export import read
from sojourn.record.export.conversations import Conversation
from sojourn.same_action import same_action
from sojourn.tasks.splits import SPLITS, first_seed
from sojourn.types import Message, Observation, Role, Step, Task, Tool


class Exchange(NamedTuple):
    """Holds what a conversation shows, and what was then done."""

    shown: tuple[Message, ...]
    action: Message


class Played(NamedTuple):
    """A conversation as a play: its system messages and tools, and its exchanges in order."""

    task: Task
    system: tuple[Message, ...]
    tools: tuple[Tool, ...]
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A world that is made of recorded conversations, without the world that they were recorded in.

    It shows what was shown in a conversation of `files`, as long as the agent does what was done there: the same calls,
    or the same text up to white space. Another action ends the play, as nobody knows what would have followed, and each
    that is the same pays one part of 1. So the reward of an episode is the fraction of the way that it went, and it
    succeeds at the end of it: the progress and the success rate of UI-S1's semi-online performance (Lu et al. 2025,
    arXiv:2509.11543, by the evaluation of the authors' code). The expert does what was done, so that demonstrations,
    `dagger` and `semi_online` work as in any world.

    `files` are read as those of the group source `imported` are; with `success_only`, conversations that are known to
    have failed are left out. A `test_fraction` of their tasks, at least one, is the test split. With `thoughts =
    false` the expert does not say the thoughts that were recorded. An action that cannot be read ends no play by
    itself: agent.malformed = "end" does that. Images are not in such files, so conversations with images are refused.
    """

    about: ClassVar[About] = About(source="the conversations of your files", licence="that of the files")

    files: tuple[Annotated[str, NONBLANK], ...]
    success_only: bool = True
    test_fraction: Annotated[float, Range(0, below=1)] = 0.2
    thoughts: bool = True

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError('files = []: name at least one, such as files = ["episodes.jsonl"]')

    def tasks(self, split: str) -> Sequence[Task]:
        first_seed("recorded", split)
        return [played.task for played in self._played.values() if played.task.split == split]

    def make(self, task: Task) -> RecordedPlay:
        played = self._played.get(task.id)
        if played is None:
            raise ConfigError(f"recorded: task {task.id} is of no conversation of files = {list(self.files)}")
        return RecordedPlay(played, self.thoughts)

    @cached_property
    def _played(self) -> Mapping[str, Played]:
        """Returns the plays by the ids of their tasks, in the order of the files."""
        conversations = [one for one in self._read() if not (self.success_only and one.success is False)]
        if not conversations:
            raise ConfigError(f"recorded: files = {list(self.files)} hold no conversation that can be played")
        names = sorted({one.task.id for one in conversations}, key=lambda name: hashlib.sha256(name.encode()).digest())
        count = max(1, round(self.test_fraction * len(names))) if self.test_fraction and len(names) > 1 else 0
        plays = [_played(one, SPLITS[one.task.id in names[:count]]) for one in conversations]
        return {played.task.id: played for played in plays}

    def _read(self) -> Iterator[Conversation]:
        for name in self.files:
            try:
                for item in read(Path(name), render=True):
                    if isinstance(item, Conversation) and item.imitated:
                        yield item
            except RecordError as error:
                raise ConfigError(f"recorded: files: {error}") from error


def _played(conversation: Conversation, split: str) -> Played:
    messages = conversation.messages
    if any(message.images for message in messages):
        raise ConfigError(
            f"recorded: {conversation.where} shows images, which are not in the file: give conversations of text alone"
        )
    system = tuple(takewhile(lambda message: message.role is Role.SYSTEM, messages))
    exchanges, shown = list[Exchange](), list[Message]()
    for place, message in enumerate(messages[len(system) :], len(system)):
        if place in conversation.imitated:
            exchanges.append(Exchange(tuple(shown), message))
            shown.clear()
        else:
            shown.append(message)
    content = json.dumps(to_plain([system, conversation.tools, exchanges]), sort_keys=True)
    data = {"conversation": hashlib.sha256(content.encode()).hexdigest()[:16]}
    task = Task("recorded", data, first_seed("recorded", split), split, conversation.task.tags)
    return Played(task, system, conversation.tools, tuple(exchanges))


@dataclass
class RecordedPlay:
    """One play of a conversation; `place` is the number of the exchange that it has come to."""

    played: Played
    thoughts: bool = True
    place: int = 0
    over: bool = False

    async def start(self) -> Observation:
        return Observation(self.played.exchanges[0].shown, system=self.played.system, tools=self.played.tools)

    async def step(self, agent: str, action: Message) -> Step:
        exchanges = self.played.exchanges
        if self.over:
            raise InfrastructureError("a recorded play was given an action after its end: play each world once")
        if not same_action(action, exchanges[self.place].action):
            self.over = True
            return Step(None, {agent: 0.0}, done=True, success=False)
        self.place += 1
        reward = {agent: 1 / len(exchanges)}
        self.over = self.place == len(exchanges)
        if self.over:
            return Step(None, reward, done=True, success=True)
        return Step(Observation(exchanges[self.place].shown), reward)

    async def close(self) -> None:
        """Does nothing: nothing is open."""

    async def fork(self) -> RecordedPlay:
        return replace(self)

    def state_key(self) -> str:
        return f"{self.played.task.data['conversation']}/{self.place}"

    def expert(self) -> str:
        """Returns what was done in this place, in words."""
        action = self.played.exchanges[self.place].action
        return "; ".join(map(call_text, action.calls)) or action.text

    def native_action(self, text: str) -> Message:
        """Returns the recorded message that does what a text says."""
        action = self.played.exchanges[self.place].action
        if text != self.expert():
            return Message(Role.ASSISTANT, text)
        return action if self.thoughts else replace(action, thought="")
