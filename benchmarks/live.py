"""Plays a simulated population against `sojourn live`: does it learn what people like, and go on when that drifts?

    python benchmarks/live.py                                  # all; about half an hour on two quiet cores
    python benchmarks/live.py --seeds 0 --variants learning    # into the work folder
    python benchmarks/live.py --dry                            # builds every recipe, runs nothing

The service is the command itself, with its training process, over HTTP on this machine. Its model is tiny, and is
cloned from demonstrations that answer in every style as often (`live_warmup.toml`). People ask for one of four things,
three in a session. For each there are three styles of an answer, of which one is liked, which no prompt and no panel
says; in the middle of the run it is another one for each. People say "Thanks." or "No, I wanted: ...", most give a
thumb to the last reply, and one in twenty sessions is not to be kept.

`learning` trains on that; `frozen` is the same with the file FREEZE, so that nothing replaces the first weights;
`poisoned`: 10% of the people say the opposite of what they think, always. `absurd` and `absurd_canary` learn at a rate
that destroys the weights, in the second with a gate that lets everything pass, so that only feedback can tell.
`latency` measures replies while training runs and while its process is stopped, in turns of a few seconds.

People come as fast as training takes their sessions, so that the curves do not depend on the machine. After each run,
but those of `latency`, it is checked that each kept session was answered by a release that was offered and tried or
served at that time, that the probabilities of what was sampled are those of that release's weights, and that nothing is
kept of whom did not agree.

What is finished stays in `--folder`; a killed run begins again. Settings were chosen on seeds 0 and 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bakeoff import FIGURES, HERE, WARMUP, Bakeoff, Job, attempted, interval, run
from live_checks import audit
from live_latency import paused_and_running
from live_population import Population
from live_service import Service, serving
from machine import RESULTS, commit, write

from sojourn.config import toml
from sojourn.live.gate import FREEZE
from sojourn.train.resolve import resolve

SEEDS = range(10, 13)
SESSIONS, DRIFT, BAD_SESSIONS = 2400, 1200, 300
BLOCK, PART = 100, 300  # sessions: of a point of the curve, and of what is compared
ANYTHING_PASSES = {"margin": 1.0, "part_margin": 1.0, "malformed_rise": 1.0, "tokens_ratio": 100.0}
ABSURD = {"optim": {"lr": 0.3}}
VARIANTS: dict[str, dict[str, Any]] = {
    "learning": {},
    "frozen": {},
    "poisoned": {},
    "absurd": {"stages": {"live": ABSURD}},
    "absurd_canary": {"stages": {"live": ABSURD}, "release": ANYTHING_PASSES},
    "latency": {"evaluation": {"every": 1, "tasks": 512}},
}
BAKEOFF = Bakeoff(HERE / "live.toml", HERE / "live_warmup.toml", VARIANTS, "learning")


async def played(job: Job, service: Service) -> dict[str, Any]:
    """Returns the figures of a population's sessions with a service."""
    if job.variant == "latency":
        return await paused_and_running(service, job.seed)
    bad = job.variant.startswith("absurd")
    if job.variant == "frozen":
        (service.run / "live" / FREEZE).touch()
    people = Population(
        service.base_url,
        job.seed,
        BAD_SESSIONS if bad else SESSIONS,
        SESSIONS if bad else DRIFT,
        hostile=0.1 if job.variant == "poisoned" else 0.0,
        ready=service.ready,
    )
    talked = await people.live()
    return {"liked": [list(one.liked) for one in talked], **await audit(service.run, talked)}


def made(job: Job, folder: Path) -> dict[str, Any]:
    """Returns the figures of one run: those that are there, where they are of the same recipe, else made now."""
    place, table = job.place(folder), resolve(job.tables(folder)).table
    if (place / FIGURES).exists():
        found = json.loads((place / FIGURES).read_text())
        if found["recipe"] == json.loads(json.dumps(table)):
            return found
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "recipe.toml").write_text(toml.dump(table))
    with serving(place / "recipe.toml", place / "run") as service:
        figures = asyncio.run(played(job, service))
    figures |= {"commit": commit(), "recipe": table}
    (place / FIGURES).write_text(json.dumps(figures))
    print(f"seed {job.seed}, {job.variant}: {shown(job.variant, figures)}", file=sys.stderr, flush=True)
    return figures


