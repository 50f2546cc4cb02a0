"""The facts of a run, all frozen: what was asked, said, sampled, rewarded and credited.

Facts never change once made; a judgement about a fact (`Score`, `Credit`) is a new value beside it.
Axis letters: N tokens of a batch, S sequences, T turns of a trajectory, A tokens of an action.
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

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Stop(StrEnum):
    """Why the engine stopped sampling."""

    END = "end"  # the model's own end-of-turn token, which is the last token of the sample
    CHOICE = "choice"  # a constrained choice is complete
    LENGTH = "length"  # `max_tokens` reached


class Ending(StrEnum):
    """Why a trajectory ended. The truncated endings are those after which the world would have gone on."""

    DONE = "done"
    MALFORMED = "malformed"
    TURNS = "turns"
    TOKENS = "tokens"
    TIME = "time"

    @property
    def truncated(self) -> bool:
        return self in (Ending.TURNS, Ending.TOKENS, Ending.TIME)


@dataclass(frozen=True)
class Task:
    """One thing to do in one world. `data` is JSON; everything random about it follows from `seed`."""

    env: str
    data: Mapping[str, Any]
    seed: int
    split: str
    tags: tuple[str, ...] = ()

    @cached_property
    def id(self) -> str:
        """A stable hash of the content (not of `tags`): the same task has the same id in every run and process."""
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
    """What was said, for people, judges and authors of worlds; what was sampled is never made from it."""

    role: Role
    text: str = ""
    thought: str = ""
    images: tuple[str, ...] = ()  # digests of content-addressed blobs
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None  # id or name of the call that this message answers


@dataclass(frozen=True)
class Observation:
    """What the seat whose turn it is now sees.

    `brief` are the standing messages (instructions, goal) that every context of this seat begins with: given with the
    first observation of a seat, empty afterwards. `messages` are new since the seat's last turn. `choices`, when not
    empty, are all actions possible now, as the agent would say them.
    """

    messages: tuple[Message, ...]
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    choices: tuple[str, ...] = ()
    agent: str = "agent"


@dataclass(frozen=True)
class Step:
    """What the world answered: the next observation (None when done), rewards by seat, and named numbers.

    `success` is None until it is known; evaluation counts the last one that is not None, else `return > 0`.
    """

    observation: Observation | None
    rewards: Mapping[str, float] = field(default_factory=dict)
    done: bool = False
    success: bool | None = None
    info: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. `temperature=0` is greedy. `choices` restricts the text to one of the given strings. Besides the
    model's own stop tokens, any of `stop_tokens` ends the sample, and so does the token that completes any of
    `stop_strings`; it is part of the sample.

    `seed` decides the sample together with the prompt and the weights, whatever else is sampled beside it.
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

    @property
    def truncates(self) -> bool:
        """Whether the sampled distribution is not the model's own softmax at `temperature`."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


class Versions(NamedTuple):
    """The oldest and newest weights that any token of a sample was drawn with."""

    oldest: int
    newest: int


@dataclass(frozen=True)
class Prompt:
    tokens: IntArray  # (P,)
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Exactly what the engine returned.

    `logprobs` are in nats, of the distribution actually sampled (temperature and choices included). `allowed` is None
    or, per token, the token ids that a constraint left possible (None: all were).
    """

    tokens: IntArray  # (A,)
    logprobs: FloatArray  # (A,)
    versions: Versions
    stop: Stop
    temperature: float = 1.0
    allowed: tuple[IntArray | None, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(
                f"a sample has {len(self.tokens)} tokens but {len(self.logprobs)} logprobs: "
                "the sampler must return one logprob for every token, the stop token included"
            )


@dataclass(frozen=True)
class Turn:
    """One action. `context` holds only the tokens that are new since the parent's sample; parent -1 opens a window.

    `shown` and, in a window opened later than the first, `recalled` before it are the messages that the context was
    made from, for readers; `tools` are those declared in it.
    """

    parent: int
    context: IntArray
    sample: Sample
    message: Message | None
    reward: float = 0.0
    info: Mapping[str, float] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    state: str | None = None  # `Env.state_key()` before the action, where the world has one
    observed: tuple[Message, ...] = ()  # new since the seat's last turn
    context_messages: tuple[Message, ...] = ()  # the system messages and past exchanges that a later window begins with
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True)
class Trajectory:
    """One seat's turns, a forest by `Turn.parent`: forks and rewritten contexts need no other machinery."""

    agent: str
    turns: tuple[Turn, ...]
    ending: Ending
    trainable: bool = True

    @property
    def reward(self) -> float:
        return float(sum(turn.reward for turn in self.turns))

    @property
    def success(self) -> bool:
        known = [turn.info["success"] for turn in self.turns if "success" in turn.info]
        return bool(known[-1]) if known else self.reward > 0

    def prompt(self, turn: int) -> IntArray:
        """The exact tokens that the model saw before the given turn's sample."""
        parts: list[IntArray] = [self.turns[turn].context]
        parent = self.turns[turn].parent
        while parent >= 0:
            parts += [self.turns[parent].sample.tokens, self.turns[parent].context]
            parent = self.turns[parent].parent
        return np.concatenate(parts[::-1])


