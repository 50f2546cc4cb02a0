"""Numbers as people read them."""

from __future__ import annotations

import pytest

from sojourn.terminal.numbers import number, size
from sojourn.view.page import size as count


@pytest.mark.parametrize(
    ("value", "shown"), [(999.4, "999"), (999.7, "1,000"), (-999.7, "-1,000"), (12345.6, "12,346"), (0.0123, "0.0123")]
)
def test_a_number_below_a_power_of_ten_is_written_out(value: float, shown: str) -> None:
    assert number(value) == shown


def test_bytes_and_counts_below_the_next_unit_are_in_that() -> None:
    assert [size(n) for n in (999, 1_000, 999_700, 999_999_999)] == ["999 B", "1 kB", "1 MB", "1 GB"]
    assert [count(n) for n in (999, 1_000, 999_700, 12_345_678, 999_999_999, 4 * 10**9)] == [
        "999", "1k", "1M", "12.3M", "1G", "4G",
    ]  # fmt: skip
