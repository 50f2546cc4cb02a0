"""Trajectories, groups and batches made up for tests; numbers only, no mocks of any role."""

from __future__ import annotations

from functools import cache

import numpy as np

from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.batch import Aggregate, share, to_batch
from sojourn.render.chatml import ChatML
from sojourn.types import Batch, Credit, Ending, Episode, Group, Sample, Score, Stop, Task, Trajectory, Turn, Versions


@cache
def chatml(*, thinking: bool = False):
    """The real renderer of the tiny model."""
    return ChatML(thinking=thinking).bind(build_tokenizer())


TASK = Task("made", {}, 0, "train")


def sample(tokens: list[int], logprob: float = -1.0, temperature: float = 1.0) -> Sample:
    return Sample(
        np.array(tokens), np.full(len(tokens), logprob, dtype=np.float32), Versions(0, 0), Stop.END, temperature
    )


def trajectory(
    rng: np.random.Generator, turns: int = 3, parents: list[int] | None = None, vocabulary: int = 300
) -> Trajectory:
    """Turns of 4-9 context tokens and 2-6 sampled ones; by default a line, else a forest with the given parents."""
    parents = list(range(-1, turns - 1)) if parents is None else parents
    made = []
    for parent in parents:
        context = rng.integers(0, vocabulary, int(rng.integers(4, 10)))
        tokens = rng.integers(0, vocabulary, int(rng.integers(2, 7))).tolist()
        made.append(Turn(parent, context, sample(tokens, float(-rng.uniform(0.5, 5))), None))
    return Trajectory("agent", tuple(made), Ending.DONE)


def group(trajectories: list[Trajectory], slot: int = 0) -> Group:
    return Group(slot, TASK, tuple(Episode(f"{slot}-{n}", TASK, (t,)) for n, t in enumerate(trajectories)))


def score(t: Trajectory, total: float) -> Score:
    """All reward at the last turn."""
    turns = np.zeros(len(t.turns), dtype=np.float32)
    turns[-1] = total
    return Score(turns)


def batch(rng: np.random.Generator, groups: int = 2, size: int = 3, vocabulary: int = 300) -> Batch:
    made = [group([trajectory(rng, vocabulary=vocabulary) for _ in range(size)], slot) for slot in range(groups)]
    credit = [[Credit.uniform(t, float(rng.normal())) for t in g.trajectories] for g in made]
    return to_batch(made, credit, {}, aggregate=Aggregate())


def tree(lengths=(150, 40, 33, 5), prompt=90) -> share.Tree:
    """Sequences that share a prompt, some also first words, one that begins another, and one apart."""
    rng = np.random.default_rng(0)
    start, word = rng.integers(0, 50, prompt), rng.integers(0, 50, 7)
    tails = [rng.integers(50, 99, n) for n in lengths]
    sequences = [np.concatenate([start, word, tails[0]]), np.concatenate([start, word, tails[1]])]
    sequences += [np.concatenate([start, word]), np.concatenate([start, tails[2]]), tails[3]]
    tokens, numbers = np.concatenate(sequences), np.repeat(np.arange(5), [len(s) for s in sequences])
    ones = np.ones(len(tokens), dtype=np.float32)
    return share.merge(Batch(tokens, numbers, ones, ones, ones, ones, numbers, numbers))
