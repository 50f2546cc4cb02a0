"""What the driver costs, how a cluster that it drives would do, and how fast weights reach the samplers.

    python benchmarks/scale.py [driver] [cluster] [weights] [--dry]

`driver`: `EPISODES` episodes at once of a world that answers at once, by a sampler that answers at once, so that all
that is left is the driver's own work: the runner, the plain agent, the renderer and its tokens. Figures are
milliseconds of its CPU time for each turn, the median and the spread over `ROUNDS` rounds: `alone` with the sampler
itself, `routed` with `ReplicatedSampler` over 8, 64 and 256 stubs of actors between them, and `ray` over two real
actors of a local Ray cluster that answer at once. One driver serves at most 1,000 / milliseconds turns a second.

`cluster`: the real loop, slots, runner and routing over simulated replicas, worlds and a trainer in virtual time
(`simulated_cluster.py`, where `Setting` has all that is assumed). Rates are beside the ideal, in which as many episodes
as are allowed at once are in play all the time, evenly over replicas that never wait. What the driver was measured to
cost is charged to it, turn by turn. In each run, no group is lost, none trained twice, and no token older than allowed,
or the run ends.

`weights`: seconds from the trainer's weights to those of two actors of a local Ray cluster: packed, put into the object
store, and copied out of it by both at once; and how many times that is of one copy of as many bytes by numpy.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import virtual_time
from machine import write
from simulated_cluster import NoCluster, simulate
from simulated_replicas import Method, Setting

from sojourn.agents.plain import Plain
from sojourn.backends.ray.cluster import Cluster, Needs, imported
from sojourn.backends.ray.packed_weights import PackedWeights, pack
from sojourn.backends.ray.samplers import ReplicatedSampler
from sojourn.backends.torch.models.tiny import build_tokenizer
from sojourn.protocols import Renderer, Sampler
from sojourn.render.chatml import ChatML
from sojourn.rollout.limits import Limits
from sojourn.rollout.runner import Rollout, Runner
from sojourn.types import Message, Observation, Prompt, Role, Sample, SamplingParams, Step, Stop, Task, Versions

EPISODES, GROUP, TURNS, ROUNDS = 512, 8, 8, 5
REPLICAS = (8, 64, 256)
SPOKEN = 64  # tokens of each turn, and about as many of each observation
MAX_CONTEXT = 32_768
DRIVER_S = 0.0014  # of the driver for each turn, as `driver` measures it


# -- the driver alone


@dataclass
class Instant:
    """A world of `TURNS` turns that answers at once."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task("instant", {}, number, split) for number in range(EPISODES)]

    def make(self, task: Task) -> InstantPlay:
        return InstantPlay()


