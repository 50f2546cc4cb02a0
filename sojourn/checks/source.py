"""Checks a group source in a real small world with scripted samples: what it gives each step, and that it resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sojourn.abilities import Checks, Sized, origin_of, parts_of
from sojourn.agents.plain import Plain
from sojourn.checks import played
from sojourn.checks.agent.case import CONTEXT, REPLIES, Script
from sojourn.checks.left_running import left_running, running
from sojourn.checks.promise import (
    BrokenError,
    NotOfferedError,
    Promise,
    judge_all_awaited,
    member,
    require_config,
    require_methods,
)
from sojourn.checks.report import Report
from sojourn.checks.synthetic import content
from sojourn.credit.constant import Constant
from sojourn.curricula.cycle import Cycle
from sojourn.envs.proposing import Proposing
from sojourn.envs.toy import Toy
from sojourn.losses.nll import NLL
from sojourn.protocols import Agent, Curriculum, EnvFamily, Renderer, Stateful
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.sources.context import StageContext
from sojourn.sources.mixed import Mixed
from sojourn.sources.play_abilities import PlayAbilities
from sojourn.sources.proposals import Proposals
from sojourn.sources.retold import Retold
from sojourn.sources.slots import Slots
from sojourn.types import Group, Prompt, Sample, SamplingParams, Score, Task

STEPS = 4
FIRST = 5  # tasks of the curriculum that earlier stages took
LIMITS = Limits(turns=12)
PROPOSED = tuple(f"rooms {rooms}\nside rooms 0\ndoors 0\ndecoys 0\nobjects 0" for rooms in (2, 3))
PARAMS = SamplingParams(max_tokens=64, seed=3)


@dataclass
class Noted:
    """A curriculum that notes which slots were drawn."""

    curriculum: Curriculum
    drawn: set[int] = field(default_factory=set[int])

    def draw(self, slot: int, redraw: int = 0) -> Task:
        self.drawn.add(slot)
        return self.curriculum.draw(slot, redraw)

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        self.curriculum.observe(groups, scores)


@dataclass
class Seeded:
    """A sampler whose reply follows from the seed that it is asked with, whatever else it is asked."""

    renderer: Renderer
    replies: tuple[str, ...] = REPLIES

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        chosen = self.replies[params.seed % len(self.replies)]
        return await Script(self.renderer, (chosen,)).sample(prompt, params)

    async def score(self, prompt: Prompt) -> Any:
        return await Script(self.renderer).score(prompt)

    async def close(self) -> None:
        """Does nothing: nothing is open."""


@dataclass(frozen=True)
class Parts:
    """The parts of a run that a source may use (`sojourn.sources.context.SourceContext`)."""

    runner: Runner
    curriculum: Noted
    rewards: RewardCache
    renderer: Renderer
    params: SamplingParams = PARAMS


@dataclass(frozen=True)
class Case:
    config: Any
    renderer: Renderer
    before: set[Any]

    @property
    def agent(self) -> Agent:
        """Returns the agent that the source needs, where it needs one."""
        return self.config.agent_type() if isinstance(self.config, Retold) else Plain()

    @property
    def world(self) -> EnvFamily:
        """Returns the toy world, in which tasks are proposed where the source needs that."""
        return Proposing(world=Toy()) if self._proposes else Toy()

    @property
    def _proposes(self) -> bool:
        return isinstance(self.config, Proposals)

    def parts(self) -> Parts:
        world = self.world
        sampler = Seeded(self.renderer, (*PROPOSED, *REPLIES)) if self._proposes else Seeded(self.renderer)
        runner = Runner(Rollout(limits=LIMITS), world, self.agent, self.renderer, sampler, CONTEXT, 0)
        curriculum = Noted(Cycle().bind(world.tasks("train"), 0))
        return Parts(runner, curriculum, RewardCache(Native()), self.renderer)

    def bind(self, parts: Parts | None = None) -> Any:
        return self.config.bind(parts or self.parts(), "stage", STEPS, FIRST)


async def check_source(component: Any, *, timeout_s: float = 120.0) -> Report:
    """Returns the verdicts on a group source, bound to a stage in the toy world; each promise has `timeout_s`."""
    from sojourn.backends.torch.models.tiny import build_tokenizer
    from sojourn.render.chatml import ChatML

    case = Case(component, ChatML().bind(build_tokenizer()), running())
    return Report(type(component).__name__, await judge_all_awaited(PROMISES, case, timeout_s))


async def _declares(case: Case) -> str:
    require_methods(case.config, ["bind", "tasks"], "a source's config")
    width, live = member(case.config, "width"), member(case.config, "live")
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise BrokenError(f"width = {width!r}: expected how many groups a step has, at least 1")
    if not isinstance(live, bool):
        raise BrokenError(f"live = {live!r}: expected True where the policy plays its groups, else False")
    if not isinstance(tasks := case.config.tasks(STEPS), int) or tasks < 0:
        raise BrokenError(f"tasks({STEPS}) gave {tasks!r}: expected how many tasks of the curriculum these steps take")
    return require_config(case.config)


async def _binds(case: Case) -> str:
    config: Any = case.config
    if isinstance(case.config, Checks):
        world = case.world
        stage = StageContext(
            name="stage",
            groups=config if config.live else Mixed(parts=(Slots(), config)),
            env=world,
            plays=PlayAbilities(world, LIMITS),
            split="train",
            agent=case.agent,
            limits=LIMITS,
            params=PARAMS,
            estimator=Constant(),
            losses=(NLL(),),
        )
        await case.config.check(stage)
    source = case.bind()
    require_methods(source, ["take", "close"], "what bind() returns")
    await source.close()
    return "to a stage that imitates"


async def _takes(case: Case) -> str:
    count = 0
    for step, groups in enumerate(await _all(case)):
        _require_groups(case, groups, f"step {step}")
        count += len(groups)
    return f"{count} groups in {STEPS} steps"


async def _tasks(case: Case) -> str:
    """Checks that it draws from the curriculum those tasks that are this stage's: no other stage's, and all counted."""
    parts, count = case.parts(), case.config.tasks(STEPS)
    await _all(case, parts)
    if other := sorted(parts.curriculum.drawn - set(range(FIRST, FIRST + count))):
        raise BrokenError(
            f"it drew slot {other[0]}: with first = {FIRST} and tasks({STEPS}) = {count}, its slots of the "
            f"curriculum are those from {FIRST} to {FIRST + count - 1}"
        )
    return f"{len(parts.curriculum.drawn)} of {count}"


async def _deterministic(case: Case) -> str:
    _require_same(await _all(case), await _all(case), "bound twice")
    return f"{STEPS} steps twice"


async def _resumes(case: Case) -> str:
    """Checks that a source which is bound in the middle of a stage gives the steps that are left."""
    whole, first = await _all(case), case.bind()
    try:
        for step in range(2):
            await first.take(step)
        state = _state(first)
    finally:
        await first.close()
    resumed = case.bind()
    if state is not None:
        resumed.restore(state)
    try:
        rest = [await resumed.take(step) for step in range(2, STEPS)]
    finally:
        await resumed.close()
    _require_same(whole[2:], rest, "resumed after two steps")
    return "by state() and restore()" if state is not None else "by the number of the step"


def _state(source: object) -> Any:
    """Returns the state of a source as a checkpoint gives it back; None where it has none."""
    return played.saved(source.state()) if isinstance(source, Stateful) else None


async def _sized(case: Case) -> str:
    if not isinstance(case.config, Sized) or case.config.size is None:
        raise NotOfferedError("its groups may have any number of episodes")
    for groups in await _all(case):
        if wrong := [group for group in groups if len(group.episodes) != case.config.size]:
            raise BrokenError(
                f"size = {case.config.size}, but slot {wrong[0].slot} has {len(wrong[0].episodes)} episodes"
            )
    return f"{case.config.size} episodes"


async def _closes(case: Case) -> str:
    source = case.bind()
    await source.take(0)
    await source.close()
    if left := await left_running({*case.before, asyncio.current_task()}):
        raise BrokenError(f"after close() there still runs {left[0]} ({len(left)} in all)")
    return "nothing is left running"


async def _all(case: Case, parts: Parts | None = None) -> list[list[Group]]:
    """Returns the groups of all steps."""
    source = case.bind(parts)
    try:
        return [await source.take(step) for step in range(STEPS)]
    finally:
        await source.close()


def _require_groups(case: Case, groups: Any, where: str) -> None:
    if not isinstance(groups, Sequence) or not all(isinstance(group, Group) for group in groups):
        raise BrokenError(f"{where}: take() gave {groups!r:.80}: expected a list of groups")
    if len(groups) > case.config.width:
        raise BrokenError(f"{where}: {len(groups)} groups, where width = {case.config.width}")
    if empty := [group.slot for group in groups if not group.episodes]:
        raise BrokenError(f"{where}: the group of slot {empty[0]} has no episodes")
    origins = [origin_of(part) for part in parts_of(case.config)]
    for group in groups:
        if group.origin not in origins:
            raise BrokenError(
                f"{where}: the group of slot {group.slot} has the origin '{group.origin}', where the source declares "
                f"'{' or '.join(origins)}': set `origin` on its config, and give the same to its groups"
            )
        if wrong := [episode for episode in group.episodes if episode.task.id != group.task.id]:
            raise BrokenError(f"{where}: episode {wrong[0].id} of slot {group.slot} is of another task than its group")


def _require_same(expected: list[list[Group]], found: list[list[Group]], when: str) -> None:
    for step, (was, now) in enumerate(zip(expected, found, strict=True)):
        if [_content(group) for group in was] != [_content(group) for group in now]:
            raise BrokenError(f"{when}, it gives other groups at step {step + STEPS - len(expected)}")


def _content(group: Group) -> Any:
    """Returns what a group is trained on."""
    return group.task.id, group.slot, content([episode.trajectories for episode in group.episodes])


BOUND = ("it declares what a stage asks", "it is bound to a stage")
SOUND = (*BOUND, "a step gets groups")
PROMISES = (
    Promise(BOUND[0], (), _declares),
    Promise(BOUND[1], BOUND[:1], _binds),
    Promise(SOUND[2], BOUND, _takes),
    Promise("it draws its own tasks of the curriculum", SOUND, _tasks),
    Promise("it is deterministic", SOUND, _deterministic),
    Promise("it resumes", (*SOUND, "it is deterministic"), _resumes),
    Promise("groups have the size that it declares", SOUND, _sized),
    Promise("it closes", SOUND, _closes),
)
