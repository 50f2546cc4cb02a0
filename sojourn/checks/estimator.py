"""Checks an estimator on synthetic steps and reports, for each promise of the protocol, whether it is kept.

The check cannot see whether the credit is that of the paper; each estimator's own tests compare it to the equation.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sojourn.abilities import HasGroupRelative, provided
from sojourn.checks import synthetic
from sojourn.checks.promise import BrokenError, DoubtfulError, NotOfferedError, Promise, judge_all, require_declared
from sojourn.checks.report import Report
from sojourn.checks.synthetic import (
    FORKED,
    FORKED_WINDOWS,
    UNSTARTED,
    WINDOWED,
    DeclaredStreams,
    Shape,
    SyntheticStep,
    content,
)
from sojourn.protocols import Stateful
from sojourn.types import Credit, Ending, FloatArray, Group, Score

TOLERANCE = 1e-4  # relative to the largest absolute advantage, or to 1 where that is smaller
CONSTANTS = (0.5, -2.0, 8.0)
LINEAR = (
    (Shape(), Shape(turns=1), Shape(turns=4), Shape(turns=2)),
    (Shape(turns=2),) * 3,
    (Shape(), Shape(ending=Ending.MALFORMED)),
)
CUT = (
    (Shape(ending=Ending.TURNS), Shape(ending=Ending.TOKENS), Shape(), Shape(turns=1, ending=Ending.TIME)),
    (UNSTARTED, Shape(), Shape(turns=2)),
    (UNSTARTED, UNSTARTED),
)


@dataclass(frozen=True)
class Case:
    estimator: Any

    def step(self, shapes: Sequence[Sequence[Shape]] = LINEAR) -> SyntheticStep:
        return synthetic.step(shapes, self.estimator.needs)

    def credit(self, step: SyntheticStep) -> list[list[Credit]]:
        """Calls a copy of the estimator, so that its memory of one promise's steps does not affect the next promise."""
        return call(copy.deepcopy(self.estimator), step)


def check_estimator(estimator: Any) -> Report:
    """Returns the verdicts on an estimator, or on an object that is called like one; its streams are synthetic."""
    return Report(type(estimator).__name__, judge_all(PROMISES, Case(estimator)))


def call(estimator: Any, step: SyntheticStep) -> list[list[Credit]]:
    return estimator(step.groups, step.scores, DeclaredStreams(step.streams))


def _declares(case: Case) -> str:
    return require_declared(case.estimator, {"needs": frozenset})


def _reads(case: Case) -> str:
    step = case.step()
    streams = DeclaredStreams(step.streams)
    copy.deepcopy(case.estimator)(step.groups, step.scores, streams)
    if unread := sorted(case.estimator.needs - streams.read):
        raise DoubtfulError(f"it declares the stream '{unread[0]}' and does not read it: it is computed for nothing")
    return "and from nothing else"


def _fits(case: Case) -> str:
    return _sound(case, case.step())


def _deterministic(case: Case) -> str:
    step = case.step()
    _require_same(case.credit(step), case.credit(step), "called again with the same step")
    return "the same step, the same credit"


def _leaves_inputs(case: Case) -> str:
    step = case.step()
    before = [content(part) for part in step]
    case.credit(step)
    for name, was, now in zip(step._fields, before, map(content, step), strict=True):
        if was != now:
            raise BrokenError(f"the {name} are not what they were before the call: give credit as a new value")
    return "groups, scores and streams"


def _permutes(case: Case) -> str:
    return _permuted(case, case.step())


def _group_of_one(case: Case) -> str:
    return _sound(case, case.step(((Shape(),), (Shape(turns=1),))))


def _equal_rewards(case: Case) -> str:
    for reward in (0.0, 1.0, 0.1):
        step = case.step()
        _sound(case, step.with_scores([_all_at_the_end(s, reward) for s in judged] for judged in step.scores))
    return "all 0, all 1, all 0.1"


def _truncated(case: Case) -> str:
    return _sound(case, case.step(CUT))


