"""Groups of tasks that a model proposes, and of plays that solve them: what a proposal is worth, solving it tells."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any, Literal, cast

import numpy as np

from sojourn.abilities import GroupQueue, LeavesTasks, MakesTasks, Proposes, since_now
from sojourn.config.fields import Range
from sojourn.envs.proposing import IMPOSSIBLE, PROPOSING
from sojourn.errors import ConfigError
from sojourn.protocols import SourceConfig
from sojourn.rewards.reward_cache import scored_or_failed
from sojourn.rollout.runner import SamplerFor
from sojourn.rollout.world import seats_of, world_of
from sojourn.seeds import seed_of
from sojourn.sources.context import SourceContext, StageContext, count_unjudged, require_played
from sojourn.sources.slot_record import SlotRecord
from sojourn.sources.slots import Slots
from sojourn.types import Episode, Group, Score, Task, Trajectory

ORIGIN = "proposals"
LOOKED_AT = 64  # tasks of the split, each of which must be one that can be proposed
MAX_KEPT = 65536
SHOWN = "shown"  # in the state: the texts that proposers may be shown


@dataclass(frozen=True, kw_only=True)
class ProposalSlots(Slots):
    """Describes the groups of proposals of a step, to what checks a stage."""

    origin = ORIGIN


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """Groups of tasks that a model proposes, and groups of plays that solve them, as Absolute Zero trains both (Zhao et
    al. 2025, arXiv:2505.03335, and its code) and Search Self-play does (Lu et al. 2025, arXiv:2510.18821, and its
    code), and Self-play SWE-RL both roles of its agent (SSR: Wei et al. 2025, arXiv:2512.18552).

    Each step has `prompts` groups of `proposals` episodes of proposing a task, in a world `proposing`, and for each
    task that was proposed and can be used, a group of `solves` episodes of it. Both are trained: the solver on the
    world's reward, the proposer on the success rate s of the solver. Who proposes is who sits in the seat "proposer":
    the policy too, unless `[seats]` gives it to another model. The groups of proposals have the origin "proposals", so
    that `by_origin` and `of_origin` may treat them otherwise.

    A proposal is worth 1 - s, or with `reward = "middle"` 4 s (1 - s), if it was ever solved; `unsolved` if it never
    was; `impossible` if it is a task that cannot be used; and `malformed` if the episode ended without a task. The
    defaults are those of Absolute Zero's code; Search Self-play has `unsolved = 1`, and its code "middle" as an option.
    With `reward = "ssr"` one that was solved sometimes is worth 1 - (1 - `unsolved`) s, and `unsolved` if it always or
    never was: eq. 1 of SSR, whose alpha is -`unsolved`, with `unsolved = -0.8` and `impossible = -1`. Of the failed
    plays of a task, the first `higher_order` of a group of proposals that left one go on from there: what they left is
    a task too, with a group of its own, in worlds that say so, such as `repo` (the higher-order bugs of SSR).
    A failure of the infrastructure is no failure to solve a task: the rate is that of the plays that were completed,
    and where there was none, the proposal is not trained. Equal tasks of a group of proposals are solved once, and
    `repeated` times the fraction of the group's other proposals that are the same task is taken off what each is worth.

    A proposer is shown `examples` tasks, which are drawn from the newest `keep` that were proposed and used; at first,
    the task of the curriculum alone, whose place the proposal takes. With `max_lag` groups may begin as many steps
    early, as with `slots`.

    It differs from Absolute Zero in that the solver plays only tasks of the same step, none of earlier ones, and that
    its success is sampled from the plays that it is trained on, not from others; in that no advantage is standardised
    over a whole kind of task (TRR++), unless an estimator does it; and from Search Self-play in that the proposer of a
    world reads and writes text alone: it cannot use the world's tools, such as the search engine.
    """

    prompts: Annotated[int, Range(1)] = 2
    proposals: Annotated[int, Range(1)] = 4
    solves: Annotated[int, Range(1)] = 8
    examples: Annotated[int, Range(0)] = 4
    keep: Annotated[int, Range(1, MAX_KEPT)] = 64
    reward: Literal["one_minus", "middle", "ssr"] = "one_minus"
    unsolved: float = 0.0
    impossible: float = -0.5
    malformed: float = -1.0
    repeated: Annotated[float, Range(0)] = 0.0
    higher_order: Annotated[int, Range(0)] = 0
    max_lag: Annotated[int, Range(0)] = 0

    live = True

    @property
    def slots(self) -> int:
        """Returns how many slots belong to a group of proposals: its own, and one for each task."""
        return 1 + self.proposals + self.higher_order

    @property
    def width(self) -> int:
        """Returns how many groups a step has at most, each of which has a slot of its own."""
        return self.prompts * self.slots

    @property
    def parts(self) -> Sequence[SourceConfig[Any]]:
        """Returns what the groups of a step are like, those of the solver first."""
        solved = Slots(width=self.prompts * (self.slots - 1), size=self.solves, max_lag=self.max_lag)
        return solved, ProposalSlots(width=self.prompts, size=self.proposals, max_lag=self.max_lag)

    def tasks(self, steps: int) -> int:
        return self.prompts * steps

    def worth(self, rate: float) -> float:
        """Returns what a task is worth that the solver solves at this rate."""
        if rate == 0 or (rate == 1 and self.reward == "ssr"):
            return self.unsolved
        if self.reward == "ssr":
            return 1 - (1 - self.unsolved) * rate
        return 1 - rate if self.reward == "one_minus" else 4 * rate * (1 - rate)

    async def check(self, stage: StageContext) -> None:
        for part in self.parts:
            await cast(Slots, part).check(stage)
        env = stage.env
        if not isinstance(env, Proposes):
            raise ConfigError(
                f"stage '{stage.name}': proposals needs a world in which tasks are proposed: env = {{name = "
                "'proposing', world = {name = ...}}, where `world` is the one whose tasks they are"
            )
        if stage.split != "train":
            raise ConfigError(
                f"stage '{stage.name}': proposals take the place of training tasks, but curriculum.split is "
                f"'{stage.split}': leave it at 'train'"
            )
        tasks = list(islice(iter(stage.env.tasks(stage.split)), LOOKED_AT))
        if any(task.env == PROPOSING for task in tasks):
            raise ConfigError(
                f"stage '{stage.name}': proposals take the place of tasks of the world, but env.warmup has tasks of "
                "proposing among them: leave it out of the run that proposes"
            )
        for task in tasks:
            _check_task(stage, env, task)
            if self.higher_order and not isinstance(world_of(stage.env, task), LeavesTasks):
                raise ConfigError(
                    f"stage '{stage.name}': higher_order = {self.higher_order}, but a failed play of the world "
                    f"'{task.env}' leaves no other task: leave it out"
                )

    def bind(self, context: SourceContext, stage: str, steps: int, first: int = 0) -> LiveProposals:
        """Returns the source of a stage, whose k-th group of proposals is of tasks in the place of the one that the
        curriculum draws for `first` + k."""
        return LiveProposals(self, context, stage, steps, first)


def _check_task(stage: StageContext, env: Proposes, task: Task) -> None:
    if len(seats := seats_of(stage.env, task)) > 1:
        raise ConfigError(
            f"stage '{stage.name}': the world '{task.env}' has the seats {', '.join(seats)}, so that no success rate "
            "tells how hard its tasks are: let the world play all but one of them"
        )
    env.proposal(task, (), 0)
    if (turns := env.proposal_turns(task)) > stage.limits.turns:
        raise ConfigError(
            f"stage '{stage.name}': a task of '{task.env}' is proposed in {turns} turns, one for each number, but "
            f"rollout.limits.turns = {stage.limits.turns}: raise it, or set env.choices = false"
        )


@dataclass(frozen=True)
class Solved:
    """Holds what was played for one group of proposals: that group, the task that each of its episodes proposed, the
    groups that solved these, by task, and those that solved what failed plays of them left."""

    proposals: Group
    made: Sequence[Task | None]
    groups: Mapping[str, Group]
    further: Sequence[Group] = ()

    def same(self, number: int) -> float:
        """Returns the fraction of the other episodes that proposed the task of an episode."""
        ids = [None if task is None else task.id for task in self.made]
        return (ids.count(ids[number]) - 1) / max(1, len(ids) - 1)

    def rate(self, number: int) -> float | None:
        """Returns the success rate of the task of an episode; None where it has none, or no play was completed."""
        task = self.made[number]
        return None if task is None else success_rate(self.groups[task.id])


def success_rate(group: Group) -> float | None:
    """Returns the success rate over the episodes that did not fail, whoever played them; None where there are none."""
    won = [one.success for episode in group.episodes if episode.error is None for one in episode.trajectories]
    return float(np.mean(won)) if won else None


@dataclass
class LiveProposals:
    """The groups of proposals of one stage while it runs, and of the plays that solve them.

    Its state holds the samples of what is not trained yet, as that of `LiveSlots` does, and the tasks that proposers
    are shown.
    """

    config: Proposals
    context: SourceContext
    stage: str
    steps: int
    first: int = 0
    shown: tuple[str, ...] = ()
    _started: int = -1  # groups of proposals up to here have been started
    _running: dict[int, asyncio.Task[Solved]] = field(default_factory=dict[int, "asyncio.Task[Solved]"])
    _records: defaultdict[int, SlotRecord] = field(default_factory=lambda: defaultdict(SlotRecord))
    _made: list[Task] = field(default_factory=list[Task])  # in the newest step
    _metrics: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def world(self) -> Proposes:
        return cast(Proposes, self.context.runner.family)

    def state(self) -> Mapping[str, Any]:
        records = {str(number): record.state() for number, record in self._records.items()}
        return {**records, SHOWN: list(self.shown)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.shown = tuple(state[SHOWN])
        self._records.update({int(key): SlotRecord.of(state[key]) for key in state if key != SHOWN})

    async def take(self, step: int) -> list[Group]:
        prompts = self.config.prompts
        self._started = max(self._started, step * prompts - 1)
        last = min((step + self.config.max_lag + 1) * prompts, self.steps * prompts)
        for number in range(self._started + 1, last):
            self._records[number].tasks = self._records[number].tasks or [self._drawn(number)]
            self._running[number] = asyncio.create_task(self._play(number), name=f"proposals-{number}")
        self._started = max(self._started, last - 1)
        tasks = {number: self._running[number] for number in range(step * prompts, (step + 1) * prompts)}
        try:
            played = await asyncio.gather(*tasks.values())
        except BaseException:
            await self.close()
            raise
        played = [await self._judged(solved) for solved in played]
        groups = [group for solved in played for group in (solved.proposals, *solved.groups.values(), *solved.further)]
        require_played(groups, step)
        for number in tasks:
            del self._running[number], self._records[number]
        self._made = [task for solved in played for task in solved.made if task is not None]
        self._metrics = metrics_of(played, self.config, self.context.runner.family)
        return groups

    def observe(self, groups: Sequence[Group], scores: Sequence[Sequence[Score]]) -> None:
        """Adds the tasks of the newest step to those that proposers are shown."""
        texts = [self.world.written(task) for task in self._made]
        self.shown = tuple(dict.fromkeys([*texts[::-1], *self.shown[::-1]]))[: self.config.keep][::-1]
        self._made = []

    def metrics(self) -> Mapping[str, float]:
        """Returns what the newest step proposed: see `metrics_of`."""
        return self._metrics

    def queue(self) -> GroupQueue:
        complete = sum(task.done() for task in self._running.values())
        return GroupQueue(len(self._running) - complete, complete)

    async def close(self) -> None:
        """Cancels the episodes that are still running."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()

    def _drawn(self, number: int) -> Task:
        """Returns the task of proposing of a group, whose examples are drawn from what is known when it begins."""
        like, seed = self.context.curriculum.draw(self.first + number), self._seed(number)
        count = min(self.config.examples, len(self.shown))
        chosen = np.random.default_rng(seed).choice(len(self.shown), count, replace=False) if count else ()
        examples = [self.shown[int(place)] for place in chosen]
        own = [self.world.written(like)] if self.config.examples and not examples else []
        return self.world.proposal(like, examples or own, seed)

    def _seed(self, number: int) -> int:
        return seed_of(self.context.runner.seed, self.stage, ORIGIN, number) >> 15  # as JSON keeps it exactly

    async def _play(self, number: int) -> Solved:
        config, runner, params = self.config, self.context.runner, self.context.params
        record, slot = self._records[number], number * self.config.slots
        label, sampler_for = f"{self.stage}/{slot}/0", self._recording(record)
        played = await runner.play_group(
            record.tasks[0], slot, config.proposals, params, label, sampler_for=sampler_for
        )
        made = [self.world.proposed(episode) for episode in played.episodes]
        first = {task.id: n for n, task in reversed(list(enumerate(made))) if task is not None}
        async with asyncio.TaskGroup() as tasks:
            solving = {
                task.id: tasks.create_task(self._solve(record, task, slot + 1 + n))
                for n, task in enumerate(made)
                if task is not None and first[task.id] == n
            }
        groups = {id: one.result() for id, one in solving.items()}
        first_further = slot + 1 + config.proposals
        async with asyncio.TaskGroup() as tasks:
            further = [
                tasks.create_task(self._solve(record, task, first_further + n))
                for n, task in enumerate(self._left_by(groups))
            ]
        return Solved(replace(played, origin=ORIGIN), made, groups, [one.result() for one in further])

    def _left_by(self, groups: Mapping[str, Group]) -> list[Task]:
        """Returns the first `higher_order` different tasks that failed plays of these groups left."""
        found: dict[str, Task] = {}
        for episode in (episode for group in groups.values() for episode in group.episodes):
            world = world_of(self.context.runner.family, episode.task)
            failed = episode.error is None and not any(one.success for one in episode.trajectories)
            if failed and isinstance(world, LeavesTasks) and (task := world.left_by(episode)) is not None:
                found.setdefault(task.id, task)
        return list(found.values())[: self.config.higher_order]

    async def _solve(self, record: SlotRecord, task: Task, slot: int) -> Group:
        return await self.context.runner.play_group(
            task, slot, self.config.solves, self.context.params, f"{self.stage}/{slot}/0",
            sampler_for=self._recording(record),
        )  # fmt: skip

    def _recording(self, record: SlotRecord) -> SamplerFor:
        engine = since_now(self.context.runner.sampler)
        return lambda env, label: record.sampler(engine, label)

    async def _judged(self, solved: Solved) -> Solved:
        """Scores the plays that solve, and the proposals by them."""
        runner, rewards = self.context.runner, self.context.rewards
        judged: dict[str, Group] = {}
        for id, group in solved.groups.items():
            judged[id], _ = await scored_or_failed(rewards.score, group)
            count_unjudged(runner, group, judged[id])
        solved = replace(solved, groups=judged)
        episodes = tuple(self._left_out(solved, n, e) for n, e in enumerate(solved.proposals.episodes))
        proposals = replace(solved.proposals, episodes=episodes)
        count_unjudged(runner, solved.proposals, proposals)
        rewards.add(proposals, scores_of(replace(solved, proposals=proposals), self.config))
        return replace(solved, proposals=proposals)

    def _left_out(self, solved: Solved, number: int, episode: Episode) -> Episode:
        """Returns the episode of a proposal, failed where every play of its task has."""
        task = solved.made[number]
        if task is None or solved.rate(number) is not None:
            return episode
        cause = next(one.error for one in solved.groups[task.id].episodes)
        return replace(episode, error=f"no play of the task that was proposed was completed: {cause}")


