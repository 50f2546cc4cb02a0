"""Groups from files: exported episodes of Sojourn, and conversations of other programs to imitate."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from sojourn.config.fields import NONBLANK, Range
from sojourn.errors import ConfigError, RecordError, RenderError
from sojourn.protocols import Renderer
from sojourn.record.export import read
from sojourn.record.export.conversations import Conversation
from sojourn.sources.context import SourceContext, StageContext, misread, require_imitation, unsampled
from sojourn.sources.folder import RecordedGroups, with_foreign_ids
from sojourn.types import (
    Ending,
    Episode,
    Group,
    Message,
    Sample,
    Stop,
    Trajectory,
    Turn,
    Versions,
)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """`width` groups per step from `files`, cycling through them in order: exports of Sojourn, or conversations.

    Files that `sojourn export` wrote with tokens are trained on exactly these tokens. Conversations of other programs
    are JSON lines, a JSON list or Parquet, with `messages`, `conversations` (ShareGPT), `prompt` and `completion`, or
    `chosen` and `rejected` (a preference, which is a group of two), or lines of the Agent Data Protocol. They are
    rendered in the model's format, as if the model had written them; conversations with the same beginning form a
    group. They were not sampled, so losses and estimators that need the sampler's log-probabilities are refused.
    `render` treats exported files in the same way, for another model than the one that played. With `success_only`,
    groups without a successful episode are left out. With `long_horizon` above 0, long ones are drawn more often, as
    with `folder`.
    """

    files: tuple[Annotated[str, NONBLANK], ...]
    width: Annotated[int, Range(1)] = 16
    success_only: bool = False
    render: bool = False
    long_horizon: Annotated[float, Range(0)] = 0.0

    live = False
    origin = "imported"

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError('files = []: name at least one, such as files = ["episodes.parquet"]')

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        """Reads every file once, so that what cannot be used is refused before anything is trained."""
        count = Counter(isinstance(item, Conversation) or unsampled(item) for _, item in self._read(stage.name))
        if not count:
            raise ConfigError(f"stage '{stage.name}': {self._files_setting} holds nothing to learn from")
        if count[True]:
            require_imitation(stage, self._files_setting, self.origin)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> RecordedGroups:
        groups = _Groups(context.renderer, context.runner.max_context)
        for path, item in self._read(stage):
            groups.add(path, item)
        kept = [
            g for g in groups if g.trajectories and (not self.success_only or any(t.success for t in g.trajectories))
        ]
        if groups.too_long:
            warnings.warn(
                f"stage '{stage}': {groups.too_long} conversations are longer than backend.max_context = "
                f"{context.runner.max_context} tokens, and are left out",
                RuntimeWarning,
                stacklevel=2,
            )
        if not kept:
            raise ConfigError(f"stage '{stage}': {self._files_setting} holds no usable groups")
        return RecordedGroups(self.width, kept, self.long_horizon, context.runner.seed)

    @property
    def _files_setting(self) -> str:
        return f"groups.files = {list(self.files)}"

    def _read(self, stage: str) -> Iterator[tuple[Path, Group | Conversation]]:
        for name in self.files:
            try:
                for item in read(Path(name), render=self.render):
                    if not isinstance(item, Conversation) or item.imitated:
                        yield Path(name), item
            except RecordError as error:
                raise ConfigError(f"stage '{stage}': groups.files: {error}") from error


@dataclass
class _Groups:
    """The groups of all files, in order. Every episode gets a unique id, by which rewards and records know it."""

    renderer: Renderer
    max_context: int
    too_long: int = 0
    recorded: list[Group] = field(default_factory=list)
    conversations: dict[tuple[Path, str], list[Episode]] = field(default_factory=dict)  # by file and task

    def add(self, path: Path, item: Group | Conversation) -> None:
        if isinstance(item, Group):
            self._require_readable(path, item)
            self.recorded.append(with_foreign_ids(item, str(path)))
            return
        trajectory = rendered(item, self.renderer)
        last = len(trajectory.turns) - 1
        if len(trajectory.prompt(last)) + len(trajectory.turns[last].sample.tokens) > self.max_context:
            self.too_long += 1
            return
        name = f"{item.where}-{item.task.id}"
        self.conversations.setdefault((path, item.task.id), []).append(Episode(name, item.task, (trajectory,)))

    def __iter__(self) -> Iterator[Group]:
        rendered_groups = [
            Group(slot, plays[0].task, tuple(plays)) for slot, plays in enumerate(self.conversations.values())
        ]
        seen: Counter[str] = Counter()
        for group in (*self.recorded, *rendered_groups):
            ids: list[str] = []
            for episode in group.episodes:
                seen[episode.id] += 1
                ids.append(f"{episode.id}#{seen[episode.id]}" if seen[episode.id] > 1 else episode.id)
            yield replace(group, episodes=_renamed(group.episodes, ids), origin=Imported.origin)

    def _require_readable(self, path: Path, group: Group) -> None:
        """Raises `ConfigError` for tokens of another vocabulary or format, which mean something else to this model."""
        if sentence := misread(self.renderer, group):
            raise ConfigError(f"groups.files: {path}: {sentence}: add render = true to imitate the messages")


def _renamed(episodes: Sequence[Episode], ids: Sequence[str]) -> tuple[Episode, ...]:
    """Returns episodes with other ids, by which branches call what they left, too."""
    new = {episode.id: id for episode, id in zip(episodes, ids, strict=True)}
    branches = [
        None if (left := episode.branch) is None else replace(left, of=new.get(left.of, left.of))
        for episode in episodes
    ]
    return tuple(replace(e, id=id, branch=b) for e, id, b in zip(episodes, ids, branches, strict=True))


def rendered(conversation: Conversation, renderer: Renderer) -> Trajectory:
    """Returns the trajectory of a model that wrote the messages to be learned, in one context if its format allows."""
    try:
        turns = _turns(conversation, renderer)
    except RenderError as error:
        raise ConfigError(f"groups.files: {conversation.where}: {error}") from error
    last = turns[-1]
    known = {} if conversation.success is None else {"success": float(conversation.success)}
    turns[-1] = replace(last, reward=last.reward + conversation.reward, info=known)
    return Trajectory(conversation.agent, tuple(turns), Ending.DONE)


def _turns(conversation: Conversation, renderer: Renderer) -> list[Turn]:
    turns: list[Turn] = []
    earlier: list[Message] = []
    new: list[Message] = []
    pending_reward = 0.0
    for place, message in enumerate(conversation.messages):
        pending_reward += conversation.rewards.get(place, 0.0)
        if place not in conversation.imitated:
            new.append(message)
            continue
        turns.append(replace(_turn(conversation, renderer, turns, earlier, new, message), reward=pending_reward))
        earlier += [*new, message]
        new, pending_reward = [], 0.0
    turns[-1] = replace(turns[-1], reward=turns[-1].reward + pending_reward)
    return turns


def _turn(
    conversation: Conversation,
    renderer: Renderer,
    turns: Sequence[Turn],
    earlier: Sequence[Message],
    new: Sequence[Message],
    message: Message,
) -> Turn:
    tokens = np.asarray(renderer.encode_reply(message), dtype=np.int64)
    sample = Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.END)
    extension = renderer.extend(turns[-1].sample, new) if turns else None
    if extension is not None:
        return Turn(len(turns) - 1, extension.tokens, sample, message, observed=tuple(new))
    context = renderer.open((*earlier, *new), conversation.tools).tokens
    return Turn(
        -1, context, sample, message, observed=tuple(new), context_messages=tuple(earlier), tools=conversation.tools
    )
