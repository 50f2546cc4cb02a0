"""Simulated replicas of a sampler, in virtual time: what is assumed of them, how they decode, and how they die."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, count
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np
from ray.exceptions import ActorDiedError, ActorUnavailableError
from virtual_time import VirtualLoop

from sojourn.backends.ray.sampler_actor import StaleWeightsError
from sojourn.protocols import Renderer
from sojourn.types import Message, Prompt, Role, Sample, SamplingParams, Stop, Versions

NEW_TOKENS = 70  # of a prompt, in the mean, beside what was sampled before
LOST_S = 1.4  # after which a call of an actor that died fails, as was measured


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Says what is simulated. Times are medians of log-normal distributions where a spread (`sigma`) is given."""

    replicas: int = 8
    episodes: int = 1_024  # of a step
    concurrency: int = 512  # how many of them are in play at once at most
    size: int = 8  # of a group
    max_lag: int = 2
    steps: int = 3
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
    slow: float = 1.0  # how many times as long the first replica takes as the others
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


def loop_now() -> VirtualLoop:
    return cast(VirtualLoop, asyncio.get_running_loop())


# -- replicas


class Decoding:
    """Decodes requests side by side: in a step each gets a token, and a step takes longer the more there are."""

    def __init__(self, setting: Setting, slow: float = 1.0) -> None:
        self._setting, self._numbers, self._slow = setting, count(), slow
        self._requests: list[tuple[float, int, asyncio.Future[None]]] = []  # each with the step in which it ends
        self._steps, self._until = 0.0, 0.0  # how many steps were made until when
        self._timer: asyncio.TimerHandle | None = None
        self.busy_s = 0.0

    async def decode(self, tokens: int, prefill: int) -> None:
        self._advance()
        self._stall(self._slow * self._setting.prefill_s * prefill)
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
                self._steps += passed / self._step()
                self.busy_s += passed
            self._until += passed

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._requests:
            left = max(self._requests[0][0] - self._steps, 0.0)
            due = self._until + left * self._step()
            self._timer = loop_now().call_at(due, self._finish)

    def _step(self) -> float:
        return self._slow * self._setting.step(len(self._requests))

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

    def __init__(self, setting: Setting, words: Words, number: int) -> None:
        self._setting, self._words, self._random = setting, words, random.Random(setting.seed + number)
        self.decoding = Decoding(setting, setting.slow if number == 0 else 1.0)
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
    return ActorDiedError()


BEGINNING = 64  # tokens; what a replica has cached is known by whole beginnings


def beginnings(tokens: Any) -> list[int]:
    """Returns a number for each beginning of some tokens."""
    data, size = memoryview(tokens.tobytes()), BEGINNING * tokens.itemsize
    return list(
        accumulate(range(0, len(data) - size + 1, size), lambda crc, at: crc32(data[at : at + size], crc), initial=0)
    )[1:]


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
