"""Trains tiny models by what people say next: by whether it was right, by what they say they wanted, and by both.

    python benchmarks/feedback.py                                  # all; about half an hour on two cores
    python benchmarks/feedback.py --seeds 0 --variants directive   # into the work folder
    python benchmarks/feedback.py --dry                            # builds every recipe, runs nothing

The two signals of OpenClaw-RL (Wang et al. 2026, arXiv:2603.10165), and their sum, in a world where nothing else tells
right from wrong (`feedback_world.py`): of 36 answers, two words each, people want one for each of twelve things. A
model is first taught to answer at all, evenly, and to say what a hint says (`feedback_warmup.toml`); then each variant
learns the tastes of other people by conversations that are had once: `evaluative`, thanks and corrections as rewards of
1 and -1; `directive`, the policy's own log-probabilities once it has read the correction; `both`, their sum, each with
the weight 1. Thanks are no hint: they tell nothing to do better, so that `directive` learns from corrections alone.

The script is a bake-off (`bakeoff.py`). Settings were chosen on seeds 0 and 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bakeoff import HERE, WARMUP, Bakeoff, Job, bake, summary, told
from machine import RESULTS, write

from sojourn.config import toml
from sojourn.train.resolve import resolve

BASE = "evaluative"
SEEDS = range(10, 15)
TURN = {"name": "reinforce", "discount": 0.0, "baseline": "none"}
HINTS = [{"name": "hindsight_hint", "max_tokens": 64}]
TAUGHT = {"name": "teacher_kl", "stream": "hindsight_hint", "coef": 1.0, "base": TURN}


def signals(coef: float, hints: bool) -> dict[str, Any]:
    """Returns how the recipe uses what people say: rewards of `coef`, with their corrections as hints or not."""
    [stage] = toml.read(HERE / "feedback.toml").data["stages"]
    more = {"streams": HINTS, "estimator": TAUGHT} if hints else {"estimator": TURN}
    return {"reward": {"name": "next_state", "coef": coef, "hints": hints}, "stages": [{**stage, **more}]}


VARIANTS = {BASE: signals(1.0, False), "directive": signals(0.0, True), "both": signals(1.0, True)}
BAKEOFF = Bakeoff(HERE / "feedback.toml", HERE / "feedback_warmup.toml", VARIANTS, BASE)


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="what people say next as rewards, as hints, and as both")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS), metavar="A,B")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-feedback")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"no variant {sorted(unknown)[0]}: choose among {', '.join(VARIANTS)}")
    names = [name for name in VARIANTS if name in (BASE, *options.variants)]
    whole = len(names) == len(VARIANTS) and set(options.seeds) >= set(SEEDS)
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.dry:
        for variant in (WARMUP, *names):
            resolve(Job(BAKEOFF, variant, 0).tables(options.folder))
            print(f"{variant} can be built")
        return
    runs = bake(BAKEOFF, names, options.seeds, options.folder.resolve(), options.workers)
    found = {"summary": summary(BASE, runs), "runs": runs}
    print(told(BASE, found), flush=True)
    print(write("feedback", found, folder=RESULTS if whole else options.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
