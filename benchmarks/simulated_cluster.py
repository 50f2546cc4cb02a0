"""A simulated cluster for the real driver: replicas, worlds and a trainer that only wait, in virtual time.

The loop, the slots, the runner, the agent, the renderer, the routing between replicas and the making of batches are
Sojourn's own. Simulated are the replicas, which decode all of their requests side by side and slow down with each; the
plays, whose every call takes a while that is drawn from a distribution with a long tail, and sometimes fails; and the
trainer, which sleeps for each token. A replica dies now and then, loses its requests and all that it had cached, and
comes back without weights. All that is drawn follows from the seed.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast
from zlib import crc32

from simulated_replicas import Setting, SimulatedReplica, Words, loop_now

from sojourn.agents.plain import Plain
from sojourn.backends.ray.samplers import ReplicatedSampler
from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.batch import Aggregate
from sojourn.credit.grpo import GRPO
from sojourn.curricula.cycle import Cycle
from sojourn.errors import InfrastructureError
from sojourn.losses.ppo import PPO
from sojourn.protocols import Curriculum, Renderer
from sojourn.render.chatml import ChatML
from sojourn.rewards.native import Native
from sojourn.rewards.reward_cache import RewardCache
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.sources.slots import Slots
from sojourn.tasks import Generated
from sojourn.train.loop import Learner, StageLoop, StepResult, train
from sojourn.types import Batch, Message, Observation, Role, SamplingParams, Step, Task

MAX_CONTEXT = 32_768


class Outcome(NamedTuple):
    """Holds what a simulated run came to. Rates are of what was sampled from the end of the first step to the end of
    the last before which the slots still played ahead."""

    seconds: float  # of virtual time
    tokens_per_s: float
    of_ideal: float
    turns_per_s: float
    busy: float  # the share of time in which replicas had a request
    turns: int
    deaths: int
    failed_calls: int  # of worlds
    asked_again: int
    moved: int
    cpu_ms_per_turn: float  # of this machine, the simulation included
    longest_turn_s: float  # of this machine, in which the driver answered nobody


# -- what is said, and the worlds that answer


@dataclass
class SimulatedWorld:
    """Plays that end after a turn whose words decide so, and pay by the same words."""

    setting: Setting
    failed: int = 0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.setting.seed)

    def tasks(self, split: str) -> Sequence[Task]:
        return Generated(lambda index: Task("simulated", {}, index, split), 1_000_000)

    def make(self, task: Task) -> SimulatedPlay:
        return SimulatedPlay(self, task)

    async def work(self) -> None:
        """Takes as long as a call of a world does, and fails at times."""
        await asyncio.sleep(self.random.lognormvariate(math.log(self.setting.env_s), self.setting.env_sigma))
        if self.random.random() < self.setting.env_failures:
            self.failed += 1
            raise InfrastructureError("the simulated world failed")


@dataclass
class SimulatedPlay:
    world: SimulatedWorld
    task: Task

    async def start(self) -> Observation:
        await self.world.work()
        text = f"Task {self.task.seed}. " + 8 * "Find what is asked for and say where it is. "
        return Observation((Message(Role.USER, text),), system=(Message(Role.SYSTEM, "You act."),))

    async def step(self, agent: str, action: Message) -> Step:
        await self.world.work()
        drawn = crc32(action.text.encode())
        if drawn % self.world.setting.turns == 0:
            return Step(None, {agent: float(drawn // 100 % 2)}, done=True, success=drawn // 100 % 2 == 1)
        return Step(Observation((Message(Role.USER, 4 * "This is not the end, so go on. "),)), {agent: 0.0})

    async def close(self) -> None: ...


# -- training


@dataclass
class SimulatedTrainer:
    setting: Setting
    sampler: ReplicatedSampler
    version: int = 0

    async def forward_backward(self, batch: Batch, losses: Any) -> dict[str, float]:
        sampled = int((batch.weight > 0).sum())
        await asyncio.sleep(sampled * self.setting.train_share / self.setting.ideal)
        return {}

    async def optim_step(self) -> dict[str, float]:
        return {}

    async def publish(self) -> int:
        self.version += 1
        await self.sampler.publish("weights", self.version)
        return self.version


class Moment(NamedTuple):
    """Holds how much was sampled until a time."""

    time: float
    tokens: int
    turns: int


@dataclass
class Ledger:
    """Notes what each step trained, and raises where an episode is trained twice, a slot is missing or comes too late,
    or a token was sampled by older weights than `max_lag` allows."""

    setting: Setting
    replicas: Sequence[SimulatedReplica]
    ends: list[Moment] = field(default_factory=list[Moment])
    _trained: set[str] = field(default_factory=set[str])

    async def note(self, step: int, result: StepResult) -> bool:
        width = self.setting.episodes // self.setting.size
        slots = [group.slot for group in result.groups]
        assert slots == list(range(step * width, (step + 1) * width)), f"step {step} trained the slots {slots}"
        turns = [turn for group in result.groups for t in group.trajectories for turn in t.turns]
        for group in result.groups:
            assert len(group.episodes) == self.setting.size, f"slot {group.slot} has {len(group.episodes)} episodes"
            for episode in group.episodes:
                assert episode.id not in self._trained, f"{episode.id} is trained twice"
                self._trained.add(episode.id)
        oldest = min(turn.sample.versions.oldest for turn in turns)
        assert oldest >= step - self.setting.max_lag, f"step {step} trained tokens of version {oldest}"
        sampled = (sum(getattr(replica, of) for replica in self.replicas) for of in ("tokens", "turns"))
        self.ends.append(Moment(loop_now().time(), *sampled))
        return False


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Holds what a source of groups uses of a run."""

    runner: Runner
    curriculum: Curriculum
    rewards: RewardCache
    renderer: Renderer
    params: SamplingParams
    episodes: Any = None


