"""The drawing of a trajectory that branches."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.view.branches import branch_svg, layout
from tests.made import trajectory


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ([-1, 0, 1], [(0, 0), (1, 0), (2, 0)]),
        ([-1, 0, 0, 2], [(0, 0), (1, 0), (1, 1), (2, 1)]),  # a branch has a lane of its own, and keeps it
        ([-1, 0, -1, 2], [(0, 0), (1, 0), (0, 1), (1, 1)]),  # so has a context that was opened anew
        ([-1, 0, 0, 0, 1], [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]),  # who goes on first stays
    ],
)
def test_turns_have_places_of_their_own(parents: list[int], expected: list[tuple[int, int]]) -> None:
    found = layout(trajectory(np.random.default_rng(0), parents=parents))
    assert found == expected
    assert len(set(found)) == len(found)


def test_only_what_branches_is_drawn_with_every_turn_and_its_link() -> None:
    rng = np.random.default_rng(0)
    assert branch_svg(trajectory(rng, 3), 0, linked=True) == ""
    drawn = branch_svg(trajectory(rng, parents=[-1, 0, 0]), 1, linked=True)
    assert drawn.count("<circle") == 3
    assert drawn.count('class="branch-edge"') == 2
    assert 'href="#turn-1.2"' in drawn
    assert "href" not in branch_svg(trajectory(rng, parents=[-1, 0, 0]), 1, linked=False)