# -- what the runs say


def part(figures: Mapping[str, Any], first: int, last: int) -> float:
    """Returns the part of the replies that were liked, of the sessions of a range."""
    return statistics.fmean(liked for session in figures["liked"][first:last] for liked in session)


def successes(figures: Mapping[str, Any]) -> dict[str, float]:
    """Returns success at the start, before the drift, right after it, and at the end."""
    return {
        "first": part(figures, 0, BLOCK),
        "before_drift": part(figures, DRIFT - PART, DRIFT),
        "after_drift": part(figures, DRIFT, DRIFT + BLOCK),
        "last": part(figures, SESSIONS - PART, SESSIONS),
    }


def curve(figures: Mapping[str, Any]) -> list[float]:
    return [round(part(figures, n, n + BLOCK), 4) for n in range(0, len(figures["liked"]), BLOCK)]


def shown(variant: str, figures: Mapping[str, Any]) -> str:
    if variant == "latency":
        return f"p95 {figures['p95_ratio']:.2f} times as long while training runs"
    checks = f"{figures['releases_served']} releases served, {figures['faults']} faults"
    if variant.startswith("absurd"):
        return f"{figures['refused']} refused, {figures['rolled_back']} rolled back; {checks}"
    return ", ".join(f"{name} {value:.0%}" for name, value in successes(figures).items()) + f"; {checks}"


def summary(runs: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns what the runs say by variant, each number with its 95% interval over seeds."""
    found: dict[str, Any] = {}
    for variant, of in runs.items():
        if variant in ("learning", "frozen", "poisoned"):
            by_seed = [successes(figures) for figures in of.values()]
            found[variant] = {name: interval([one[name] for one in by_seed]) for name in by_seed[0]}
            found[variant]["curve"] = [
                round(statistics.fmean(point), 4) for point in zip(*map(curve, of.values()), strict=True)
            ]
        elif variant == "latency":
            names = [name for name in next(iter(of.values())) if name.startswith(("p50", "p95"))]
            found[variant] = {name: interval([figures[name] for figures in of.values()]) for name in names}
        else:
            names = ("refused", "rolled_back", "tried_sessions", "most_sessions_of_a_bad_release", "bad_served")
            found[variant] = {name: [figures[name] for figures in of.values()] for name in names}
        if variant != "latency":  # which is not checked
            found[variant]["faults"] = sum(figures["faults"] for figures in of.values())
    return found


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="a population with preferences that drift, served and learnt from")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS), metavar="A,B")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-live")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"no variant {sorted(unknown)[0]}: choose among {', '.join(VARIANTS)}")
    whole = set(options.variants) == set(VARIANTS) and set(options.seeds) >= set(SEEDS)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.dry:
        for variant in (WARMUP, *options.variants):
            resolve(Job(BAKEOFF, variant, 0).tables(folder))
            print(f"{variant} can be built")
        return
    runs: dict[str, dict[str, Any]] = {}
    for seed in options.seeds:
        run(Job(BAKEOFF, WARMUP, seed), folder)
        for variant in options.variants:
            job = Job(BAKEOFF, variant, seed)
            if (figures := attempted(lambda job=job: made(job, folder), f"seed {seed}, {variant}")) is not None:
                runs.setdefault(variant, {})[str(seed)] = {k: v for k, v in figures.items() if k != "recipe"}
    found = {"summary": summary(runs), "runs": {v: {s: compact(f) for s, f in of.items()} for v, of in runs.items()}}
    print(json.dumps(found["summary"], indent=1), flush=True)
    complete = whole and all(len(runs.get(variant, {})) == len(options.seeds) for variant in VARIANTS)
    print(write("live", found, folder=RESULTS if complete else folder))


def compact(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of a run with the curve in place of every session."""
    own = {name: value for name, value in figures.items() if name != "liked"}
    return own | ({"curve": curve(figures)} if "liked" in figures else {})


if __name__ == "__main__":
    main(sys.argv[1:])
