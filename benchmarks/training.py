"""Measures a training step with shared prefixes against the same step without, packed and padded.

    python benchmarks/training.py [turns ...]

Groups of 8 episodes of 1, 4, 8 and 16 turns (or those given) share a prompt of 500 tokens; each turn observes 60 tokens
and samples 20. One forward and backward pass (REINFORCE, as a token at the edge of a clip may fall to either side) of a
model of SmolLM2-135M's shape, cut to `LAYERS` of its 30 layers so that the script takes minutes: the vocabulary head,
where nothing is shared, weighs more than in the whole model.
The ways:

- shared: the package as it is, every distinct token once;
- unshared: every turn a sample of its own, whole context and all, packed without padding;
- padded: the same samples, sorted by length, each padded to the longest of its micro-batch;
- history: every episode one packed sequence, its prompt not shared with the other episodes.

All have the model, the loss, the head (sampled tokens only) and the token budget in common, and give the same gradient,
which is checked; all but the padded way, which is as transformers computes, also have the package's kernels. Times are
medians of up to `ROUNDS` rounds in which the ways take turns. Memory is the peak of a step in a process of its own,
over what was held before it: of the process, or on a CUDA device of its tensors.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import result, write
from transformers import LlamaConfig, LlamaForCausalLM

from sojourn.backends.torch.backend import compute_dtype, device_of
from sojourn.backends.torch.trainer import tree_attention
from sojourn.backends.torch.trainer.decoder import Decoder
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.pass_io import MicroBatch
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.batch import Aggregate, share, to_batch
from sojourn.losses.reinforce import Reinforce
from sojourn.threads import prepare
from sojourn.types import (
    Batch,
    Credit,
    Ending,
    Episode,
    Group,
    IntArray,
    Sample,
    Stop,
    Task,
    Trajectory,
    Turn,
    Versions,
)

LAYERS, ROUNDS, ENOUGH_S, TOKEN_BUDGET = 2, 3, 90, 4096
TURNS, EPISODES, PROMPT, OBSERVED, SAMPLED = (1, 4, 8, 16), 8, 500, 60, 20
VOCABULARY = 49152
WAYS = ("shared", "unshared", "padded", "history")


def build() -> Any:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=LAYERS,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(shape).eval().to(device_of("auto"))


def episode(rng: np.random.Generator, prompt: IntArray, turns: int, whole: bool) -> Trajectory:
    """Returns a trajectory of made-up tokens: one window, or where not `whole` one for each turn, with all before
    it."""
    made: list[Turn] = []
    past = prompt
    for number in range(turns):
        observed, sampled = rng.integers(0, VOCABULARY, OBSERVED), rng.integers(0, VOCABULARY, SAMPLED)
        new = observed if whole and number else np.concatenate([past, observed])
        logprobs = np.full(SAMPLED, -np.log(VOCABULARY), dtype=np.float32)
        sample = Sample(sampled, logprobs, Versions(0, 0), Stop.END, 1.0)
        made.append(Turn(number - 1 if whole else -1, new, sample, None))
        past = np.concatenate([past, observed, sampled])
    return Trajectory("agent", tuple(made), Ending.DONE)


def step(way: str, turns: int) -> Batch:
    """A group's batch. Sequences of different images share nothing, and the model has no eyes."""
    rng, task = np.random.default_rng(0), Task("made", {}, 0, "train")
    prompt = rng.integers(0, VOCABULARY, PROMPT)
    played = [episode(rng, prompt, turns, whole=way == "history") for _ in range(EPISODES)]
    group = Group(0, task, tuple(Episode(str(n), task, (t,)) for n, t in enumerate(played)))
    credit = [[Credit.uniform(t, (-1.0, 0.5)[n % 2]) for n, t in enumerate(played)]]
    batch = to_batch([group], credit, {}, aggregate=Aggregate())
    apart = () if way == "shared" else tuple((str(n),) for n in range(len(batch.offsets) - 1))
    return replace(batch, images=apart)


class Padded(ModelPasses):
    """Rows as long as the longest sequence; causal attention needs no mask for what is padded behind."""

    def __init__(self, model: Any, *, bf16: bool, **options: Any) -> None:
        super().__init__(model, bf16=bf16, **options)
        self.decoder = Rows(model, bf16=bf16, kernel=False)

    def rounds(self, batch: Batch) -> Iterator[list[MicroBatch]]:
        """Side by side, too: each of the trainer's threads has its share of the budget."""
        lengths, budget = np.diff(batch.offsets), self.token_budget // self.pool.count
        groups: list[list[int]] = [[]]
        for s in np.argsort(lengths, kind="stable"):
            if groups[-1] and (len(groups[-1]) + 1) * lengths[s] > budget:
                groups.append([])
            groups[-1].append(int(s))
        spans = [np.arange(a, b) for a, b in pairwise(batch.offsets)]
        made = [MicroBatch.of(batch, np.array(numbers), spans) for numbers in groups]
        for n in range(0, len(made), self.pool.count):
            yield made[n : n + self.pool.count]


