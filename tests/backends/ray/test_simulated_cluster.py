"""The simulated cluster of `benchmarks/scale.py`: its clock jumps, and the driver loses and repeats no group there."""

import asyncio
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("ray")

sys.path.insert(0, str(Path(__file__).parent.parent.parent.parent / "benchmarks"))

import virtual_time
from simulated_cluster import Ledger, NoCluster, Outcome, simulate
from simulated_replicas import Decoding, Method, Setting, SimulatedReplica, Words, loop_now

from sojourn.backends.ray.samplers import ReplicatedSampler
from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.render.chatml import ChatML
from sojourn.train.loop import StepResult
from sojourn.types import Ending, Episode, Group, Prompt, Sample, SamplingParams, Stop, Task, Trajectory, Turn, Versions

SMALL = Setting(
    replicas=3,
    episodes=16,
    concurrency=12,
    size=4,
    steps=3,
    turns=3,
    most_turns=6,
    tokens=20.0,
    env_failures=0.02,
    lifetime_s=15.0,
    restart_s=5.0,
)
OF_THIS_MACHINE = {"cpu_ms_per_turn": 0.0, "longest_turn_s": 0.0}


def simulated(setting: Setting) -> Outcome:
    return virtual_time.run(simulate(setting))._replace(**OF_THIS_MACHINE)


def test_the_clock_jumps_from_timer_to_timer():
    async def main() -> list[tuple[float, str]]:
        async def wake(after: float, name: str) -> None:
            await asyncio.sleep(after)
            woken.append((loop_now().time(), name))

        woken: list[tuple[float, str]] = []
        await asyncio.gather(wake(7200, "late"), wake(3600, "early"))
        loop_now().call_soon(loop_now().spend, 50.0)
        await wake(10, "while the driver computed")
        return woken

    assert virtual_time.run(main()) == [(3600, "early"), (7200, "late"), (7250, "while the driver computed")]


def test_what_waits_for_ever_is_said():
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer is set"):
        virtual_time.run(main())


def test_a_callback_that_fails_ends_the_run():
    async def main() -> None:
        loop_now().call_soon(int, "no number")
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match="no number"):
        virtual_time.run(main())


def test_requests_are_decoded_side_by_side():
    """One alone takes 1 s for 10 tokens; beside another, a step takes twice as long."""

    async def main() -> list[float]:
        async def decoded(tokens: int, after: float) -> float:
            await asyncio.sleep(after)
            await decoding.decode(tokens, prefill=0)
            return loop_now().time()

        decoding = Decoding(replace(SMALL, step_s=0.0, sequence_s=0.1))
        return await asyncio.gather(decoded(10, 0.0), decoded(10, 0.5))

    assert virtual_time.run(main()) == pytest.approx([1.5, 2.0])


class Loads:
    """A replica whose weights take `load_s` to load, and whose samples take a minute."""

    def __init__(self, load_s: float) -> None:
        self.load_s, self.asked = load_s, 0
        self.sample, self.load = Method(self._sample), Method(self._load)

    async def _sample(self, prompt: Prompt, params: SamplingParams, version: int) -> Sample:
        self.asked += 1
        await asyncio.sleep(60)
        one = np.ones(1, dtype=np.int64)
        return Sample(one, one.astype(np.float32), Versions(version, version), Stop.END)

    async def _load(self, weights: str, version: int) -> None:
        await asyncio.sleep(self.load_s)


def test_what_waits_for_new_weights_is_spread_over_the_replicas_but_not_over_one_that_hangs():
    """The last replica is awaited as long again as the first one took; then its requests go to the others."""

    async def main() -> tuple[list[int], float]:
        replicas = [Loads(load_s) for load_s in (1.0, 1.1, 1.2, 1e6)]
        sampler = ReplicatedSampler(replicas, cast(Any, NoCluster()), max_context=64)
        await sampler.publish("weights", 1)
        prompt, params = Prompt(np.arange(8)), SamplingParams(1)
        await asyncio.gather(*(sampler.sample(prompt, params) for _ in range(24)))
        return [replica.asked for replica in replicas], loop_now().time()

    asked, seconds = virtual_time.run(main())
    assert asked == [8, 8, 8, 0]
    assert seconds == pytest.approx(62.0)


def test_a_slow_replica_is_found_and_gets_less():
    """One of four takes four times as long for a token: alone by what is running, it would hold a quarter of all."""

    async def main(slow: float) -> tuple[list[int], list[float]]:
        setting = replace(SMALL, lifetime_s=math.inf, slow=slow)
        words = Words(setting, ChatML().bind(build_tokenizer()))
        replicas = [SimulatedReplica(setting, words, number) for number in range(4)]
        sampler = ReplicatedSampler(replicas, cast(Any, NoCluster()), max_context=64)

        async def one_after_another(number: int) -> None:
            for turn in range(20):
                await sampler.sample(Prompt(np.arange(8)), SamplingParams(64, seed=100 * number + turn))

        await asyncio.gather(*(one_after_another(number) for number in range(32)))
        return [replica.turns for replica in replicas], [replica.slowness for replica in sampler.replicas]

    turns, slowness = virtual_time.run(main(4.0))
    assert turns[0] < 0.2 * sum(turns[1:]) / 3
    assert 3 < slowness[0] < 5
    assert max(slowness[1:]) < 1.2
    turns, slowness = virtual_time.run(main(1.0))
    assert min(turns) > 0.8 * max(turns)
    assert max(slowness) < 1.2


@pytest.mark.parametrize("max_lag", [0, 2])
def test_replicas_that_die_and_worlds_that_fail_lose_and_repeat_no_group(max_lag):
    found = simulated(replace(SMALL, max_lag=max_lag))  # raises where a group is lost, repeated or too old
    assert found.deaths > 2
    assert found.failed_calls > 0
    assert found.asked_again > 0
    assert found == simulated(replace(SMALL, max_lag=max_lag))
    assert found != simulated(replace(SMALL, max_lag=max_lag, seed=1))


ONE = replace(SMALL, episodes=2, size=1, max_lag=1)  # a step trains two groups of one episode


def group(slot: int, version: int, name: str = "") -> Group:
    task, one = Task("made", {}, slot, "train"), np.ones(1, dtype=np.int64)
    sample = Sample(one, one.astype(np.float32), Versions(version, 2), Stop.END)
    trajectory = Trajectory("agent", (Turn(-1, one, sample, None),), Ending.DONE)
    return Group(slot, task, (Episode(name or f"episode-{slot}", task, (trajectory,)),))


def noted(*steps: list[Group]) -> None:
    async def note() -> None:
        ledger = Ledger(ONE, [])
        for number, groups in enumerate(steps):
            await ledger.note(number, StepResult(groups, [], {}, []))

    virtual_time.run(note())


@pytest.mark.parametrize(
    ("second", "failure"),
    [
        ([group(2, 0), group(3, 0)], ""),
        ([group(2, 0)], "trained the slots"),
        ([group(2, 0), group(2, 0)], "trained the slots"),
        ([group(2, 0), group(3, 0, "episode-1")], "trained twice"),
        ([group(2, -1), group(3, 0)], "version -1"),
    ],
)
def test_the_ledger_raises_where_a_group_is_lost_repeated_or_too_old(second, failure):
    first = [group(0, 0), group(1, 0)]
    if not failure:
        noted(first, second)
        return
    with pytest.raises(AssertionError, match=failure):
        noted(first, second)
