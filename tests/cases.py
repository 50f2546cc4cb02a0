"""Steps made up for estimators: numbers of tokens, rewards, states and entropies said one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sojourn.types import (
    Credit,
    Ending,
    Episode,
    Group,
    Message,
    Role,
    Sample,
    Score,
    Stop,
    Task,
    Trajectory,
    Turn,
    Versions,
)


def trajectory(
    lengths, states=None, infos=None, observed=None, messages=None, logprobs=None, agent="agent"
) -> Trajectory:
    """A line of turns with so many sampled tokens each."""
    turns = []
    for n, length in enumerate(lengths):
        drawn = np.full(length, -1.0) if logprobs is None else np.array(logprobs[n])
        sample = Sample(np.arange(length), drawn.astype(np.float32), Versions(0, 0), Stop.END)
        state, info = states[n] if states else None, infos[n] if infos else {}
        shown = (Message(Role.USER, observed[n]),) if observed else ()
        reply = Message(Role.ASSISTANT, messages[n]) if messages else None
        turns.append(Turn(n - 1, np.arange(2), sample, reply, info=info, state=state, observed=shown))
    return Trajectory(agent, tuple(turns), Ending.DONE)


def group(*trajectories: Trajectory, slot: int = 0, data=None) -> Group:
    return of_episodes([(t,) for t in trajectories], slot, data)


def of_episodes(episodes, slot: int = 0, data=None) -> Group:
    """Each episode with its seats."""
    task = Task("made", data or {}, slot, "train")
    return Group(slot, task, tuple(Episode(f"{slot}-{n}", task, tuple(ts)) for n, ts in enumerate(episodes)))


def paid(*rewards) -> list[Score]:
    """A score for each list of rewards, one for each turn."""
    return [Score(np.array(turns, dtype=np.float32)) for turns in rewards]


def stream(*groups):
    """Per-token values: groups of trajectories of turns of numbers."""
    return [[tuple(np.array(turn, dtype=np.float32) for turn in t) for t in g] for g in groups]


def by_turn(credit: list[Credit]) -> list[list[float]]:
    """The advantage of each turn, which all its tokens have."""
    for one in credit:
        assert all(len(set(turn.tolist())) <= 1 for turn in one.tokens)
    return [[float(turn[0]) for turn in one.tokens] for one in credit]


def by_token(credit: list[Credit]) -> list[list[float]]:
    return [[float(x) for turn in one.tokens for x in turn] for one in credit]


def line(*messages: str, observed: Sequence[str] = (), agent: str = "agent", reward: float = 0.0) -> Trajectory:
    """A trajectory whose agent says these messages, and gets the reward at the end."""
    shown = [*observed, *["Go on."] * (len(messages) - len(observed))]
    made = trajectory([1] * len(messages), observed=shown, messages=list(messages), agent=agent)
    turns = (*made.turns[:-1], replace(made.turns[-1], reward=reward))
    return replace(made, turns=turns)