@dataclass(frozen=True)
class Episode:
    """One play of one task; one trajectory per seat. `error` is an infrastructure failure: never trained on."""

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Group:
    """Episodes that may be compared with each other: several plays of one task. `slot` counts within its stage."""

    slot: int
    task: Task
    episodes: tuple[Episode, ...]

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The trainable trajectories of the episodes without error, in order; scores and credits align with it."""
        return tuple(
            t for episode in self.episodes if episode.error is None for t in episode.trajectories if t.trainable
        )

    @property
    def owners(self) -> tuple[int, ...]:
        """The number of the episode that each of `trajectories` is of."""
        numbered = [(number, e) for number, e in enumerate(self.episodes) if e.error is None]
        return tuple(number for number, episode in numbered for t in episode.trajectories if t.trainable)


@dataclass(frozen=True)
class Score:
    """A judgement of one trajectory: a reward for every turn, and named parts for people and metrics; for people alone,
    what a judge wrote, by name. Where `turns` hold penalties or shaping, `outcome` is the total without them."""

    turns: FloatArray  # (T,)
    parts: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    outcome: float | None = None  # None: `total` is it

    @property
    def total(self) -> float:
        return float(self.turns.sum())

    @property
    def result(self) -> float:
        """What the trajectory is paid for its outcome, penalties and shaping left out."""
        return self.total if self.outcome is None else self.outcome


@dataclass(frozen=True)
class Credit:
    """The advantage of every sampled token of one trajectory, one array (A,) per turn; and from estimators that train a
    critic, what it should have said before each token: NaN where it is not to be asked."""

    tokens: tuple[FloatArray, ...]
    targets: tuple[FloatArray, ...] | None = None

    @classmethod
    def uniform(cls, trajectory: Trajectory, advantage: float) -> Credit:
        """The same advantage for every token of the trajectory."""
        return cls.per_turn(trajectory, [advantage] * len(trajectory.turns))

    @classmethod
    def per_turn(cls, trajectory: Trajectory, advantages: Any) -> Credit:
        """One advantage per turn (T,), spread over the turn's tokens."""
        return cls(
            tuple(
                np.full(len(turn.sample.tokens), advantage, dtype=np.float32)
                for turn, advantage in zip(trajectory.turns, advantages, strict=True)
            )
        )


Streams = Mapping[str, list[list[tuple[FloatArray, ...]]]]
"""Side information by name: per group, per trajectory, per turn, one array (A,)."""


@dataclass(frozen=True)
class Batch:
    """Packed sequences, without padding; a token that is not trained has weight 0.

    The objective of a step is `(per_token_loss * weight).sum()`: every normalisation is already in `weight`.
    `sequence` numbers the sequences 0, 1, ... in order; positions restart with each. `allowed` maps the index of a
    constrained token to the token ids that were possible.
    """

    tokens: IntArray  # (N,)
    sequence: IntArray  # (N,)
    weight: FloatArray  # (N,)
    logprobs: FloatArray  # (N,) of the sampler
    advantages: FloatArray  # (N,)
    temperature: FloatArray  # (N,)
    trajectory: IntArray  # (N,) which trajectory of the step each token belongs to
    turn: IntArray  # (N,) which turn of the step sampled each token, -1 for those of contexts
    streams: Mapping[str, FloatArray] = field(default_factory=dict)  # name -> (N,)
    images: tuple[tuple[str, ...], ...] = ()  # per sequence
    allowed: Mapping[int, IntArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def starts(self) -> IntArray:
        """Where each sequence starts, and the end of the last: (S + 1,)."""
        if not len(self.sequence):
            return np.zeros(1, dtype=np.int64)
        edges = np.flatnonzero(np.diff(self.sequence)) + 1
        return np.concatenate([[0], edges, [len(self.sequence)]]).astype(np.int64)

    def take(self, sequences: IntArray) -> Batch:
        """The given sequences alone, in the given order."""
        return self.pick([np.arange(int(self.starts[s]), int(self.starts[s + 1])) for s in sequences])

    def pick(self, spans: Sequence[IntArray]) -> Batch:
        """A batch whose sequences are the given runs of token indices, each within one sequence of this batch."""
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

    def minibatches(self, count: int) -> Iterator[Batch]:
        """`count` parts of near-equal trajectories, each scaled to the whole's total weight: it takes a step alone."""
        if count == 1:
            yield self
            return
        owner = self.trajectory[self.starts[:-1]]  # (S,)
        whole = float(self.weight.sum())
        for part in np.array_split(np.unique(owner), count):
            batch = self.take(np.flatnonzero(np.isin(owner, part)))
            total = float(batch.weight.sum())
            if total > 0:
                yield batch.scaled(whole / total)

    def scaled(self, factor: float) -> Batch:
        return replace(self, weight=(self.weight * factor).astype(np.float32))


class Forward(NamedTuple):
    """What a pass without gradients returns for a batch's tokens; 0 at those of weight 0."""

    logprobs: FloatArray  # (N,)
    entropy: FloatArray  # (N,) in nats
    values: FloatArray  # (N,) of the critic, before each token; 0 where it was not asked
    next_values: FloatArray  # (N,) of the critic, after each token
    columns: Mapping[str, NDArray[Any]]  # (N,) each, those that were asked for by name