class Rows(Decoder):
    """Computes each segment of a tree as a row of its own, padded, in torch's attention."""

    def __call__(self, tree: share.Tree, rows: torch.Tensor) -> torch.Tensor:
        longest = max(segment.stop - segment.start for segment in tree.segments)
        places, columns = (
            torch.cat([t.to(self.device) for t in parts])
            for parts in zip(*[self._place(n, segment) for n, segment in enumerate(tree.segments)], strict=True)
        )
        tokens = torch.zeros(len(tree.segments), longest, dtype=torch.long, device=self.device)
        tokens[places, columns] = torch.from_numpy(tree.tokens).to(self.device)
        self.base.set_attn_implementation("sdpa")
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            hidden = self.base.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden[places, columns].index_select(0, rows)

    @staticmethod
    def _place(number: int, segment: share.Segment) -> tuple[torch.Tensor, torch.Tensor]:
        length = segment.stop - segment.start
        return torch.full((length,), number), torch.arange(length)


def trainer(model: Any, way: str) -> TorchTrainer:
    async def nowhere(weights: Any, version: int) -> None: ...

    bf16 = compute_dtype("auto", device_of("auto")) == torch.bfloat16
    passes = Padded if way == "padded" else ModelPasses
    return TorchTrainer(passes(model, bf16=bf16, token_budget=TOKEN_BUDGET, kernel=way != "padded"), nowhere)


def take(model: Any, way: str, batch: Batch) -> float:
    """Seconds of one pass, which leaves its gradient."""
    tree_attention.use_packed(model)
    model.zero_grad()
    one = trainer(model, way)
    began = time.perf_counter()
    asyncio.run(one.forward_backward(batch, [Reinforce()]))
    seconds = time.perf_counter() - began
    one.close()
    return seconds


def timed(models: Mapping[str, Any], turns: int) -> dict[str, Any]:
    batches = {way: step(way, turns) for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    gradients: dict[str, torch.Tensor] = {}
    began = time.monotonic()
    for done in range(ROUNDS):
        if done and time.monotonic() - began > ENOUGH_S:
            break
        for way in WAYS:
            seconds[way].append(take(models[way], way, batches[way]))
            gradients[way] = torch.cat([p.grad.flatten() for p in models[way].parameters()])
    norm = gradients["shared"].norm()
    apart = max(float((gradients[way] - gradients["shared"]).norm() / norm) for way in WAYS)
    # in bf16 the padded way, torch's autocast, rounds what lies between the products too: 0.008 measured
    if not apart < (1e-3 if compute_dtype("auto", device_of("auto")) == torch.float32 else 2e-2):
        raise SystemExit(f"the gradients differ by {apart:.2g} of their norm: the ways do not do the same work")
    medians = {way: statistics.median(seconds[way]) for way in WAYS}
    distinct, sampled = len(share.merge(batches["shared"]).tokens), EPISODES * turns * SAMPLED
    return {
        "distinct_tokens": distinct,
        "rounds": len(seconds["shared"]),
        "tokens": {way: len(batches[way].tokens) for way in WAYS},
        "seconds": {way: round(s, 2) for way, s in medians.items()},
        "slower_than_shared": {way: round(s / medians["shared"], 2) for way, s in medians.items()},
        "sampled_tokens_per_s": {way: round(sampled / s, 1) for way, s in medians.items()},
        "distinct_tokens_per_s": {way: round(distinct / s, 1) for way, s in medians.items()},
        "gradients_apart": float(f"{apart:.1e}"),
    }


def high_water() -> int:
    """The peak of this process's resident memory since it was last forgotten, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def peak(way: str, turns: int) -> int:
    """Bytes over what is held before the step, gradients of an earlier one included. Run in a process of its own."""
    model, batch, cuda = build(), step(way, turns), device_of("auto").type == "cuda"
    take(model, way, step(way, 1).take(np.arange(1)))
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")
        before = high_water()
    take(model, way, batch)
    return (torch.cuda.max_memory_allocated() if cuda else high_water()) - before


def measured_apart(way: str, turns: int) -> int:
    command = [sys.executable, __file__, "--peak", way, str(turns)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout)


def draw(figures: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    cases = list(figures["groups"].values())
    distinct = [case["distinct_tokens"] for case in cases]
    for way in WAYS:
        axes.plot(distinct, [case["seconds"][way] for case in cases], marker="o", label=way)
    axes.set(xlabel="distinct tokens of the group", ylabel="seconds, forward and backward", ylim=0)
    turns = ", ".join(name.partition("_")[0] for name in figures["groups"])
    axes.set_title(f"{EPISODES} episodes of {turns} turns, a shared prompt of {PROMPT} tokens", fontsize=10)
    axes.legend()
    drawn.savefig(path, dpi=120)


def main() -> None:
    prepare()
    if sys.argv[1:2] == ["--peak"]:
        print(peak(sys.argv[2], int(sys.argv[3])))
        return
    ours, plain = build(), build()  # one whose layers are the package's, and one as transformers runs it
    models = {way: plain if way == "padded" else ours for way in WAYS}
    for way in ("shared", "padded"):
        take(models[way], way, step("shared", 1))
    groups, asked = {}, [int(turns) for turns in sys.argv[1:]] or list(TURNS)
    for turns in asked:
        groups[f"{turns}_turns"] = timed(models, turns)
        print(turns, json.dumps(groups[f"{turns}_turns"]), file=sys.stderr, flush=True)
    memory = {f"{turns}_turns": {way: measured_apart(way, turns) for way in WAYS} for turns in asked if turns in (4, 8)}
    figures = {
        "device": str(device_of("auto")),
        "threads": torch.get_num_threads(),
        "layers": LAYERS,
        "groups": groups,
        "peak_bytes": memory,
    }
    draw(figures, result("training.png"))
    print(write("training", figures))


if __name__ == "__main__":
    main()
