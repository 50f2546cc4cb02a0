"""Tells which values of a world are numbers that a run can use: real, finite, and small enough for 32 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, cast

import numpy as np

LARGEST = float(np.finfo(np.float32).max)  # scores are kept in 32 bits
NUMBERS = (float, int, Real, np.bool_)  # the first two are Real, and found sooner


def tolerance(values: Any) -> float:
    """Returns how far equal numbers may be apart among `values`, as they are sums of numbers in 32 bits."""
    return 1e-6 * float(np.abs(values).max(initial=0.0))


def differ(values: Any) -> bool:
    """Returns whether any of some numbers differ by more than rounding to 32 bits leaves between equal ones."""
    return len(values) > 1 and float(np.ptp(values)) > tolerance(values)


def is_number(value: Any) -> bool:
    """Returns whether the value is a real number of Python or numpy, finite or not."""
    return isinstance(value, NUMBERS)


def is_success(value: Any) -> bool:
    """Returns whether the value is true, false, or None (not known yet)."""
    return value is None or (is_number(value) and value in (0, 1))


def as_finite(value: Any) -> float | None:
    """Returns the number as a float, or None for what is no number or does not fit into 32 bits."""
    if type(value) is float:
        return value if abs(value) <= LARGEST else None
    try:
        number = float(value) if is_number(value) else math.nan
    except OverflowError:
        return None
    return number if abs(number) <= LARGEST else None


def finite_by_name(value: Any) -> dict[str, float] | None:
    """Returns a table of numbers by name as floats, or None for what is no such table or has other numbers."""
    if not isinstance(value, Mapping):
        return None
    found: dict[str, float] = {}
    for name, number in cast("Mapping[Any, Any]", value).items():
        if not isinstance(name, str) or (known := as_finite(number)) is None:
            return None
        found[name] = known
    return found
