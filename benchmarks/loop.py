"""How fast whole RL steps are, where their time goes, and how far that is from the floor, by the recipes themselves.

    python benchmarks/loop.py [recipe ...]

Each recipe is trained as a user would, with a warm-up that is only long enough for ordinary episodes, then `STEPS` RL
steps are measured, after the first, which opens pages and fills caches. Rates are medians over the steps; shares are of
the summed time, each moment given to the first of training, publishing, sampling and the world that went on in it, the
rest being overhead. `floor_s` is what the parts of a step would take at their best rates, alone (`floors.py`), and
`times_the_floor` how many times the sum of these a step takes: it can be below 1 where parts overlap.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import floors
from machine import write

from sojourn.record import metrics

STEPS = 8
WARMUP = {"toy": 150, "guess": 60, "miniwob": 8, "shop": 6, "worlds": 10}  # steps of cloning
ACTIVITIES = ("train", "publish", "sample", "env", "other")


def measure(name: str, *settings: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        overrides = [
            *settings,
            f"stages.warmup.steps={WARMUP[name]}",
            f"stages.rl.steps={1 + STEPS}",
            "evaluation.tasks=4",
        ]
        command = [sys.executable, "-m", "sojourn", "train", f"recipes/{name}/train.toml", "--out", str(out)]
        subprocess.run([*command, *overrides], check=True, stdout=sys.stderr)
        steps = [line.values for line in metrics.read(out / "metrics.jsonl") if line.stage == "rl"][1:]
    rates = floors.rates(Path(f"recipes/{name}/train.toml"), settings)

    def median(rate: str, over: str) -> float:
        return round(statistics.median(step.get(rate, 0.0) / step[over] for step in steps if step[over]), 2)

    whole = sum(step["seconds_step"] for step in steps)
    least = [rates.floors(step) for step in steps]
    floor_s = {part: round(statistics.median(one[part] for one in least), 3) for part in least[0]}
    times = [step["seconds_step"] / sum(one.values()) for step, one in zip(steps, least, strict=True)]
    return {
        "steps": len(steps),
        "episodes_per_step": steps[0]["episodes"],
        "success": round(statistics.mean(step["success"] for step in steps), 3),
        "episodes_per_s": median("episodes", "seconds_step"),
        "sampled_tokens_per_s": median("sampled_tokens", "seconds_step"),
        "sampled_tokens_per_sampling_s": median("sampled_tokens", "seconds_sample"),
        "sequence_tokens_per_s": median("sequence_tokens", "seconds_step"),
        "sequence_tokens_per_training_s": median("sequence_tokens", "seconds_train"),
        "computed_tokens_per_training_s": median("computed_tokens", "seconds_train"),
        "share": {a: round(sum(step[f"seconds_{a}"] for step in steps) / whole, 3) for a in ACTIVITIES},
        "seconds_per_step": round(statistics.median(step["seconds_step"] for step in steps), 2),
        "rates": {key: float(f"{value:.4g}") for key, value in rates._asdict().items()},
        "floor_s": floor_s,
        "times_the_floor": round(statistics.median(times), 2),
    }


if __name__ == "__main__":
    names = sys.argv[1:] or list(WARMUP)
    print(write("loop", {name: measure(name) for name in names}))
