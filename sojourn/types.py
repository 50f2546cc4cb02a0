"""The data classes of a run, all immutable: tasks, messages, samples, trajectories, rewards and credit.

None of them ever changes; what is computed from one later (`Score`, `Credit`) is a new value beside it. Axis letters,
here and elsewhere: N tokens of a batch, n of them with weight, S sequences, T turns of a trajectory, A tokens of an
action, P of a prompt, G trajectories of a group, M nodes of a tree, H hidden size, V vocabulary. They are in one file,
though a long one, as each is made of those above it, and a newcomer reads them together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.activation_steering import Steering

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Stop(StrEnum):
    """Says why the engine stopped sampling."""

    END = "end"  # a stop token of the model, or one of `stop_tokens`, or of `stop_strings`; it is part of the sample
    CHOICE = "choice"  # a constrained choice is complete
    LENGTH = "length"  # `max_tokens` reached


class Ending(StrEnum):
    """Says why a trajectory ended. After a truncated ending the environment would have gone on."""

    DONE = "done"
    MALFORMED = "malformed"  # where a malformed action ends the episode
    TURNS = "turns"  # `limits.turns` were taken
    TOKENS = "tokens"  # the context had no room for another action
    TIME = "time"  # `limits.seconds` were over
    FAILED = "failed"  # the environment failed: the turns until then, which are never trained

    @property
    def truncated(self) -> bool:
        return self in (Ending.TURNS, Ending.TOKENS, Ending.TIME)


@dataclass(frozen=True)
class Task:
    """A task of one environment. `data` is JSON, and all randomness of the task follows from `seed`."""

    env: str
    data: Mapping[str, Any]
    seed: int
    split: str
    tags: tuple[str, ...] = ()

    @cached_property
    def id(self) -> str:
        """Returns a hash of the content without `tags`: a task has the same id in every run and process."""
        content = json.dumps([self.env, dict(self.data), self.seed, self.split], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True)
class Tool:
    """A function that the agent may call; `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """A message, for people, judges and environments; what is trained are sampled tokens, never a rendered message."""

    role: Role
    text: str = ""
    thought: str = ""
    images: tuple[str, ...] = ()  # digests of content-addressed blobs
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None  # id or name of the call that this message answers


@dataclass(frozen=True)
class Observation:
    """Shows the participant that acts next, whose seat is called `agent`, what it observes.

    `system` holds the messages (instructions, goal) that every context of the seat begins with; they come with its
    first observation, as do `tools`, and stay until an observation has others. `messages` are new since its last turn.
    `choices`, where not empty, are all possible actions, as the agent would write them.
    """

    messages: tuple[Message, ...]
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    choices: tuple[str, ...] = ()
    agent: str = "agent"


@dataclass(frozen=True)
class Step:
    """The environment's answer to an action: the next observation (None when done), rewards by seat, and named numbers.

    `success` is None until it is known, and holds for all seats that get a reward. Where it is never known, a
    trajectory with a return above 0 counts as a success.
    """

    observation: Observation | None
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    done: bool = False
    success: bool | None = None
    info: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class SamplingParams:
    """Says how to sample. `temperature=0` is greedy. `choices` restricts the sample to one of the given sequences.
    Besides the model's own stop tokens, any of `stop_tokens` ends the sample, and so does the token that completes any
    of `stop_strings`; that token is part of the sample.

    `seed`, prompt and weights decide the sample, whatever is sampled beside it. `model` is asked, `steering` added.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    choices: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    model: str = field(default="policy", repr=False)
    steering: Steering | None = field(default=None, repr=False)

    @property
    def truncates(self) -> bool:
        """Returns whether tokens are cut from the softmax at `temperature`, which a trainer cannot compute again."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


class Versions(NamedTuple):
    """The oldest and newest weights that any token of a sample was drawn with; -1 where no model sampled it."""

    oldest: int
    newest: int


@dataclass(frozen=True)
class Prompt:
    tokens: IntArray  # (P,)
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Holds exactly what the sampler returned.

    `logprobs` are in nats, of the distribution that was sampled from (temperature and choices included). `allowed` is
    None or, for each token, the token ids that a constraint left possible (None: all of them).
    """

    tokens: IntArray  # (A,)
    logprobs: FloatArray  # (A,)
    versions: Versions
    stop: Stop
    temperature: float = 1.0  # also 1 where it was drawn greedily
    allowed: tuple[IntArray | None, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(
                f"a sample has {len(self.tokens)} tokens but {len(self.logprobs)} logprobs: "
                "the sampler must return one logprob for every token, the stop token included"
            )


class Considered(NamedTuple):
    """An action that a search tried in a copy of the play, after the one of number `parent` among those of its turn
    (-1: in the turn itself). `value` is its estimated worth, over `visits` trials; NaN where there is none."""

    parent: int
    agent: str
    text: str
    value: float
    visits: int


@dataclass(frozen=True)
class Turn:
    """One action. `context` and `images` are new since the sample of turn `parent`; with -1 a new context begins.

    `observed` are the messages that are new since the seat's last turn. In a turn that begins a new context, but is not
    the seat's first, `context_messages` are those that the context shows before `observed`: system messages and past
    exchanges. Both are for display. `tools` are those declared in a new context, and `considered` what a search tried.
    `notes` are texts by name that an agent keeps of the turn, for people who look at it.
    """

    parent: int
    context: IntArray
    sample: Sample
    message: Message | None  # None: the sample could not be read as one
    reward: float = 0.0
    info: Mapping[str, float] = field(default_factory=dict[str, float])
    images: tuple[str, ...] = ()
    state: str | None = None  # `Env.state_key()` before the action, where the world has one
    observed: tuple[Message, ...] = ()
    context_messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    considered: tuple[Considered, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Trajectory:
    """The turns of one seat in an episode. They are a forest by `Turn.parent`: a rewritten context is a new root.

    `unacted_reward` and `unacted_info` are what a seat that never acted was given, as it has no turn to hold them.
    """

    agent: str
    turns: tuple[Turn, ...]
    ending: Ending
    trainable: bool = True
    unacted_reward: float = 0.0
    unacted_info: Mapping[str, float] = field(default_factory=dict[str, float])
    model: str = "policy"  # that took the turns

    @property
    def reward(self) -> float:
        return float(sum((turn.reward for turn in self.turns), self.unacted_reward))

    @property
    def success(self) -> bool:
        infos = [turn.info for turn in self.turns] or [self.unacted_info]
        known = [info["success"] for info in infos if "success" in info]
        return bool(known[-1]) if known else self.reward > 0

    def prompt(self, turn: int) -> IntArray:
        """Returns the exact tokens of the model's context before the sample of a turn."""
        parts: list[IntArray] = [self.turns[turn].context]
        parent = self.turns[turn].parent
        while parent >= 0:
            parts += [self.turns[parent].sample.tokens, self.turns[parent].context]
            parent = self.turns[parent].parent
        return np.concatenate(parts[::-1])


@dataclass(frozen=True)
class Branch:
    """Says that a play began in the middle of episode `of` of its group: the first `turns` turns of each trajectory, in
    the order of the trajectories, have the same `Sample` objects there. `reason` says, for people, why it forked."""

    of: str
    turns: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True)
class Episode:
    """One play of a task, with a trajectory for each seat; never trained where it has an `error` of infrastructure: its
    trajectories then hold the turns before the failure. One with a `close_error` was complete before its environment
    failed to close, and is trained. `traceback` is of the failure, also of one for which an action was to blame."""

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]
    error: str | None = None
    seconds: float = 0.0
    close_error: str | None = None
    traceback: str | None = None
    branch: Branch | None = None  # where it began, if not at the start of the task


@dataclass(frozen=True)
class Group:
    """Episodes of one task, whose returns may be compared; `slot` is what they were played for (`sources/slots.py`)."""

    slot: int
    task: Task
    episodes: tuple[Episode, ...]
    origin: str = "policy"  # or the source that gave them, where another played them or at another time

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Returns the trainable trajectories of episodes without error, in order; scores and credits are for these."""
        return tuple(t for e in self.episodes if e.error is None for t in e.trajectories if t.trainable)

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """Returns, for each of `trajectories`, the number of its episode in `episodes`."""
        numbered = [(number, e) for number, e in enumerate(self.episodes) if e.error is None]
        return tuple(number for number, episode in numbered for t in episode.trajectories if t.trainable)

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Returns, for each turn of each of `trajectories`, which of them trains it: the trajectory itself or, where
        branches share the turn, the first one that has its sample."""
        left = {episode.branch.of for episode in self.episodes if episode.branch is not None}
        first: dict[int, int] = {}
        found: list[tuple[int, ...]] = []
        for number, (owner, trajectory) in enumerate(zip(self.owners, self.trajectories, strict=True)):
            episode = self.episodes[owner]
            known = first if episode.branch is not None or episode.id in left else {}
            found.append(tuple(known.get(id(turn.sample), number) for turn in trajectory.turns))
            first.update({id(turn.sample): at for turn, at in zip(trajectory.turns, found[-1], strict=True)})
        return tuple(found)


@dataclass(frozen=True)
class Score:
    """The reward of one trajectory, by turn. `parts` names what it is made of, for metrics, and `words` is what a judge
    wrote. Where `turns` include penalties or shaping, `outcome` is the total without them; where a seat never acted, it
    is the total."""

    turns: FloatArray  # (T,)
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    outcome: float | None = None  # None: `total` is it

    @property
    def total(self) -> float:
        return float(self.turns.sum(dtype=np.float64)) if len(self.turns) else self.outcome or 0.0

    @property
    def result(self) -> float:
        """Returns the reward without penalties and shaping: `outcome` or, where that is None, `total`."""
        return self.total if self.outcome is None else self.outcome


@dataclass(frozen=True)
class Credit:
    """The advantage of every sampled token of a trajectory, one array (A,) per turn. Estimators that train a critic
    also say in `targets` what it should predict before each token; NaN: nothing is asked of it there."""

    tokens: tuple[FloatArray, ...]
    targets: tuple[FloatArray, ...] | None = None

    @classmethod
    def uniform(cls, trajectory: Trajectory, advantage: float) -> Credit:
        """Gives every token of the trajectory the same advantage."""
        return cls.per_turn(trajectory, [advantage] * len(trajectory.turns))

    @classmethod
    def per_turn(cls, trajectory: Trajectory, advantages: Any) -> Credit:
        """Gives every token of a turn the same advantage, from one per turn (T,)."""
        pairs = zip(trajectory.turns, advantages, strict=True)
        return cls(tuple(np.full(len(turn.sample.tokens), one, dtype=np.float32) for turn, one in pairs))


Streams = Mapping[str, list[list[tuple[FloatArray, ...]]]]
"""Side information for the sampled tokens: `streams[name][group][trajectory][turn]` is an array (A,)."""


@dataclass(frozen=True)
class Batch:
    """Packed sequences, without padding; a token that is not trained has weight 0.

    The objective of an update is `(per_token_loss * weight).sum()`: every normalisation is already in `weight`.
    `sequence` numbers the sequences, which are root-to-leaf paths of turns, 0, 1, ... in order; positions restart with
    each. `allowed` maps the index of a constrained token to the token ids that were possible.
    """

    tokens: IntArray  # (N,)
    sequence: IntArray  # (N,)
    weight: FloatArray  # (N,)
    logprobs: FloatArray  # (N,) of the sampler
    advantages: FloatArray  # (N,)
    temperature: FloatArray  # (N,)
    trajectory: IntArray  # (N,) which trajectory of the step each token belongs to
    turn: IntArray  # (N,) numbers the turns, those of each trajectory in their order; -1 at tokens of contexts
    streams: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])  # name -> (N,)
    images: tuple[tuple[str, ...], ...] = ()  # per sequence
    allowed: Mapping[int, IntArray] = field(default_factory=dict[int, IntArray])

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def offsets(self) -> IntArray:
        """Returns the start of each sequence, and the end of the last: (S + 1,)."""
        if not len(self.sequence):
            return np.zeros(1, dtype=np.int64)
        edges = np.flatnonzero(np.diff(self.sequence)) + 1
        return np.concatenate([[0], edges, [len(self.sequence)]]).astype(np.int64)

    def take(self, sequences: IntArray) -> Batch:
        """Returns a batch of the given sequences, in the given order."""
        return self.pick([np.arange(int(self.offsets[s]), int(self.offsets[s + 1])) for s in sequences])

    def pick(self, spans: Sequence[IntArray]) -> Batch:
        """Returns a batch whose sequences are these ranges of token indices, each within one sequence of this batch."""
        index = np.concatenate([*spans, np.zeros(0, dtype=np.int64)]).astype(np.int64)
        where = {int(old): new for new, old in enumerate(index)} if self.allowed else {}
        return Batch(
            tokens=self.tokens[index],
            sequence=np.repeat(np.arange(len(spans)), [len(span) for span in spans]),
            weight=self.weight[index],
            logprobs=self.logprobs[index],
            advantages=self.advantages[index],
            temperature=self.temperature[index],
            trajectory=self.trajectory[index],
            turn=self.turn[index],
            streams={name: values[index] for name, values in self.streams.items()},
            images=tuple(self.images[self.sequence[span[0]]] for span in spans) if self.images else (),
            allowed={where[i]: ids for i, ids in self.allowed.items() if i in where},
        )

    def minibatches(self, count: int, *, constant: bool = False) -> Iterator[Batch]:
        """Divides the trajectories, in order, into `count` minibatches (or none) of equal size within 1, some of them
        empty if there are fewer. Their weights are scaled so that each counts as a whole batch: to the batch's sum of
        weights or, with `constant`, by the ratio of the numbers of trajectories."""
        if count == 1:
            yield self
            return
        owner = self.trajectory[self.offsets[:-1]]  # (S,)
        whole, every = float(self.weight.sum()), np.unique(owner)
        for part in np.array_split(every, count) if count else ():
            batch = self.take(np.flatnonzero(np.isin(owner, part)))
            total = whole * len(part) / max(len(every), 1) if constant else float(batch.weight.sum())
            yield batch.scaled(whole / total) if total > 0 else batch

    def scaled(self, factor: float) -> Batch:
        return replace(self, weight=(self.weight * factor).astype(np.float32))
