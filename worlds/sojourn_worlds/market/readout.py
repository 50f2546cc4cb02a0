"""What moves the buyer: a conditional logit of recorded choices on place, badges, price, rating and reviews.

The model is that of ACES (Allouah et al. 2025, arXiv:2508.02630), after McFadden (1974): the probability of a product
is the softmax of a linear utility over its shelf. As everything is randomised, the coefficients are effects, not
correlations. The features are those of ACES: the first row, every column but the last, the three badges, the logarithm
of the price, stars, and the logarithm of one more than the reviews. It differs in that products are new on every shelf,
so that their fixed effects have no place, and that what the product is worth to its user can be one of the features.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import ConfigError
from sojourn.types import Episode
from sojourn_worlds.market import shelf_of
from sojourn_worlds.market.shelf import Shelf

Floats = NDArray[np.float64]
BOUGHT = re.compile(r"\s*buy\[\s*(\d{1,3})\s*\]\s*", re.IGNORECASE)
STEPS = 50
LARGEST = 30.0  # a coefficient beyond it says that the choices are fully told by a feature


class Choice(NamedTuple):
    shelf: Shelf
    taken: int  # a place, from 0


@dataclass(frozen=True)
class Readout:
    """The coefficients by name with their standard errors, and the number of choices."""

    names: tuple[str, ...]
    coefficients: Floats  # (F,)
    errors: Floats  # (F,)
    count: int
    log_likelihood: float
    null: float  # the log-likelihood of choosing at random

    @property
    def pseudo_r2(self) -> float:
        """Returns McFadden's pseudo R2: how much of the log-likelihood of chance is explained."""
        return 1.0 - self.log_likelihood / self.null

    def coefficient(self, name: str) -> float:
        return float(self.coefficients[self.names.index(name)])

    def error(self, name: str) -> float:
        return float(self.errors[self.names.index(name)])

    def share(self, name: str, products: int) -> float:
        """Returns how often a product with one more of a feature is chosen among others that are equal but for that."""
        weight = float(np.exp(self.coefficient(name)))
        return weight / (weight + products - 1)

    def __str__(self) -> str:
        rows = [
            f"{name:12} {b:+.3f} ± {e:.3f}"
            for name, b, e in zip(self.names, self.coefficients, self.errors, strict=True)
        ]
        return "\n".join([*rows, f"{self.count} choices, pseudo R2 {self.pseudo_r2:.3f}"])


def choices(episodes: Iterable[Episode]) -> list[Choice]:
    """Returns the purchases of recorded episodes of markets; episodes without one, or with an error, are left out."""
    purchases = []
    for episode in episodes:
        if episode.task.env != "market" or episode.error is not None:
            continue
        shelf = shelf_of(episode.task)
        for trajectory in episode.trajectories:
            message = trajectory.turns[-1].message if trajectory.turns else None
            bought = BOUGHT.fullmatch(message.text) if message is not None else None
            if bought and 1 <= int(bought[1]) <= len(shelf.products):
                purchases.append(Choice(shelf, int(bought[1]) - 1))
    return purchases


def features(shelf: Shelf, *, worth: bool = False) -> tuple[tuple[str, ...], Floats]:
    """Returns the names of the features, and their values for each product: (P, F)."""
    places = np.arange(len(shelf.products))
    named = {"row_1": places < shelf.columns}
    named |= {f"column_{column + 1}": places % shelf.columns == column for column in range(shelf.columns - 1)}
    for name, values in {
        "sponsored": [product.sponsored for product in shelf.products],
        "pick": [product.pick for product in shelf.products],
        "scarce": [product.left > 0 for product in shelf.products],
        "log_price": np.log([product.price for product in shelf.products]),
        "stars": [product.rating for product in shelf.products],
        "log_reviews": np.log1p([product.reviews for product in shelf.products]),
    }.items():
        named[name] = np.asarray(values)
    if worth:
        named["worth"] = np.asarray(shelf.worth)
    return tuple(named), np.stack([np.asarray(values, float) for values in named.values()], axis=1)


def read(taken: Sequence[Choice], *, worth: bool = False) -> Readout:
    """Fits the model to choices; with `worth`, what products are worth to their users is a feature too.

    Features that never vary on any shelf (badges where there are none, the row of a single row) are left out.
    """
    if not taken:
        raise ConfigError(
            "a read-out needs choices, but there is none: give episodes of a market that end in a purchase"
        )
    made = [features(choice.shelf, worth=worth) for choice in taken]
    names = made[0][0]
    if any(other != names for other, _ in made):
        raise ConfigError(
            "a read-out needs shelves of one width, but these differ in columns: read each width by itself"
        )
    varying = np.any([np.ptp(values, axis=0) > 0 for _, values in made], axis=0)
    names = tuple(name for name, varies in zip(names, varying, strict=True) if varies)
    return fit(names, [values[:, varying] for _, values in made], [choice.taken for choice in taken])


def fit(names: tuple[str, ...], shelves: Sequence[Floats], taken: Sequence[int]) -> Readout:
    """Maximises the conditional logit's likelihood by Newton's method, with errors from the observed information.

    `shelves` are the features of each choice's products, (P, F), where P may differ.
    """
    width = max(len(values) for values in shelves)
    there = np.stack([np.arange(width) < len(values) for values in shelves])  # (C, P)
    padded = [np.pad(np.asarray(values, float), ((0, width - len(values)), (0, 0))) for values in shelves]
    x = np.stack(padded)  # (C, P, F)
    chosen = x[np.arange(len(taken)), np.asarray(taken)]  # (C, F)
    beta = np.zeros(len(names))
    value, gradient, information = _likelihood(beta, x, there, chosen)
    for _ in range(STEPS):
        try:
            step = np.linalg.solve(information, gradient)
        except np.linalg.LinAlgError:
            raise ConfigError(
                f"the choices do not tell {', '.join(names)} apart: give more choices, or shelves that vary more"
            ) from None
        size = 1.0
        while (tried := _likelihood(beta + size * step, x, there, chosen))[0] < value - 1e-12 and size > 1e-8:
            size /= 2
        beta, (value, gradient, information) = beta + size * step, tried
        if np.abs(beta).max() > LARGEST:
            raise ConfigError(
                f"{names[int(np.abs(beta).argmax())]} tells the choices completely, so that no size of its effect fits "
                "best: give more choices, or of a less decided buyer"
            )
        if np.abs(step).max() < 1e-9:
            break
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    null = -float(np.log(there.sum(axis=1)).sum())
    return Readout(names, beta, errors, len(taken), value, null)


def _likelihood(beta: Floats, x: Floats, there: NDArray[np.bool_], chosen: Floats):
    """Returns the log-likelihood, its gradient (F,), and the negative of its second derivative (F, F)."""
    utility = np.where(there, x @ beta, -np.inf)  # (C, P)
    highest = utility.max(axis=1, keepdims=True)
    weight = np.exp(utility - highest)
    total = weight.sum(axis=1, keepdims=True)
    share = weight / total
    mean = np.einsum("cp,cpf->cf", share, x)
    value = float((chosen @ beta).sum() - (highest + np.log(total)).sum())
    spread = np.einsum("cp,cpf,cpg->fg", share, x, x) - mean.T @ mean
    return value, (chosen - mean).sum(axis=0), spread
