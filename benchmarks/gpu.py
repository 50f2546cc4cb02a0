"""All that is to be measured on a CUDA device, unattended, in a quarter of an hour.

    python benchmarks/gpu.py [--only agreement | loops | scripts]

First, whether the device computes what the CPU does, in fp32, for a model of SmolLM2-135M's shape, cut to two layers:
log-probabilities of a sampler that reads, caches and forks, and of a trainer on a tree of shared prefixes, with its
gradient. Then whole recipes on the device and on the CPU of the same machine. Then the scripts that use a device where
there is one, each in a process with a time limit; their own results end in `-cuda`.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import loop
import numpy as np
import torch
import training
from machine import write

from sojourn.backends.torch.sampler.engine import Engine
from sojourn.backends.torch.trainer.model_passes import ModelPasses
from sojourn.backends.torch.trainer.trainer import TorchTrainer
from sojourn.losses.reinforce import Reinforce
from sojourn.optim import Optim
from sojourn.types import Prompt

PARTS = ("agreement", "loops", "scripts")
RECIPES = ("toy", "shop")
SCRIPTS = {"training.py 1 8": 300, "engine.py --minutes 2 --limit 10": 170}  # seconds
TOLERANCE = 1e-3  # of a log-probability, in nats, and of the gradient's norm


async def sampled(model: Any, device: str) -> list[np.ndarray]:
    """Scores of contexts that share a prompt, and of their prompt again."""
    engine = Engine(copy.deepcopy(model).to(device), stops=(), max_context=600)
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, model.config.vocab_size, 200)
    tails = [rng.integers(0, model.config.vocab_size, n) for n in (1, 40, 333)]
    contexts = [Prompt(np.concatenate([prompt, tail])) for tail in tails]
    scores = await asyncio.gather(*(engine.score(context) for context in [*contexts, Prompt(prompt)]))
    await engine.close()
    return scores


async def trained(model: Any, device: str) -> tuple[np.ndarray, torch.Tensor]:
    """Log-probabilities of a group's tokens, and the gradient."""

    async def nowhere(weights: Any, version: int) -> None: ...

    batch = training.step("shared", 4)
    trainer = TorchTrainer(ModelPasses(copy.deepcopy(model).to(device), bf16=False, token_budget=4096), nowhere)
    trainer.begin(Optim(), 1, reference=False)
    logprobs = (await trainer.forward(batch)).logprobs
    await trainer.forward_backward(batch, [Reinforce()])
    gradient = torch.cat([p.grad.flatten().cpu() for p in trainer.trainable.values() if p.grad is not None])
    trainer.close()
    return logprobs, gradient


async def agreement(device: str) -> dict[str, float]:
    """The largest differences from the CPU."""
    model = training.build().cpu()
    scores = [await sampled(model, where) for where in ("cpu", device)]
    (ours, one), (theirs, other) = [await trained(model, where) for where in ("cpu", device)]
    return {
        "sampler": max(float(np.abs(a - b).max()) for a, b in zip(*scores, strict=True)),
        "trainer": float(np.abs(ours - theirs).max()),
        "gradient": float((one - other).norm() / one.norm()),
    }


def run(script: str, limit_s: float) -> dict[str, Any]:
    (name, *options), began = script.split(), time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name(name), *options],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        failure = done.stderr[-500:] if done.returncode else ""
    except subprocess.TimeoutExpired:
        failure = f"over {limit_s:.0f} s"
    return {"seconds": round(time.monotonic() - began), "failure": failure}


def main(parts: tuple[str, ...]) -> int:
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no CUDA device: run this where it does", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(), "tolerance": TOLERANCE}
    if "agreement" in parts:
        figures["apart_from_cpu"] = asyncio.run(agreement("cuda"))
        write("gpu", figures)  # what is there, should the machine be taken away
    for name in RECIPES if "loops" in parts else ():
        measured = {device: loop.measure(name, f"backend.device={device}") for device in ("cuda", "cpu")}
        figures[f"loop {name}"] = measured
        write("gpu", figures)
    for script, limit_s in SCRIPTS.items() if "scripts" in parts else ():
        figures[script] = run(script, limit_s)
        write("gpu", figures)
    print(write("gpu", figures), figures)
    failed = any(figures.get(script, {}).get("failure") for script in SCRIPTS)
    agrees = all(apart <= TOLERANCE for apart in figures.get("apart_from_cpu", {}).values())  # NaN does not
    return 0 if agrees and not failed else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS)
    asked = parser.parse_args()
    sys.exit(main((asked.only,) if asked.only else PARTS))