def _forests(case: Case) -> str:
    step = case.step(((FORKED, WINDOWED, Shape()), (FORKED_WINDOWS, FORKED_WINDOWS)))
    return f"{_sound(case, step)}, in {_permuted(case, step)}"


def _other_seats(case: Case) -> str:
    """Checks that failed episodes and untrained seats of a group, which have no score, get no credit."""
    rng = np.random.default_rng(0)
    plain = synthetic.group(0, [synthetic.trajectory(rng, Shape()) for _ in range(4)])
    opponent, partner = (
        synthetic.trajectory(rng, Shape(), "opponent", False),
        synthetic.trajectory(rng, Shape(), "partner"),
    )
    first, second, third, fourth = plain.episodes
    mixed = (
        replace(first, error="the browser died"),
        replace(second, trajectories=(opponent, *second.trajectories)),
        replace(third, trajectories=(*third.trajectories, partner)),
        fourth,
    )
    return _sound(case, synthetic.step_of([replace(plain, episodes=mixed)], case.estimator.needs, rng))


def _empty_step(case: Case) -> str:
    """Checks steps without any group, as filters leave them, and groups whose every episode failed."""
    step = case.step()
    failed = tuple(replace(e, error="the browser died") for e in step.groups[1].episodes)
    groups: list[Group] = [step.groups[0], replace(step.groups[1], episodes=failed)]
    _sound(case, synthetic.step_of(groups, case.estimator.needs, np.random.default_rng(0)))
    return _sound(case, case.step(()))


def _relative(case: Case) -> str:
    """Checks invariance to a constant on all rewards, which only `group_relative = True` promises."""
    step = case.step()
    plain = case.credit(step)
    for constant in CONSTANTS:
        if difference := _difference(plain, case.credit(step.with_constant(constant))):
            detail = f"with {constant:+g} on every return, {difference}"
            if isinstance(case.estimator, HasGroupRelative) and case.estimator.group_relative:
                raise BrokenError(detail)
            raise NotOfferedError(f"not group-relative: {detail}")
    return f"{', '.join(f'{c:+g}' for c in CONSTANTS)} on every return"


def _remembers(case: Case) -> str:
    """Checks that `state()` holds all that the estimator remembers, without which a resumed run would differ."""
    step = case.step()
    source = copy.deepcopy(case.estimator)
    first = call(source, step)
    state = copy.deepcopy(source.state()) if isinstance(source, Stateful) else None
    second = call(source, step)
    if not _difference(first, second):
        raise NotOfferedError("it remembers nothing from one step to the next")
    if state is None:
        raise BrokenError("its second step differs from its first: offer state() and restore() for what it remembers")
    resumed = copy.deepcopy(case.estimator)
    resumed.restore(state)
    _require_same(second, call(resumed, step), "after state() and restore()")
    return "by state() and restore()"


def _sound(case: Case, step: SyntheticStep) -> str:
    """Requires one `Credit` for every trajectory, with one finite number for every sampled token of each turn."""
    credit_lists = case.credit(step)
    if len(credit_lists) != len(step.groups):
        raise BrokenError(f"{len(credit_lists)} lists of credit for {len(step.groups)} groups: expected one each")
    for g, (group, credits) in enumerate(zip(step.groups, credit_lists, strict=True)):
        if len(credits) != len(group.trajectories):
            raise BrokenError(f"group {g} has {len(group.trajectories)} trajectories to train, {len(credits)} credits")
        for t, (one, credit) in enumerate(zip(group.trajectories, credits, strict=True)):
            lengths = [len(turn.sample.tokens) for turn in one.turns]
            _require_fit(credit, lengths, f"trajectory {t} of group {g}")
            _require_targets(credit, lengths, case.estimator, f"trajectory {t} of group {g}")
    return f"{sum(map(len, credit_lists))} trajectories"


def _permuted(case: Case, step: SyntheticStep) -> str:
    rng = np.random.default_rng(0)
    plain = case.credit(step)
    for _ in range(4):
        orders = [rng.permutation(len(g.episodes)).tolist() for g in step.groups]
        expected = [[credits[i] for i in order] for credits, order in zip(plain, orders, strict=True)]
        _require_same(expected, case.credit(step.permuted(orders)), "with the episodes of its group in another order")
    return "4 orders"