def scores_of(solved: Solved, config: Proposals) -> list[Score]:
    """Returns the score of each trajectory of a group of proposals."""
    pairs = zip(solved.proposals.owners, solved.proposals.trajectories, strict=True)
    return [_score(trajectory, solved.rate(number), solved.same(number), config) for number, trajectory in pairs]


def _score(trajectory: Trajectory, rate: float | None, same: float, config: Proposals) -> Score:
    if rate is not None:
        reward = config.worth(rate) - config.repeated * same
    else:
        infos = [turn.info for turn in trajectory.turns[-1:]]
        reward = config.impossible if any(IMPOSSIBLE in info for info in infos) else config.malformed
    turns = np.zeros(len(trajectory.turns), dtype=np.float32)
    turns[-1:] = reward
    parts = {"success": float(rate is not None)} | ({} if rate is None else {"solved": rate})
    return Score(turns, parts, outcome=None if len(turns) else reward)


def metrics_of(played: Sequence[Solved], config: Proposals, family: object) -> dict[str, float]:
    """Returns, of the proposals of a step: how many there were, the fractions that became a task, that were malformed,
    and that differ from all others; of the tasks, the mean success rate, and the fraction that was solved sometimes;
    the mean reward of the proposer; and the mean of each number in the tasks' data that may be changed."""
    episodes = [(one, n) for one in played for n, e in enumerate(one.proposals.episodes) if e.error is None]
    made = [task for one, n in episodes if (task := one.made[n]) is not None]
    rates = [rate for one, n in episodes if (rate := one.rate(n)) is not None]
    scores = [score for one in played for score in scores_of(one, config)]
    malformed = [not any(IMPOSSIBLE in turn.info for t in one.proposals.episodes[n].trajectories for turn in t.turns)
                 and one.made[n] is None for one, n in episodes]  # fmt: skip
    values = {
        "proposals": float(len(episodes)),
        "proposals_used": len(made) / max(1, len(episodes)),
        "proposals_malformed": float(np.mean(malformed)) if malformed else 0.0,
        "proposals_distinct": len({task.id for task in made}) / max(1, len(episodes)),
        "proposals_solved": float(np.mean(rates)) if rates else 0.0,
        "proposals_learnable": float(np.mean([0 < rate < 1 for rate in rates])) if rates else 0.0,
        "proposals_reward": float(np.mean([score.total for score in scores])) if scores else 0.0,
    }
    keys = family.bounds(made[0]) if made and isinstance(family, MakesTasks) else {}
    found = {key: [task.data[key] for task in made if isinstance(task.data.get(key), int | float)] for key in keys}
    return values | {f"proposed_{key}": float(np.mean(numbers)) for key, numbers in found.items() if numbers}
