"""Latent strategies: what was said, divided into a few kinds by its words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float64]  # (N, W)

MAX_ROUNDS = 100  # of k-means


def strategies(texts: Iterable[str], count: int) -> dict[str, int]:
    """Returns the number of the strategy of each different text: by k-means with `count` clusters over the words of the
    texts, as vectors of length 1; each its own where there are no more than `count`.

    The result depends on the set of texts alone: the first centre is the text nearest to the mean of all, and each
    further one the text that is furthest from its nearest centre.
    """
    distinct = sorted(set(texts))
    if len(distinct) <= count:
        return {text: number for number, text in enumerate(distinct)}
    features = bags_of_words(distinct)
    labels = _nearest(features, features[_first_centres(features, count)])
    for _ in range(MAX_ROUNDS):
        kept = np.unique(labels)
        centres = np.stack([features[labels == label].mean(0) for label in kept])
        moved = _nearest(features, centres)
        if np.array_equal(moved, np.searchsorted(kept, labels)):
            break
        labels = moved
    _, numbers = np.unique(labels, return_inverse=True)
    return {text: int(number) for text, number in zip(distinct, numbers, strict=True)}


def bags_of_words(texts: Sequence[str]) -> Features:
    """Returns how often each word is in each text, in lower case, as vectors of length 1 (0 for none): (N, W)."""
    split = [re.findall(r"\w+", text.lower()) for text in texts]
    place = {word: n for n, word in enumerate(sorted({word for words in split for word in words}))}
    counts = np.zeros((len(texts), len(place)))
    for row, words in zip(counts, split, strict=True):
        np.add.at(row, [place[word] for word in words], 1.0)
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    return counts / np.where(lengths > 0, lengths, 1.0)


def _first_centres(features: Features, count: int) -> list[int]:
    chosen = [int(_distances(features, features.mean(0, keepdims=True))[:, 0].argmin())]
    while len(chosen) < count:
        chosen.append(int(_distances(features, features[chosen]).min(1).argmax()))
    return chosen


def _nearest(features: Features, centres: Features) -> NDArray[np.int64]:
    return _distances(features, centres).argmin(1)


def _distances(features: Features, centres: Features) -> Features:
    """Returns squared distances: (N, centres)."""
    return np.stack([((features - centre) ** 2).sum(1) for centre in centres], axis=1)
