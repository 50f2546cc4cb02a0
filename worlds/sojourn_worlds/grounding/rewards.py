"""Rewards of a point or a box for a target box, each from 0 to 1.

- inside: 1 where the point (of a box: its centre) is within the target.
- distance: 1 at the target's centre, falling linearly to 0 at a fifth of the screen's diagonal.
- gaussian: GUI-G2 (Tang et al. 2025, arXiv:2507.15846). A point pays exp(-(dx/sx)^2/2 - (dy/sy)^2/2), with standard
  deviations that are half the target's width and height, so that small targets ask for more precision. A box pays the
  mean of that and of how much the two boxes' Gaussians overlap (their Bhattacharyya coefficient).
- sized: GUI-G1 (Zhou et al. 2025, arXiv:2505.15810), which adds to the hit a quarter of the boxes' intersection over
  union and an eighth of a term for the right size, the harmonic mean over the four edges of 1 minus the error in units
  of the screen's side: a hit alone rewards boxes that are too small, the union such as are too large. Scaled to 1.

Formulas and weights are those of public implementations of both, GUI-G1's of its authors, whose union counts pixels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

REACH = 0.2  # of the screen's diagonal
SPREAD = 0.5  # standard deviation in units of the target's sides
OVERLAP, SIZE = 0.25, 0.125  # weights beside the hit


class Box(NamedTuple):
    """Edges in pixels; a point is a box without extent."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def centre(self) -> tuple[float, float]:
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    @property
    def size(self) -> tuple[float, float]:
        return self.right - self.left, self.bottom - self.top


def inside(answer: Box, target: Box, screen: tuple[int, int]) -> float:
    x, y = answer.centre
    return float(target.left <= x <= target.right and target.top <= y <= target.bottom)


def distance(answer: Box, target: Box, screen: tuple[int, int]) -> float:
    far = math.dist(answer.centre, target.centre)
    return max(0.0, 1 - far / (REACH * math.hypot(*screen)))


def gaussian(answer: Box, target: Box, screen: tuple[int, int]) -> float:
    exponent, coverage = 0.0, 1.0
    for here, there, extent, wanted in zip(answer.centre, target.centre, answer.size, target.size, strict=True):
        own, other = (SPREAD * max(size, 1.0) for size in (extent, wanted))
        exponent += ((here - there) / other) ** 2 / 2
        both = own**2 + other**2
        coverage *= math.sqrt(2 * own * other / both) * math.exp(-((here - there) ** 2) / (4 * both))
    point = math.exp(-exponent)
    return point if answer.size == (0, 0) else (point + coverage) / 2


def sized(answer: Box, target: Box, screen: tuple[int, int]) -> float:
    (w, h), (tw, th) = answer.size, target.size
    common_w = max(0.0, min(answer.right, target.right) - max(answer.left, target.left))
    common_h = max(0.0, min(answer.bottom, target.bottom) - max(answer.top, target.top))
    common = common_w * common_h
    union = w * h + tw * th - common
    near = [1 - abs(a - t) / side for a, t, side in zip(answer, target, (*screen, *screen), strict=True)]
    right_size = 4 / sum(1 / part for part in near) if min(near) > 0 else 0.0
    total = inside(answer, target, screen) + OVERLAP * common / union + SIZE * right_size
    return total / (1 + OVERLAP + SIZE)


def difficulty(target: Box, screen: tuple[int, int]) -> float:
    """Returns how small a target is: the inverse of its fraction of the screen's area, at least 1.

    GUI-G1 begins with this number (appendix C.3), of which the estimator `difficulty` makes the paper's weights.
    """
    width, height = target.size
    return max(1.0, screen[0] * screen[1] / (width * height))


REWARDS = {"inside": inside, "distance": distance, "gaussian": gaussian, "sized": sized}