@dataclass
class InstantPlay:
    turns: int = 0

    async def start(self) -> Observation:
        return self._seen()

    async def step(self, agent: str, action: Message) -> Step:
        self.turns += 1
        return Step(self._seen(), {agent: 1.0}, done=self.turns == TURNS)

    async def close(self) -> None: ...

    def _seen(self) -> Observation:
        system = () if self.turns else (Message(Role.SYSTEM, "You act."),)
        return Observation((Message(Role.USER, f"Turn {self.turns}. " + SPOKEN // 8 * "What do you do now? "),), system)


class Answers:
    """Stands for the engine, and for an actor that has one: the same sample at once."""

    def __init__(self, answer: Sample) -> None:
        self.answer = answer

    async def sample(self, prompt: Prompt, params: SamplingParams, version: int = 0) -> Sample:
        return self.answer

    async def score(self, prompt: Prompt) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...


class Stub:
    """Stands for the handle of an actor."""

    def __init__(self, answers: Answers) -> None:
        self.sample = Method(answers.sample)


def answer(renderer: Renderer) -> Sample:
    tokens = np.asarray(renderer.encode_reply(Message(Role.ASSISTANT, "so " * SPOKEN)), dtype=np.int64)[-SPOKEN:]
    return Sample(tokens, np.full(len(tokens), -0.5, dtype=np.float32), Versions(0, 0), Stop.END)


async def play(renderer: Renderer, sampler: Sampler, episodes: int) -> float:
    """Returns the milliseconds of CPU time for each turn of `episodes` episodes, all at once."""
    runner = Runner(
        Rollout(concurrency=episodes, limits=Limits(turns=TURNS)), Instant(), Plain(), renderer, sampler, MAX_CONTEXT, 0
    )
    tasks, params = Instant().tasks("train")[: episodes // GROUP], SamplingParams(SPOKEN)
    began = time.process_time()
    groups = await asyncio.gather(
        *(runner.play_group(task, slot, GROUP, params, f"bench/{slot}") for slot, task in enumerate(tasks))
    )
    spent = time.process_time() - began
    turns = sum(len(t.turns) for group in groups for t in group.trajectories)
    assert turns == episodes * TURNS, f"{turns} turns were played"
    return 1e3 * spent / turns


def rounds(make: Callable[[], Sampler], renderer: Renderer, episodes: int, count: int) -> dict[str, Any]:
    async def one() -> float:
        return await play(renderer, make(), episodes)

    found = [asyncio.run(one()) for _ in range(1 + count)][1:]  # the first fills caches
    median = statistics.median(found)
    return {
        "ms_per_turn": round(median, 3),
        "least": round(min(found), 3),
        "most": round(max(found), 3),
        "turns_per_s": round(1e3 / median),
    }


def driver(dry: bool) -> dict[str, Any]:
    renderer = ChatML().bind(build_tokenizer())
    said, episodes, count = answer(renderer), 16 if dry else EPISODES, 1 if dry else ROUNDS

    def replicated(actors: Sequence[Any]) -> Sampler:
        return ReplicatedSampler(actors, cast(Any, NoCluster()), max_context=MAX_CONTEXT)

    figures: dict[str, Any] = {
        "episodes": episodes,
        "context_tokens": TURNS * 2 * SPOKEN,
        "alone": rounds(lambda: Answers(said), renderer, episodes, count),
    }
    for replicas in REPLICAS:
        actors = [Stub(Answers(said)) for _ in range(replicas)]
        figures[f"routed_{replicas}"] = rounds(lambda actors=actors: replicated(actors), renderer, episodes, count)
    with local_actors(Answers, said) as actors:
        figures["ray"] = rounds(lambda: replicated(actors), renderer, episodes, count)
    return figures


@contextmanager
def local_actors(kind: type, *arguments: Any, count: int = 2) -> Iterator[list[Any]]:
    """Starts a local Ray cluster with `count` actors, and ends it."""
    needs = Needs(what="actor", count=count, cpus=0.0, gpus=0.0)
    cluster = Cluster.join("", [needs]).hold()
    try:
        yield [cluster.actor(kind, needs, number, *arguments) for number in range(count)]
    finally:
        cluster.release()


# -- a cluster that is not there


def shown(name: str, setting: Setting) -> dict[str, Any]:
    """Returns the outcome of a simulated run, and says it."""
    outcome = virtual_time.run(simulate(setting))._asdict()
    print(name, *(f"{key} {value}" for key, value in outcome.items()), flush=True)
    return {"ideal_tokens_per_s": round(setting.ideal, 1), **outcome}


def cluster(dry: bool) -> dict[str, Any]:
    base = Setting(driver_s=DRIVER_S)
    small = {"replicas": 4, "episodes": 512, "concurrency": 256}
    failures = {"lifetime_s": 300.0, "env_failures": 0.005}
    variants: dict[str, dict[str, Any]] = {
        **{f"lag_{lag}": {"max_lag": lag} for lag in (2, 0, 1, 4)},
        "all_in_play": {"concurrency": base.episodes},
        "half_size": small,
        "half_size_shorter_tails": {**small, "most_turns": 12},
        "half_size_longer_tails": {**small, "most_turns": 32, "env_sigma": 1.5},
        "half_size_failures": {**small, **failures},
        "half_size_failures_lag_0": {**small, **failures, "max_lag": 0},
        "half_size_slow_replica": {**small, "slow": 4.0},
    }
    quick = {"turns": 3, "most_turns": 6, "tokens": 30.0, "steps": 2}  # the more there are, the longer it takes
    counts = (1, 4) if dry else (1, 8, 64, 256)
    for replicas in counts:
        size = {**quick, "replicas": replicas, "episodes": 32 * replicas, "concurrency": 8 * replicas}
        variants[f"replicas_{replicas}"] = size
    variants[f"replicas_{counts[-2]}_slow_driver"] = {**variants[f"replicas_{counts[-2]}"], "driver_s": 4 * DRIVER_S}
    variants[f"replicas_{counts[-1]}_free_driver"] = {**variants[f"replicas_{counts[-1]}"], "driver_s": 0.0}
    if dry:
        tiny = {"turns": 2, "tokens": 20.0, "steps": 2, "replicas": 2, "episodes": 16, "concurrency": 8}
        variants = {name: changed if "replicas_" in name else {**changed, **tiny} for name, changed in variants.items()}
    setting = {key: value for key, value in vars(base).items() if value != math.inf}
    found: dict[str, Any] = {"setting": setting, "runs": {}}
    for name, changed in variants.items():
        found["runs"][name] = {"changed": changed, **shown(name, replace(base, **changed))}
        if not dry:
            write("scale_cluster", found, "ray")  # as all of them take long
    return found


# -- weights


class Receiver:
    """Keeps weights, as a sampler does, and copies new ones into them."""

    def __init__(self) -> None:
        self._own: dict[str, torch.Tensor] = {}

    async def load(self, weights: PackedWeights) -> None:
        for name, tensor in weights.unpack():
            own = self._own.get(name)
            if own is None or own.shape != tensor.shape:
                own = self._own[name] = torch.empty_like(tensor)
            own.copy_(tensor)


def sized(size_bytes: int, tensors: int) -> dict[str, torch.Tensor]:
    each = torch.randn(size_bytes // 2 // tensors).to(torch.bfloat16)
    return {f"layer {number}": each.clone() for number in range(tensors)}


def medians(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def transferred(ray: Any, actors: Sequence[Any], weights: dict[str, torch.Tensor], count: int) -> dict[str, Any]:
    found: list[dict[str, float]] = []
    size = pack(weights.items()).data.nbytes
    for _ in range(1 + count):
        times = [time.perf_counter()]
        packed = pack(weights.items())
        times.append(time.perf_counter())
        placed = ray.put(packed)
        times.append(time.perf_counter())
        ray.get([actor.load.remote(placed) for actor in actors])
        times.append(time.perf_counter())
        target = packed.data.copy()  # whose pages are there
        copying = time.perf_counter()
        np.copyto(target, packed.data)
        copy = time.perf_counter() - copying
        pack_s, put_s, load_s = np.diff(times).tolist()
        found.append(
            {"pack_s": pack_s, "put_s": put_s, "load_s": load_s, "total_s": times[3] - times[0], "copy_s": copy}
        )
        del placed
    middle = medians(found[1:])
    ratios = (one["total_s"] / one["copy_s"] for one in found[1:])
    return {
        "bytes": size,
        "tensors": len(weights),
        **{key: float(f"{value:.3g}") for key, value in middle.items()},
        "copies": round(statistics.median(ratios), 1),
        "copy_gb_per_s": round(size / middle["copy_s"] / 1e9, 2),
    }


def weights(dry: bool) -> dict[str, Any]:
    count = 1 if dry else ROUNDS
    with local_actors(Receiver) as actors:
        ray = imported()
        sizes = {"tiny": (2_000_000, 20), "270_mb": (270_000_000, 270)}
        return {
            name: transferred(ray, actors, sized(*size), count)
            for name, size in sizes.items()
            if not dry or name == "tiny"
        }


PARTS = {"driver": driver, "cluster": cluster, "weights": weights}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--dry", action="store_true", help="build everything, measure a little, write nothing")
    options = parser.parse_args(words)
    for name in options.parts:
        figures = PARTS[name](options.dry)
        print(figures if options.dry else write(f"scale_{name}", figures, "ray"))


if __name__ == "__main__":
    main()
