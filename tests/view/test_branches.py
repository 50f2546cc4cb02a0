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
def test_every_turn_is_drawn_at_its_own_place(parents: list[int], expected: list[tuple[int, int]]) -> None:
    places = layout(trajectory(np.random.default_rng(0), parents=parents))
    assert places == expected
    assert len(set(places)) == len(places)


def test_only_branched_trajectories_are_drawn_with_a_link_for_every_turn() -> None:
    rng = np.random.default_rng(0)
    assert branch_svg(trajectory(rng, 3), 0, linked=True) == ""
    drawn = branch_svg(trajectory(rng, parents=[-1, 0, 0]), 1, linked=True)
    assert drawn.count("<circle") == 3
    assert drawn.count('class="branch-edge"') == 2
    assert 'href="#turn-1.2"' in drawn
    assert "href" not in branch_svg(trajectory(rng, parents=[-1, 0, 0]), 1, linked=False)
