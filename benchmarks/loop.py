"""How fast whole RL steps are, and where their time goes: toy, miniwob and shop, by their own recipes.

    python benchmarks/loop.py [recipe ...]

Each recipe is trained as a user would, with a warm-up that is only long enough for ordinary episodes, then `STEPS` RL
steps are measured. Rates are medians over the steps; shares are of the summed time, each moment given to the first of
training, publishing, sampling and the world that went on in it, the rest being overhead.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import write

from sojourn.record import metrics

STEPS = 5
WARMUP = {"toy": 150, "miniwob": 8, "shop": 6}  # steps of cloning
ACTIVITIES = ("train", "publish", "sample", "env", "other")


def measure(name: str, *settings: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        overrides = [*settings, f"stages.warmup.steps={WARMUP[name]}", f"stages.rl.steps={STEPS}", "evaluation.tasks=4"]
        command = [sys.executable, "-m", "sojourn", "train", f"recipes/{name}/train.toml", "--out", str(out)]
        subprocess.run([*command, *overrides], check=True, stdout=sys.stderr)
        steps = [line.values for line in metrics.read(out / "metrics.jsonl") if line.stage == "rl"]

    def median(rate: str, over: str) -> float:
        return round(statistics.median(step.get(rate, 0.0) / step[over] for step in steps if step[over]), 2)

    whole = sum(step["seconds_step"] for step in steps)
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
    }


if __name__ == "__main__":
    names = sys.argv[1:] or list(WARMUP)
    print(write("loop", {name: measure(name) for name in names}))
