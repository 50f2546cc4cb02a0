"""Groups from files: what `sojourn export` wrote, and conversations of other programs, to be cloned."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from sojourn.config.registry import SOME, Range
from sojourn.errors import ActionError, ConfigError, RecordError, RenderError
from sojourn.protocols import Renderer, valid_for
from sojourn.record.export import read
from sojourn.record.export.conversations import Conversation
from sojourn.sources.context import SourceContext, StageContext
from sojourn.sources.folder import RecordedGroups
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
    """`width` groups a step from `files`, over and over, in their order: Parquet, chat or Agent Data Protocol lines.

    Files of ours that hold tokens train exactly these. Other conversations are rendered in the model's format, as if it
    had said what they say; those that begin alike are a group. Nobody sampled them, so what needs the logprobs of the
    sampler is refused. `render` takes files of ours in the same way: for another model than the one that played.
    `success_only` leaves out groups without any successful episode.
    """

    files: tuple[Annotated[str, SOME], ...]
    width: Annotated[int, Range(1)] = 16
    success_only: bool = False
    render: bool = False

    live = False

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError('files = []: name at least one, such as files = ["episodes.parquet"]')

    def tasks(self, steps: int) -> int:
        return 0

    async def check(self, stage: StageContext) -> None:
        """Reads every file once: what cannot be used is said before anything is trained."""
        count = Counter(_unsampled(found) for _, found in self._read(stage.name))
        if not count:
            raise ConfigError(f"stage '{stage.name}': {self._named} holds nothing to learn from")
        if count[True]:
            _require_cloning(stage, self._named)

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> RecordedGroups:
        groups = _Groups(context.renderer, context.runner.max_context)
        for path, found in self._read(stage):
            groups.add(path, found)
        kept = [
            g for g in groups if g.trajectories and (not self.success_only or any(t.success for t in g.trajectories))
        ]
        if groups.long:
            warnings.warn(
                f"stage '{stage}': {groups.long} conversations are longer than backend.max_context = "
                f"{context.runner.max_context} tokens, and are left out",
                RuntimeWarning,
                stacklevel=2,
            )
        if not kept:
            raise ConfigError(f"stage '{stage}': {self._named} holds no usable groups")
        return RecordedGroups(self.width, kept)

    @property
    def _named(self) -> str:
        return f"groups.files = {list(self.files)}"

    def _read(self, stage: str) -> Iterator[tuple[Path, Group | Conversation]]:
        for name in self.files:
            try:
                for found in read(Path(name), render=self.render):
                    if not isinstance(found, Conversation) or found.imitated:
                        yield Path(name), found
            except RecordError as error:
                raise ConfigError(f"stage '{stage}': groups.files: {error}") from error


def _unsampled(found: Group | Conversation) -> bool:
    if isinstance(found, Conversation):
        return True
    return any(turn.sample.versions.oldest < 0 for t in found.trajectories for turn in t.turns)


def _require_cloning(stage: StageContext, files: str) -> None:
    """Refuses a stage that asks how likely the tokens were to those who sampled them."""
    asks = [type(loss).__name__ for loss in stage.losses if "unsampled" not in valid_for(loss)]
    asks += [type(stage.estimator).__name__] * ("ref_logprobs" in stage.estimator.needs)
    if asks:
        raise ConfigError(
            f"stage '{stage.name}': {asks[0]} reads the logprobs of whoever sampled, which {files} does not have for "
            "all its turns: clone them, with losses = [{name = 'nll'}] and estimator = {name = 'constant'}"
        )


@dataclass
class _Groups:
    """The groups of all files, in order; each play has a name of its own, as the judge and the record know it by."""

    renderer: Renderer
    max_context: int
    long: int = 0
    whole: list[Group] = field(default_factory=list)
    made: dict[tuple[Path, str], list[Episode]] = field(default_factory=dict)  # of conversations, by task

    def add(self, path: Path, found: Group | Conversation) -> None:
        if isinstance(found, Group):
            self._require_readable(path, found)
            self.whole.append(found)
            return
        trajectory = rendered(found, self.renderer)
        last = len(trajectory.turns) - 1
        if len(trajectory.prompt(last)) + len(trajectory.turns[last].sample.tokens) > self.max_context:
            self.long += 1
            return
        name = f"{found.where}-{found.task.id}"
        self.made.setdefault((path, found.task.id), []).append(Episode(name, found.task, (trajectory,)))

    def __iter__(self) -> Iterator[Group]:
        made = [Group(slot, plays[0].task, tuple(plays)) for slot, plays in enumerate(self.made.values())]
        seen: Counter[str] = Counter()
        for group in (*self.whole, *made):
            episodes = []
            for episode in group.episodes:
                seen[episode.id] += 1
                again = seen[episode.id] > 1
                episodes.append(replace(episode, id=f"{episode.id}#{seen[episode.id]}") if again else episode)
            yield replace(group, episodes=tuple(episodes))

    def _require_readable(self, path: Path, group: Group) -> None:
        """Refuses tokens of another vocabulary or format: this model would learn to say something else."""
        turns = [turn for t in group.trajectories for turn in t.turns if turn.message is not None]
        if turns and (read := _read(self.renderer, turns[0])) != turns[0].message:
            raise ConfigError(
                f"groups.files: {path}: the model reads the tokens of an episode as {_short(read)}, but what was said "
                f"is {_short(turns[0].message)}, so another model sampled them: add render = true to clone "
                "what was said"
            )


def _read(renderer: Renderer, turn: Turn) -> Message | None:
    try:
        return renderer.parse(turn.sample.tokens.tolist())
    except (ActionError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _short(message: Message | None) -> str:
    return "nothing" if message is None else ascii(message.text or [call.name for call in message.calls])[:60]


def rendered(conversation: Conversation, renderer: Renderer) -> Trajectory:
    """The trajectory of a model that said what is learnt of a conversation, in one context where its format allows."""
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
    told: list[Message] = []
    new: list[Message] = []
    owed = 0.0
    for place, message in enumerate(conversation.messages):
        owed += conversation.rewards.get(place, 0.0)
        if place not in conversation.imitated:
            new.append(message)
            continue
        turns.append(replace(_turn(conversation, renderer, turns, told, new, message), reward=owed))
        told += [*new, message]
        new, owed = [], 0.0
    turns[-1] = replace(turns[-1], reward=turns[-1].reward + owed)
    return turns


def _turn(
    conversation: Conversation,
    renderer: Renderer,
    turns: Sequence[Turn],
    told: Sequence[Message],
    new: Sequence[Message],
    message: Message,
) -> Turn:
    tokens = np.asarray(renderer.encode_reply(message), dtype=np.int64)
    sample = Sample(tokens, np.zeros(len(tokens), dtype=np.float32), Versions(-1, -1), Stop.END)
    more = renderer.extend(turns[-1].sample, new) if turns else None
    if more is not None:
        return Turn(len(turns) - 1, more.tokens, sample, message, observed=tuple(new))
    context = renderer.open((*told, *new), conversation.tools).tokens
    return Turn(
        -1, context, sample, message, observed=tuple(new), context_messages=tuple(told), tools=conversation.tools
    )
