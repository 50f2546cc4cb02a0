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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, count
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np
from ray.exceptions import ActorDiedError, ActorUnavailableError
from virtual_time import VirtualLoop

from sojourn.agents.plain import Plain
from sojourn.backends.ray.sampler_actor import StaleWeightsError
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
from sojourn.train.loop import StageLoop, StepResult, train
from sojourn.types import (
    Batch,
    Message,
    Observation,
    Prompt,
    Role,
    Sample,
    SamplingParams,
    Step,
    Stop,
    Task,
    Versions,
)

MAX_CONTEXT = 32_768
NEW_TOKENS = 70  # of a prompt, in the mean, beside what was sampled before
LOST_S = 1.4  # after which a call of an actor that died fails, as was measured


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is simulated. Times are medians of log-normal distributions where a spread (`sigma`) is given."""

    replicas: int = 8
    episodes: int = 1_024  # of a step
    concurrency: int = 512  # how many of them are in play at once at most
    size: int = 8  # of a group
    max_lag: int = 2
    steps: int = 4
    seed: int = 0
    turns: int = 6  # in the mean, geometrically distributed, but for the limit
    most_turns: int = 16
    tokens: float = 120.0  # of a turn
    tokens_sigma: float = 0.8
    most_tokens: int = 1_024
    env_s: float = 0.5  # of a call of the world
    env_sigma: float = 1.0
    env_failures: float = 0.0005  # of all calls
    step_s: float = 0.020  # of a replica that decodes a token of one request
    sequence_s: float = 0.00025  # more for each request beside it
    prefill_s: float = 0.00005  # for each token of a prompt that is not cached, in which nothing is decoded
    load_s: float = 2.0  # until a replica has new weights, up to half more or less, while it goes on
    pause_s: float = 0.2  # in which it puts them in place
    lifetime_s: float = math.inf  # of a replica, in the mean, exponentially distributed
    restart_s: float = 60.0
    train_share: float = 0.6  # how long training takes, of the time in which its tokens are sampled ideally
    driver_s: float = 0.0  # for each turn, in which the driver does nothing else

    @property
    def mean_tokens(self) -> float:
        return self.tokens * math.exp(self.tokens_sigma**2 / 2)

    @property
    def ideal(self) -> float:
        """Tokens per second where `concurrency` episodes are in play all the time, spread evenly over replicas that
        never wait and whose caches keep all: the solution of x = n / step(n) * (1 - the share of prefills), where n is
        a replica's share of the episodes less those in their worlds."""
        share, prefill = self.concurrency / self.replicas, self.prefill_s * NEW_TOKENS / self.mean_tokens
        away = self.env_s * math.exp(self.env_sigma**2 / 2) / self.mean_tokens  # seconds in the world for each token
        low, high = 0.0, 1 / self.sequence_s
        for _ in range(60):
            rate = (low + high) / 2
            decoding = max(share - rate * away, 0.0)
            low, high = (rate, high) if decoding / self.step(decoding) * (1 - rate * prefill) > rate else (low, rate)
        return self.replicas * low

    def step(self, requests: float) -> float:
        return self.step_s + self.sequence_s * requests


class Outcome(NamedTuple):
    """What a simulated run came to. Rates are of what was sampled from the end of the first step to the end of the
    last before which the slots still played ahead."""

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


def loop_now() -> VirtualLoop:
    return cast(VirtualLoop, asyncio.get_running_loop())


# -- replicas


class Decoding:
    """Decodes requests side by side: in a step each gets a token, and a step takes longer the more there are."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._numbers = setting, count()
        self._requests: list[tuple[float, int, asyncio.Future[None]]] = []  # each with the step in which it ends
        self._steps, self._until = 0.0, 0.0  # how many steps were made until when
        self._timer: asyncio.TimerHandle | None = None
        self.busy_s = 0.0

    async def decode(self, tokens: int, prefill: int) -> None:
        self._advance()
        self._stall(self._setting.prefill_s * prefill)
        done: asyncio.Future[None] = loop_now().create_future()
        heappush(self._requests, (self._steps + tokens, next(self._numbers), done))
        self._arm()
        await done

    def pause(self, seconds: float) -> None:
        self._advance()
        self._stall(seconds)
        self._arm()

    def fail(self, error: Exception) -> None:
        self._advance()
        for _, _, done in self._requests:
            done.set_exception(error)
        self._requests.clear()
        self._arm()

    def _stall(self, seconds: float) -> None:
        self._until += seconds
        self.busy_s += seconds

    def _advance(self) -> None:
        if (passed := loop_now().time() - self._until) > 0:
            if self._requests:
                self._steps += passed / self._setting.step(len(self._requests))
                self.busy_s += passed
            self._until += passed

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._requests:
            left = max(self._requests[0][0] - self._steps, 0.0)
            due = self._until + left * self._setting.step(len(self._requests))
            self._timer = loop_now().call_at(due, self._finish)

    def _finish(self) -> None:
        self._advance()
        while self._requests and self._requests[0][0] <= self._steps + 1e-6:
            heappop(self._requests)[2].set_result(None)
        self._arm()


class Method(NamedTuple):
    """A method of a simulated actor, which is called as one of Ray's is."""

    remote: Callable[..., Coroutine[Any, Any, Any]]


