"""Plays that fork, made up for tests: the same small tree for all, and random ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from made import group, score, trajectory

from sojourn.types import Branch, Group, Score

RETURNS = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0}


def tree() -> Group:
    """Two roots: a, of four turns, from which b left after the first turn and c, from b, after its second; d, of one.

    turns of a: 0 | 1 2 3      b: 0 | 4 | 5      c: 0 | 4 | 6      d: 7
    """
    rng = np.random.default_rng(0)
    a, others, d = trajectory(rng, turns=4), trajectory(rng, turns=3), trajectory(rng, turns=1)
    fresh = others.turns
    b = replace(a, turns=(a.turns[0], replace(fresh[0], parent=0), replace(fresh[1], parent=1)))
    c = replace(a, turns=(*b.turns[:2], replace(fresh[2], parent=1)))
    made = group([a, b, c, d])
    names = [replace(e, id=name) for e, name in zip(made.episodes, "abcd", strict=True)]
    branches = {"b": Branch("a", (1,)), "c": Branch("b", (2,))}
    return replace(made, episodes=tuple(replace(e, branch=branches.get(e.id)) for e in names))


def scores(of: Group) -> list[Score]:
    """All reward at the end: that of `RETURNS`."""
    return [score(t, RETURNS[of.episodes[owner].id]) for t, owner in zip(of.trajectories, of.owners, strict=True)]


def advantages(estimator, of: Group, judged: list[Score] | None = None) -> dict[str, list[float]]:
    """The advantage of each turn, by the id of its play."""
    [credits] = estimator([of], [scores(of) if judged is None else judged], {})
    return {
        of.episodes[owner].id: [round(float(tokens[0]), 4) for tokens in credit.tokens]
        for owner, credit in zip(of.owners, credits, strict=True)
    }


def apart(of: Group) -> Group:
    """The same plays, each by itself."""
    return replace(of, episodes=tuple(replace(episode, branch=None) for episode in of.episodes))


@st.composite
def trees(draw, shared: int | None = None) -> Group:
    """A group of up to six plays, each a root or a branch of an earlier one."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    made = [trajectory(rng, turns=draw(st.integers(1, 4))) for _ in range(draw(st.integers(2, 6)))]
    whole = group(made)
    episodes = list(whole.episodes[:1])
    for episode in whole.episodes[1:]:
        of = draw(st.none() | st.sampled_from(episodes))
        if of is not None:
            theirs, (own,) = of.trajectories[0].turns, episode.trajectories
            count = shared if shared is not None else draw(st.integers(0, len(theirs)))
            began = [replace(turn, reward=turn.reward + 1) for turn in theirs[:count]]  # what it is paid may differ
            later = [replace(turn, parent=number - 1) for number, turn in enumerate(own.turns, count)]
            trajectories = (replace(own, turns=(*began, *later)),)
            episode = replace(episode, trajectories=trajectories, branch=Branch(of.id, (count,), "drawn"))
        episodes.append(episode)
    return replace(whole, episodes=tuple(episodes))