class NoCluster:
    """Stands where the driver expects the cluster that it holds; there is nothing to give back."""

    def hold(self) -> NoCluster:
        return self

    def release(self) -> None: ...


async def simulate(setting: Setting) -> Outcome:
    """Trains `setting.steps` steps, and as many more as are played ahead at the end."""
    renderer = ChatML().bind(build_tokenizer())
    words, world = Words(setting, renderer), SimulatedWorld(setting)
    replicas = [SimulatedReplica(setting, words, number) for number in range(setting.replicas)]
    sampler = ReplicatedSampler(replicas, cast(Any, NoCluster()), max_context=MAX_CONTEXT, patience_s=3_600.0)
    rollout = Rollout(concurrency=setting.concurrency, limits=Limits(turns=setting.most_turns))
    runner = Runner(rollout, world, Plain(), renderer, sampler, MAX_CONTEXT, setting.seed)
    steps = setting.steps + setting.max_lag
    rewards, curriculum = RewardCache(Native()), Cycle().bind(world.tasks("train"), setting.seed)
    parts = Parts(
        runner=runner,
        curriculum=curriculum,
        rewards=rewards,
        renderer=renderer,
        params=SamplingParams(setting.most_tokens),
    )
    slots = Slots(width=setting.episodes // setting.size, size=setting.size, max_lag=setting.max_lag)
    ledger = Ledger(setting, replicas)
    trainer = cast(Any, SimulatedTrainer(setting, sampler))
    learner = Learner(trainer=trainer, estimator=GRPO(), losses=[PPO()], aggregate=Aggregate())
    began = time.process_time()
    await train(
        StageLoop(
            steps=steps,
            source=slots.bind(parts, "simulated", steps),
            rewards=rewards,
            learners=[learner],
            observe=lambda groups, scores: None,
            on_step_end=ledger.note,
        )
    )
    assert len(ledger.ends) == steps, f"{len(ledger.ends)} of {steps} steps were trained"
    spent, loop, turns = time.process_time() - began, loop_now(), sum(replica.turns for replica in replicas)
    first, last = ledger.ends[0], ledger.ends[setting.steps - 1]
    rate = (last.tokens - first.tokens) / (last.time - first.time)
    return Outcome(
        seconds=round(loop.time(), 1),
        tokens_per_s=round(rate, 1),
        of_ideal=round(rate / setting.ideal, 3),
        turns_per_s=round((last.turns - first.turns) / (last.time - first.time), 1),
        busy=round(sum(replica.decoding.busy_s for replica in replicas) / (setting.replicas * loop.time()), 3),
        turns=turns,
        deaths=sum(replica.life for replica in replicas),
        failed_calls=world.failed,
        asked_again=sampler._asked_again,
        moved=sampler._moved,
        cpu_ms_per_turn=round(1e3 * spent / turns, 3),
        longest_turn_s=round(loop.longest_turn_s, 2),
    )
