"""Information gains as rewards, against small examples worked by hand from the papers' equations."""

import numpy as np
import pytest
from cases import by_turn, group, of_episodes, paid, stream, trajectory

from sojourn.checks.estimator import check_estimator
from sojourn.credit.grpo import GRPO
from sojourn.credit.papers.igpo import IGPO


def gained(*gains):
    """Each turn's gain at its last token."""
    return {"information_gain": stream([[[0.0, gain] for gain in turns] for turns in gains])}


def step():
    """Of beliefs exp(-3), exp(-1.5), exp(-0.3) and right in the end; of exp(-3), exp(-2.5) and wrong."""
    beliefs = [np.exp([-3, -1.5, -0.3]), np.exp([-3, -2.5])]
    made = group(*(trajectory([2] * len(some)) for some in beliefs))
    return [made], [paid([0.25, 0, 0.75], [0, 0])], gained(*([*np.diff(some), 0.0] for some in beliefs))


def test_joint_by_hand():
    [credit] = IGPO(epsilon=0.0)(*step())
    assert by_turn(credit)[0] == pytest.approx([1.7496, 2.2058, 1.7451], abs=1e-4)
    assert by_turn(credit)[1] == pytest.approx([-1.7496, -0.9178], abs=1e-4)


def test_separate_by_hand():
    """Gains 0.1733, 0.5177, 0.0323: mean 0.2411, deviation 0.2039. Returns 1 and 0."""
    [credit] = IGPO(normalisation="separate", epsilon=0.0)(*step())
    assert by_turn(credit)[0] == pytest.approx([-0.3324 + 1.3566 + 1, 1.3566 + 1, 1], abs=1e-4)
    assert by_turn(credit)[1] == pytest.approx([-1.0242 - 1, -1], abs=1e-4)


def malformed_step():
    infos = [{}, {"malformed": 1.0}, {}]
    made = group(trajectory([2] * 3), trajectory([2] * 3, infos=infos))
    return [made], [paid([0, 0, 1], [0, 0, 0])], gained([1.5, 1.2, 0], [0.5, 7.0, 0])


def test_scaled_by_hand():
    """Gains 1.5, 1.2, 0.5, and -1 for the malformed turn: of mean size 0.8284 once standardised, that of returns 1."""
    [credit] = IGPO(normalisation="scaled", discount=0.95, malformed_penalty=1.0, epsilon=0.0)(*malformed_step())
    assert by_turn(credit)[0] == pytest.approx([2.8619, 1.7625, 1.0], abs=1e-4)
    assert by_turn(credit)[1] == pytest.approx([-2.8056, -2.8875, -1.0], abs=1e-4)


def test_malformed_turns_are_turns_like_others_unless_they_cost():
    groups, scores, streams = malformed_step()
    plain = group(*(trajectory([2] * 3) for _ in range(2)))
    assert by_turn(IGPO()(groups, scores, streams)[0]) == by_turn(IGPO()([plain], scores, streams)[0])


def test_a_malformed_last_turn_costs_its_return():
    """Of single turns that are paid 1, 1 and 0, the second is worth -2: a mean of -1/3, a deviation of 1.2472."""
    infos = [[{}], [{"malformed": 1.0}], [{}]]
    made = group(*(trajectory([2], infos=one) for one in infos))
    [credit] = IGPO(malformed_penalty=2.0, epsilon=0.0)([made], [paid([1], [1], [0])], gained([0], [0], [0]))
    assert [turns[0] for turns in by_turn(credit)] == pytest.approx([1.0690, -1.3363, 0.2673], abs=1e-4)


def lot(*, gaining=1, still=0, success=True):
    """Groups of two, of whose first turns one gained 1 and the other 0, or neither; the first succeeds, or neither."""
    groups = [group(*(trajectory([2, 2]) for _ in range(2)), slot=slot) for slot in range(gaining + still)]
    gains = [gained([float(slot < gaining), 0], [0, 0])["information_gain"][0] for slot in range(gaining + still)]
    return groups, [paid([0, float(success)], [0, 0])] * len(groups), {"information_gain": gains}


@pytest.mark.parametrize(
    ("step", "scale"),
    [
        (lot(), 1),
        (lot(still=2), 3),  # gains of mean size 1/3 beside returns of 1
        (lot(still=19), 10),  # at the most, though gains are of 1/20
        (lot(success=False), 0.3),  # at the least, though returns are all alike
        (lot(success=False, still=2), 0.9),
    ],
)
def test_the_scale_of_gains_is_that_of_the_step(step, scale):
    first, *rest = IGPO(normalisation="scaled", discount=0.0, epsilon=0.0)(*step)
    assert [turns[0] for turns in by_turn(first)] == pytest.approx([scale, -scale])
    assert all(by_turn(other)[0][0] == 0 for other in rest)
    size = float(step[1][0][0].total)
    assert [turns[1] for turns in by_turn(first)] == [size, -size]


def test_plays_of_one_turn_have_their_returns_beside_each_other():
    groups, scores = [group(*(trajectory([2]) for _ in range(3)))], [paid([1], [0], [0])]
    expected = by_turn(GRPO()(groups, scores, {})[0])
    for pool in ("joint", "separate", "scaled"):
        assert by_turn(IGPO(normalisation=pool)(groups, scores, gained([0], [0], [0]))[0]) == expected


def test_seats_are_compared_with_their_own_kind():
    main, called = trajectory([2, 2]), trajectory([2, 2], agent="searcher")
    made, streams = of_episodes([[main, called], [main, called]]), gained([1, 0], [50, 0], [0, 0], [40, 0])
    for pool in ("separate", "scaled"):
        [credit] = IGPO(normalisation=pool, epsilon=0.0)([made], [paid([0, 1], [0, 7], [0, 0], [0, 9])], streams)
        assert by_turn(credit) == [[2, 1], [0, -1], [-2, -1], [0, 1]]


@pytest.mark.parametrize("pool", ["joint", "separate", "scaled"])
@pytest.mark.parametrize("malformed", [None, 1.0])
def test_it_keeps_its_promises(pool, malformed):
    report = check_estimator(IGPO(normalisation=pool, malformed_penalty=malformed, discount=0.95))
    assert report.passed, report
    assert IGPO(normalisation=pool, malformed_penalty=malformed).group_relative == (
        pool != "joint" and malformed is None
    )