def _require_fit(credit: Any, lengths: list[int], where: str) -> None:
    if not isinstance(credit, Credit):
        raise BrokenError(f"{where}: {type(credit).__name__}: expected a Credit")
    if (shapes := [np.shape(turn) for turn in credit.tokens]) != [(length,) for length in lengths]:
        raise BrokenError(f"{where}: arrays of shape {shapes} for turns of {lengths} tokens: expected one number each")
    if wrong := [turn.dtype for turn in credit.tokens if not np.issubdtype(turn.dtype, np.floating)]:
        raise BrokenError(f"{where}: an array of {wrong[0]}: expected float32")
    for turn, values in enumerate(credit.tokens):
        if not np.isfinite(values).all():
            raise BrokenError(f"{where}: turn {turn} has the advantages {values.tolist()}: expected finite numbers")


def _require_targets(credit: Credit, lengths: list[int], estimator: Any, where: str) -> None:
    """Requires the critic's targets exactly where they are promised, of the turns' shape and nowhere infinite."""
    promised = "targets" in provided(estimator)
    if promised != (credit.targets is not None):
        raise BrokenError(
            f"{where}: {'no ' if promised else ''}targets: say provides = frozenset({{'targets'}}) as it is"
        )
    if credit.targets is None:
        return
    if (shapes := [np.shape(turn) for turn in credit.targets]) != [(length,) for length in lengths]:
        raise BrokenError(f"{where}: targets of shape {shapes} for turns of {lengths} tokens: expected one number each")
    if any(np.isinf(turn).any() for turn in credit.targets):
        raise BrokenError(f"{where}: an infinite target: expected finite numbers, or NaN where the critic is not asked")


def _all_at_the_end(score: Score, reward: float) -> Score:
    turns = np.zeros_like(score.turns)
    turns[-1:] = reward
    return replace(score, turns=turns)


def _require_same(then: list[list[Credit]], now: list[list[Credit]], when: str) -> None:
    if difference := _difference(then, now):
        raise BrokenError(f"{when}, {difference}")


def _difference(then: list[list[Credit]], now: list[list[Credit]]) -> str:
    """Describes the largest difference of two credits; empty where it is within tolerance."""
    was, became = _flat(then), _flat(now)
    if len(was) != len(became):
        return f"credit has {len(became)} numbers, but it had {len(was)}"
    gap = np.abs(was - became)
    if not len(gap) or gap.max() <= TOLERANCE * max(1.0, float(np.abs(was).max())):
        return ""
    worst = int(gap.argmax())
    return f"an advantage is {became[worst]:.6g}, but it was {was[worst]:.6g}"


def _flat(credits: list[list[Credit]]) -> FloatArray:
    turns = [turn for group in credits for credit in group for turn in credit.tokens]
    return np.concatenate([np.zeros(0, dtype=np.float32), *turns])


CALLED = ("it declares what it needs", "it reads what it declares")
SOUND = (*CALLED, "credit fits the turns and is finite")
PERMUTES = "permuting episodes permutes credit"
PROMISES = (
    Promise(CALLED[0], (), _declares),
    Promise(CALLED[1], CALLED[:1], _reads),
    Promise(SOUND[2], CALLED, _fits),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("its inputs are not modified", SOUND, _leaves_inputs),
    Promise(PERMUTES, (*SOUND, "it is deterministic"), _permutes),
    Promise("a group of one is finite", SOUND, _group_of_one),
    Promise("a group of equal rewards is finite", SOUND, _equal_rewards),
    Promise("truncated trajectories are credited", SOUND, _truncated),
    Promise("forks and windows are credited", (*SOUND, PERMUTES), _forests),
    Promise("failures and other seats are left out", SOUND, _other_seats),
    Promise("an empty step gives no credit", SOUND, _empty_step),
    Promise("a constant added to all rewards changes nothing", (*SOUND, "it is deterministic"), _relative),
    Promise("its memory is saved", (*SOUND, "it is deterministic"), _remembers),
)
