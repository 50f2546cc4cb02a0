"""Measures an episode's cost as turns and groups grow: seconds to play and to train on it, and tokens computed.

    python benchmarks/scaling.py

The real engine and trainer on the tiny model from scratch, one thread. An episode's every turn shows `SHOWN` tokens and
says `SAID`, after a prompt that the group shares; the world itself takes no time. Exponents are slopes of the logarithm
over the upper half of each range: 1 for what grows in proportion. The claim: computed tokens grow in proportion to
turns, and the time of one grows only as attention meets a longer context.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sojourn.threads import prepare

prepare(1)  # before torch is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
from machine import result, write  # noqa: E402

from sojourn.backends.torch.models import loading  # noqa: E402
from sojourn.backends.torch.sampler.engine import Engine  # noqa: E402
from sojourn.backends.torch.trainer.model_passes import ModelPasses  # noqa: E402
from sojourn.backends.torch.trainer.trainer import TorchTrainer  # noqa: E402
from sojourn.batch import Aggregate, to_batch  # noqa: E402
from sojourn.losses.ppo import PPO  # noqa: E402
from sojourn.optim import Optim  # noqa: E402
from sojourn.types import (  # noqa: E402
    Batch,
    Credit,
    Ending,
    Episode,
    Group,
    Prompt,
    SamplingParams,
    Task,
    Trajectory,
    Turn,
)

SHARED, SHOWN, SAID = 100, 40, 10
TURNS, GROUPS = (1, 2, 4, 8, 16, 32, 64), (2, 4, 8, 16, 32, 64)
GROUP_OF_TURNS, TURNS_OF_GROUP = 8, 4
REPEATS, ENOUGH_S = 5, 12


@dataclass(frozen=True)
class Cost:
    """Holds the cost of one episode; `sampling_us` and `training_us` are of one computed token."""

    sampling_s: float
    training_s: float
    sampling_tokens: float  # that went through the engine's model
    training_tokens: float  # and through the trainer's
    episode_tokens: float
    sampling_us: float = 0.0
    training_us: float = 0.0

    @classmethod
    def median(cls, costs: Sequence[Cost]) -> Cost:
        one = cls(*(statistics.median(getattr(cost, f.name) for cost in costs) for f in fields(cls)))
        return replace(
            one,
            sampling_us=one.sampling_s / one.sampling_tokens * 1e6,
            training_us=one.training_s / one.training_tokens * 1e6,
        )


class Bench:
    def __init__(self, device: str) -> None:
        model = loading.load("tiny").model.to(device)
        twin = loading.load("tiny").model.to(device)
        longest = SHARED + max(TURNS) * (SHOWN + SAID)
        self.engine = Engine(twin, stops=(), max_context=longest, max_batch=max(GROUPS))
        self.trainer = TorchTrainer(ModelPasses(model, bf16=False, token_budget=4096), self.engine.publish)
        self.trainer.begin(Optim(lr=0.0), 1, reference=False)
        self.vocabulary, self.rng, self.seed = model.config.vocab_size, np.random.default_rng(0), 0

    async def measure(self, turns: int, size: int) -> Cost:
        """The first time warms up, where it is short."""
        costs, began = [await self._once(turns, size)], time.monotonic()
        while len(costs) <= REPEATS and time.monotonic() - began < ENOUGH_S:
            costs.append(await self._once(turns, size))
        cost = Cost.median(costs[1:] or costs)
        text = f"{cost.sampling_s:.3f} s to play, {cost.training_s:.3f} s to train, {cost.sampling_tokens:.0f} tokens"
        print(f"{turns:3} turns, group of {size:3}: {text}", file=sys.stderr, flush=True)
        return cost

    async def _once(self, turns: int, size: int) -> Cost:
        await self.engine.forget()
        before, began = self.engine.stats(), time.perf_counter()
        shared = self._tokens(SHARED)
        played = await asyncio.gather(*(self._play(shared, turns) for _ in range(size)))
        took, after = time.perf_counter() - began, self.engine.stats()
        sampled, read = after.sampled_tokens - before.sampled_tokens, after.prefill_tokens - before.prefill_tokens
        computed = sampled + read - size * turns  # a sample's last token is computed only if another turn follows
        batch = self._batch(played)
        began = time.perf_counter()
        metrics = await self.trainer.forward_backward(batch, [PPO()])
        trained = time.perf_counter() - began
        await self.trainer.optim_step()
        of_all = (took, trained, computed, metrics["computed_tokens"], len(batch))
        return Cost(*(value / size for value in of_all))

    async def _play(self, shared: np.ndarray, turns: int) -> Trajectory:
        made, context = [], np.zeros(0, dtype=np.int64)
        for turn in range(turns):
            shown = self._tokens(SHOWN)
            shown = shown if turn else np.concatenate([shared, shown])
            self.seed += 1
            context = np.concatenate([context, shown])
            sample = await self.engine.sample(Prompt(context), SamplingParams(SAID, seed=self.seed))
            made.append(Turn(turn - 1, shown, sample, None))
            context = np.concatenate([context, sample.tokens])
        return Trajectory("agent", tuple(made), Ending.DONE)

    def _batch(self, played: Sequence[Trajectory]) -> Batch:
        task = Task("made", {}, 0, "train")
        group = Group(0, task, tuple(Episode(str(n), task, (t,)) for n, t in enumerate(played)))
        credit = [Credit.uniform(t, 1.0 if n % 2 else -1.0) for n, t in enumerate(played)]
        return to_batch([group], [credit], {}, aggregate=Aggregate())

    def _tokens(self, count: int) -> np.ndarray:
        return self.rng.integers(0, self.vocabulary, count)

    async def close(self) -> None:
        await self.engine.close()
        self.trainer.close()


def exponents(sizes: Sequence[int], costs: Sequence[Cost]) -> dict[str, float]:
    """Slopes of log cost against log size, fitted over the upper half."""
    half = len(sizes) // 2
    x = np.log(sizes[half:])
    columns = {f.name: [getattr(cost, f.name) for cost in costs[half:]] for f in fields(Cost)}
    return {name: round(float(np.polyfit(x, np.log(values), 1)[0]), 3) for name, values in columns.items()}


def table(sizes: Sequence[int], costs: Sequence[Cost]) -> dict[str, Any]:
    rows = {
        str(size): {f.name: round(getattr(cost, f.name), 6) for f in fields(Cost)}
        for size, cost in zip(sizes, costs, strict=True)
    }
    return {"costs": rows, "exponents": exponents(sizes, costs)}


def draw(measured: dict[str, tuple[Sequence[int], Sequence[Cost]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    units = {"s": "seconds of an episode", "tokens": "computed tokens of an episode", "us": "µs of a computed token"}
    figure, grid = pyplot.subplots(2, 3, figsize=(11, 6.5), layout="constrained")
    for row, (over, (sizes, costs)) in zip(grid, measured.items(), strict=True):
        slopes = exponents(sizes, costs)
        for axes, (unit, title) in zip(row, units.items(), strict=True):
            drawn = [[getattr(cost, f"{part}_{unit}") for cost in costs] for part in ("sampling", "training")]
            for part, values in zip(("sampling", "training"), drawn, strict=True):
                label = f"{part}, exponent {slopes[f'{part}_{unit}']:.2f}"
                axes.plot(sizes, values, "o-", label=label)
            wide = np.max(drawn) > 10 * np.min(drawn)
            axes.set(xscale="log", xlabel=over, title=title)
            axes.set(**({"yscale": "log"} if wide else {"ylim": (0, 1.1 * np.max(drawn))}))
            axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
            axes.xaxis.minorticks_off()
            axes.grid(alpha=0.3)
            axes.legend(loc="best")
    figure.savefig(result("scaling.png"), dpi=110)


async def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bench = Bench(device)
    turns = [await bench.measure(count, GROUP_OF_TURNS) for count in TURNS]
    groups = [await bench.measure(TURNS_OF_GROUP, size) for size in GROUPS]
    await bench.close()
    figures = {
        "model": "tiny",
        "setting": {"device": device, "dtype": "fp32", "threads": torch.get_num_threads()},
        "workload": {"shared": SHARED, "shown": SHOWN, "said": SAID},
        f"turns_at_group_{GROUP_OF_TURNS}": table(TURNS, turns),
        f"group_at_{TURNS_OF_GROUP}_turns": table(GROUPS, groups),
    }
    draw(
        {
            f"turns, in groups of {GROUP_OF_TURNS}": (TURNS, turns),
            f"group size, at {TURNS_OF_GROUP} turns": (GROUPS, groups),
        }
    )
    print(write("scaling", figures))


if __name__ == "__main__":
    asyncio.run(main())