class SimulatedReplica:
    """Stands where the driver expects the handle of a `SamplerActor`."""

    def __init__(self, setting: Setting, words: Words, seed: int) -> None:
        self._setting, self._words, self._random = setting, words, random.Random(seed)
        self.decoding = Decoding(setting)
        self.version, self.life, self.up = 0, 0, True
        self.turns = self.tokens = 0  # that were sampled
        self._cached: set[int] = set()
        self.sample, self.load, self.open = Method(self._sample), Method(self._load), Method(self._open)
        self._await_death()

    async def _sample(self, prompt: Prompt, params: SamplingParams, version: int) -> Sample:
        loop_now().spend(self._setting.driver_s)
        await self._require_up()
        if self.version < version:
            raise StaleWeightsError(f"it has version {self.version}, but {version} is asked for")
        oldest, tokens = self.version, self._words.drawn(params)
        keys = beginnings(prompt.tokens)
        known = next((n for n, key in enumerate(reversed(keys)) if key in self._cached), None)
        prefill = len(prompt.tokens) - (0 if known is None else BEGINNING * (len(keys) - known))
        self._cached.update(keys)
        await self.decoding.decode(len(tokens), prefill)
        self._cached.update(beginnings(np.concatenate([prompt.tokens, tokens])))
        self.turns, self.tokens = self.turns + 1, self.tokens + len(tokens)
        logprobs = np.full(len(tokens), -1.0, dtype=np.float32)
        return Sample(tokens, logprobs, Versions(oldest, self.version), Stop.END)

    async def _open(self) -> None:
        await self._load(None, 0)

    async def _load(self, weights: Any, version: int) -> None:
        await self._require_up()
        life = self.life
        await asyncio.sleep(self._setting.load_s * self._random.uniform(0.5, 1.5))
        if life != self.life:
            raise died()
        self.decoding.pause(self._setting.pause_s)
        self._cached.clear()
        self.version = version

    async def _require_up(self) -> None:
        if not self.up:
            await asyncio.sleep(LOST_S)
            raise ActorUnavailableError("it is being started anew", None)

    def _await_death(self) -> None:
        if self._setting.lifetime_s < math.inf:
            loop_now().call_later(self._random.expovariate(1 / self._setting.lifetime_s), self._die)

    def _die(self) -> None:
        self.up, self.version, self.life = False, -1, self.life + 1
        self._cached.clear()
        loop_now().call_later(LOST_S, self.decoding.fail, died())
        loop_now().call_later(self._setting.restart_s, self._restart)

    def _restart(self) -> None:
        self.up = True
        self._await_death()


def died() -> Exception:
    return ActorDiedError("it was killed")


BEGINNING = 64  # tokens; what a replica has cached is known by whole beginnings


def beginnings(tokens: Any) -> list[int]:
    """Returns a number for each beginning of some tokens."""
    data, size = memoryview(tokens.tobytes()), BEGINNING * tokens.itemsize
    return list(
        accumulate(range(0, len(data) - size + 1, size), lambda crc, at: crc32(data[at : at + size], crc), initial=0)
    )[1:]


# -- what is said, and the worlds that answer


class Words:
    """Draws what the policy says: plain words, so many as the request's seed decides."""

    def __init__(self, setting: Setting, renderer: Renderer) -> None:
        self._setting = setting
        text = " ".join(map(str, np.random.default_rng(0).integers(0, 10_000, 2 * setting.most_tokens)))
        self._tokens = np.asarray(renderer.encode_reply(Message(Role.ASSISTANT, text)), dtype=np.int64)

    def drawn(self, params: SamplingParams) -> Any:
        drawn = random.Random(params.seed)
        length = drawn.lognormvariate(math.log(self._setting.tokens), self._setting.tokens_sigma)
        length = min(max(int(length), 2), self._setting.most_tokens)
        start = drawn.randrange(len(self._tokens) - length)
        return np.append(self._tokens[start : start + length - 1], self._tokens[-1])


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
    """How much was sampled until a time."""

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
    """What a source of groups uses of a run."""

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
    replicas = [SimulatedReplica(setting, words, setting.seed + number) for number in range(setting.replicas)]
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
    began = time.process_time()
    await train(
        StageLoop(
            steps=steps,
            source=slots.bind(parts, "simulated", steps),
            rewards=rewards,
            streams=(),
            estimator=GRPO(),
            losses=[PPO()],
            aggregate=Aggregate(),
            trainer=cast(Any, SimulatedTrainer(setting, sampler)),
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
