"""On-policy distillation's advantages, by hand."""

import cases
import numpy as np
import pytest

from sojourn.credit.reinforce import Reinforce
from sojourn.credit.teacher_kl import TeacherKL
from sojourn.types import Score

SAMPLER, TEACHER = [[-1.0, -2.0], [-0.5]], [[-3.0, -1.0], [-1.5]]  # log-ratios -2, 1 and -1


def advantages(estimator: TeacherKL) -> list[list[float]]:
    made = cases.group(cases.trajectory([2, 1], logprobs=SAMPLER))
    teacher = [[tuple(np.array(turn, dtype=np.float32) for turn in TEACHER)]]
    scores = [[Score(np.array([0.0, 4.0], dtype=np.float32))]]
    [[credit]] = estimator([made], scores, {"teacher": teacher})
    assert all(turn.dtype == np.float32 for turn in credit.tokens)
    return [turn.tolist() for turn in credit.tokens]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[-2.0, 1.0], [-1.0]]),
        ({"coef": 0.5}, [[-1.0, 0.5], [-0.5]]),
        ({"discount": 1.0}, [[-2.0, 0.0], [-1.0]]),
        ({"discount": 0.5}, [[-1.75, 0.5], [-1.0]]),
        ({"base": Reinforce(baseline="none")}, [[2.0, 5.0], [3.0]]),
    ],
)
def test_each_token_is_paid_the_log_ratio(options, expected):
    found = advantages(TeacherKL(**options))
    assert [pytest.approx(turn) for turn in found] == expected


def test_its_base_says_what_else_is_needed():
    assert TeacherKL().needs == {"teacher"}
    assert TeacherKL(base=TeacherKL()).needs == {"teacher"}
