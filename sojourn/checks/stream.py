"""Checks a stream on made-up groups with a real tiny policy: a finite number for every sampled token, and what it
learns is kept."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sojourn.abilities import BindsStreamModels, Learns, ReleasesResources, reads_critic, task_data
from sojourn.batch.flatten import flatten
from sojourn.checks import played
from sojourn.checks.promise import BrokenError, NotOfferedError, Promise, judge_all_awaited, member, require_config
from sojourn.checks.report import Report
from sojourn.checks.reward import StandIn
from sojourn.checks.synthetic import content
from sojourn.models.asking import AskedModels
from sojourn.models.spec import Critic, Model
from sojourn.optim import Optim
from sojourn.protocols import PerTurn, Stateful
from sojourn.render.auto import Auto
from sojourn.streams.trainer_passes import TrainerPasses
from sojourn.types import FloatArray, Group

MODEL = Model(name="tiny:layers=1,hidden=64", dtype="fp32")
TOLERANCE = 1e-3  # relative to the largest number, or to 0.001 where that is smaller: other orders round otherwise
STEPS = 3  # that are learned from


@dataclass
class Case:
    """A stream, and the policy that it may read."""

    stream: Any
    trainer: Any
    renderer: Any

    def groups(self, groups: Sequence[Group] | None = None) -> list[Group]:
        """Returns the groups, whose tasks have the data that the stream reads."""
        data = dict.fromkeys(task_data(self.stream), "north")
        made = played.groups() if groups is None else groups
        return [replace(g, task=replace(g.task, data={**g.task.data, **data})) for g in made]

    def context(self, groups: Sequence[Group]) -> TrainerPasses:
        scores = [played.scores(group) for group in groups]
        return TrainerPasses(groups, scores, self.trainer, self.renderer, critic=reads_critic(self.stream))

    def fresh(self) -> Any:
        """Returns a copy of the stream; one that asks models asks a stand-in."""
        stream = copy.deepcopy(self.stream)
        if not isinstance(stream, BindsStreamModels):
            return stream
        return stream.bind_models(AskedModels(dict.fromkeys(stream.asks, StandIn(stream.example_answer))))

    async def read(self, groups: Sequence[Group]) -> PerTurn:
        """Returns what a copy of the stream says of the groups, so that no promise depends on those before it."""
        stream = self.fresh()
        try:
            return await stream(self.context(groups))
        finally:
            close(stream)


async def check_stream(component: Any, *, timeout_s: float = 120.0) -> Report:
    """Returns the verdicts on a stream, which reads a tiny model of the torch backend; each promise has `timeout_s`."""
    from sojourn.backends.torch.backend import Torch

    opened = Torch().open(MODEL, Auto(), 0, critic=Critic())
    opened.trainer.begin(Optim(lr=1e-3), 10, reference=True)
    try:
        case = Case(component, opened.trainer, opened.renderer)
        return Report(type(component).__name__, await judge_all_awaited(PROMISES, case, timeout_s))
    finally:
        await opened.sampler.close()
        opened.trainer.close()


def close(stream: Any) -> None:
    if isinstance(stream, ReleasesResources):
        stream.close()


async def _declares(case: Case) -> str:
    provides, reference = member(case.stream, "provides"), member(case.stream, "reference")
    if not isinstance(provides, str) or not re.fullmatch(r"[a-z_]+", provides):
        raise BrokenError(f"provides = {provides!r}: expected the name of its numbers, in small letters and _")
    if not isinstance(reference, bool):
        raise BrokenError(f"reference = {reference!r}: expected True where it reads the reference model, else False")
    return f"provides '{provides}'; {require_config(case.stream)}"


async def _fits(case: Case) -> str:
    groups = case.groups()
    return _require_fit(groups, await case.read(groups))


async def _failures(case: Case) -> str:
    groups = case.groups(played.broken_groups())
    _require_fit(groups, await case.read(groups))
    _require_fit([], await case.read([]))
    return "failed episodes, other seats, and no group at all"


async def _deterministic(case: Case) -> str:
    groups = case.groups()
    _require_same(await case.read(groups), await case.read(groups), "the same step, read by another copy")
    return "the same step, the same numbers"


async def _permutes(case: Case) -> str:
    groups, rng = case.groups(), np.random.default_rng(0)
    values = await case.read(groups)
    for _ in range(2):
        orders = [rng.permutation(len(group.episodes)).tolist() for group in groups]
        expected = [[some[number] for number in order] for some, order in zip(values, orders, strict=True)]
        shuffled = [played.permuted(group, order) for group, order in zip(groups, orders, strict=True)]
        _require_same(expected, await case.read(shuffled), "with the episodes of its group in another order")
    return "2 orders"


async def _leaves_inputs(case: Case) -> str:
    stream, groups = case.fresh(), case.groups()
    context = case.context(groups)
    before = content(groups), content(context.scores)
    await _step(stream, context)
    close(stream)
    if before != (content(groups), content(context.scores)):
        raise BrokenError("the groups or scores are not what they were before the call: give numbers as a new value")
    return "groups and scores"


async def _leaves_policy(case: Case) -> str:
    stream, groups = case.fresh(), case.groups()
    batch = flatten(groups)[0]
    version, before = case.trainer.version, np.asarray((await case.trainer.forward(batch)).logprobs)
    await _step(stream, case.context(groups))
    close(stream)
    after = np.asarray((await case.trainer.forward(batch)).logprobs)
    if case.trainer.version != version or not np.array_equal(before, after):
        raise BrokenError(
            "the policy's probabilities are not what they were: a stream reads the policy, and may train "
            "a model of its own"
        )
    return "its probabilities are the same"


async def _learns(case: Case) -> str:
    if not isinstance(case.stream, Learns):
        raise NotOfferedError("it learns nothing")
    stream: Any = case.fresh()
    groups = case.groups()
    try:
        for _ in range(STEPS):
            context = case.context(groups)
            _require_fit(groups, await stream(context))
            for name, value in (await stream.learn(context)).items():
                if not isinstance(value, int | float) or not math.isfinite(value):
                    raise BrokenError(f"learn() reports {name} = {value!r}: expected a finite number")
        await _step(stream, case.context([]))
    finally:
        close(stream)
    return f"{STEPS} steps, and one without groups"


async def _remembers(case: Case) -> str:
    """Checks that `state()` holds all that was learned, without which a resumed run would differ."""
    stream, resumed, groups = case.fresh(), case.fresh(), case.groups()
    try:
        for _ in range(STEPS):
            await _step(stream, case.context(groups))
        if not isinstance(stream, Stateful):
            await _require_nothing_learned(stream, case, groups)
        state = played.saved(stream.state())
        resumed.restore(copy.deepcopy(state))
        later = await _twice(stream, case, groups)
        _require_same(later, await _twice(resumed, case, groups), "after state() and restore() in another one")
        if content(played.saved(resumed.state())) != content(played.saved(stream.state())):
            raise BrokenError("after state() and restore() in another one, and a step, their states differ")
    finally:
        close(stream)
        close(resumed)
    return "by state() and restore()"


async def _require_nothing_learned(stream: Any, case: Case, groups: Sequence[Group]) -> None:
    """Raises what is to be said of a stream without a state: nothing that it remembers may matter."""
    if isinstance(stream, Learns) or _difference(await case.read(groups), await stream(case.context(groups))):
        raise BrokenError("later steps differ from the first: offer state() and restore() for what it remembers")
    raise NotOfferedError("it remembers nothing from one step to the next")


async def _step(stream: Any, context: TrainerPasses) -> PerTurn:
    """Returns what the stream says of a step, from which it learns then, as in a run."""
    values = await stream(context)
    if isinstance(stream, Learns):
        await stream.learn(context)
    return values


async def _twice(stream: Any, case: Case, groups: Sequence[Group]) -> PerTurn:
    """Returns what a stream says of two steps, so that it also shows how it learns from the first."""
    first = await _step(stream, case.context(groups))
    return [*first, *await stream(case.context(groups))]


def _require_fit(groups: Sequence[Group], values: Any) -> str:
    """Requires, for every trajectory, one array of finite numbers for each turn, one number for each sampled token."""
    if len(values) != len(groups):
        raise BrokenError(f"{len(values)} lists for {len(groups)} groups: expected one each")
    count = 0
    for g, (group, some) in enumerate(zip(groups, values, strict=True)):
        if len(some) != len(group.trajectories):
            raise BrokenError(f"group {g} has {len(group.trajectories)} trajectories to train, {len(some)} entries")
        for t, (trajectory, turns) in enumerate(zip(group.trajectories, some, strict=True)):
            lengths = [len(turn.sample.tokens) for turn in trajectory.turns]
            shapes, where = [np.shape(turn) for turn in turns], f"trajectory {t} of group {g}"
            if shapes != [(length,) for length in lengths]:
                raise BrokenError(f"{where}: arrays of shape {shapes} for turns of {lengths} tokens: one number each")
            if bad := [n for n, turn in enumerate(turns) if not np.isfinite(turn).all()]:
                raise BrokenError(
                    f"{where}: turn {bad[0]} has {np.asarray(turns[bad[0]]).tolist()}: expected finite numbers"
                )
            count += sum(lengths)
    return f"{count} tokens"


def _require_same(expected: PerTurn, found: PerTurn, when: str) -> None:
    if difference := _difference(expected, found):
        raise BrokenError(f"{when}, {difference}")


def _difference(expected: PerTurn, found: PerTurn) -> str:
    """Describes the largest difference; empty where it is within tolerance."""
    was, now = _flat(expected), _flat(found)
    gap = np.abs(was - now)
    if not len(gap) or gap.max() <= TOLERANCE * max(1e-3, float(np.abs(was).max())):
        return ""
    worst = int(gap.argmax())
    return f"a number is {now[worst]:.6g}, but it was {was[worst]:.6g}"


def _flat(values: PerTurn) -> FloatArray:
    turns = [np.asarray(turn, dtype=np.float32) for some in values for turns in some for turn in turns]
    return np.concatenate([np.zeros(0, dtype=np.float32), *turns])


SOUND = ("it declares what it gives", "there is a number for every sampled token")
PROMISES = (
    Promise(SOUND[0], (), _declares),
    Promise(SOUND[1], SOUND[:1], _fits),
    Promise("steps with failures are read", SOUND, _failures),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("permuting episodes permutes its numbers", (*SOUND, "it is deterministic"), _permutes),
    Promise("its inputs are not modified", SOUND, _leaves_inputs),
    Promise("the policy is not modified", SOUND, _leaves_policy),
    Promise("it learns from every step", SOUND, _learns),
    Promise("its memory is saved", (*SOUND, "it is deterministic", "it learns from every step"), _remembers),
)
