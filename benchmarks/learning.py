"""How steadily a recipe learns: whole trainings on many seeds, held against what one wants to rely on.

    python benchmarks/learning.py toy                                 # seeds 10 to 19, into `results`
    python benchmarks/learning.py toy --seeds 0,1,2                   # into the work folder
    python benchmarks/learning.py toy --seeds 0,1,2 --name longer --with stages.rl.steps=60   # an ablation
    python benchmarks/learning.py miniwob --name fp32 --with model.dtype=fp32   # a variant, reported as well
    python benchmarks/learning.py toy --dry

Every training is `sojourn train recipes/NAME/train.toml seed=S`, a process of its own on one thread. Then the weights
that the run's name means, those of its best evaluation, play anew, on twice as many tasks, of which the run evaluated
half: the best of several evaluations looks better than it is. A killed benchmark goes on where it was, in `--folder`.
The checkpoints of a training that has its figures are deleted, without `--keep`: those of SmolLM2 take some 3 GB.

Seeds 10 to 19 are for reporting alone: what is tuned is tuned on others. The curve of all seeds goes beside the
figures, that of a recipe as it is into its folder. Of each seed the result has success in every evaluation, overall, by
world and by tag; `fall`, by how many points the mean of the last five training steps is below that of the best five in
a row, of the last stage that plays, where every kind of tasks counts alike; `worse`, the tags whose success in the end
is below that after the stage `warmup` by more than the interval of either; and `diagnosed`, what the diagnosis says of
the run, which should be nothing where it learns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bakeoff import HERE, attempted, execute, interval, shown
from machine import RESULTS, commit, write

from sojourn.config import toml
from sojourn.plot import curve
from sojourn.record import metrics
from sojourn.record.diagnosis import findings
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_status import State, read_status
from sojourn.record.run_weights import find_weights
from sojourn.train.resolve import resolve

SEEDS = tuple(range(10, 20))
WINDOW = 5  # steps
FIGURES = "figures.json"
EVALUATE = """
import json, sys, sojourn
tasks = 2 * sojourn.open(sys.argv[1]).config["evaluation"]["tasks"]
found = sojourn.evaluate(sys.argv[1], progress=False, **{"evaluation.tasks": tasks})
print(json.dumps(found.to_json()))
"""


class Training(NamedTuple):
    """A recipe on a seed, with overrides, whose name says what they try."""

    recipe: str
    name: str
    overrides: tuple[str, ...]
    seed: int

    @property
    def settings(self) -> list[str]:
        return [*self.overrides, f"seed={self.seed}"]

    @property
    def path(self) -> Path:
        return HERE.parent / "recipes" / self.recipe / "train.toml"

    def place(self, folder: Path) -> Path:
        """Returns where its figures and its run are."""
        return folder / self.recipe / self.name / f"seed-{self.seed}"

    def run(self, folder: Path) -> Path:
        return self.place(folder) / f"{self.recipe}-{self.seed}"


def trained(training: Training, folder: Path, *, keep: bool) -> dict[str, Any]:
    """Returns the figures of a training: those that are there, else made now, from where it was stopped."""
    place = training.place(folder)
    wanted = table(training.path, training.settings)
    if (place / FIGURES).exists():
        found = json.loads((place / FIGURES).read_text())
        if found["recipe"] == wanted:
            return found
        raise RuntimeError(f"{place} has figures of another recipe: give the ablation another --name, or remove it")
    run = training.run(folder)
    finish(training.path, training.settings, wanted, run)
    final = json.loads(execute([sys.executable, "-c", EVALUATE, str(run)]).splitlines()[-1])
    figures = {**measured(run), "final": outcome(final), "commit": commit(), "recipe": wanted}
    (place / FIGURES).write_text(json.dumps(figures))
    if not keep:
        shutil.rmtree(run / "checkpoints")
    print(f"{training.name}, seed {training.seed}: {figures['final']['success'][0]:.1%}", file=sys.stderr, flush=True)
    return figures


def table(path: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Returns a recipe as a run's config has it, in the types of JSON."""
    return json.loads(json.dumps(resolve(toml.read(path, settings)).table))


def finish(path: Path, settings: Sequence[str], wanted: Mapping[str, Any], run: Path) -> None:
    """Trains a recipe, whose table is `wanted`, into `run`, from where it was stopped; nothing where it has ended."""
    begun = (run / "config.toml").exists()
    if begun and json.loads(json.dumps(RunFolder.read(run).config)) != wanted:
        raise RuntimeError(f"{run} is of another recipe: remove it, or name an ablation otherwise by --name")
    if not begun:
        execute([sys.executable, "-m", "sojourn", "train", str(path), *settings, "--out", str(run)])
    elif read_status(run).state is not State.FINISHED:
        execute([sys.executable, "-m", "sojourn", "train", str(run), "--resume"])


def measured(run: Path) -> dict[str, Any]:
    lines = list(metrics.read(run / "metrics.jsonl"))
    played = [line for line in lines if "success" in line.values]
    played = [line for line in played if line.stage == played[-1].stage]
    success = [line.values["success"] for line in played]
    with EpisodeStore(run) as store:
        diagnosed = [finding.name for finding in findings(store, lines)]
        plays = [(row.step, row.tags, row.success) for row in store.query(stage=played[-1].stage)] if played else []
    return {
        "evaluations": [{"name": one["name"], **outcome(one["summary"])} for one in RunFolder.read(run).evaluations()],
        "best": find_weights(run, "").name,
        "training": [round(value, 4) for value in success],
        "fall": fall(plays),
        "no_signal": round(float(np.mean([line.values["zero_signal"] for line in played])), 4) if played else None,
        "diagnosed": diagnosed,
        "seconds": round(sum(line.values["seconds_step"] for line in lines)),
    }


def fall(plays: Sequence[tuple[int, Sequence[str], float | None]]) -> float | None:
    """Returns by how much success in the last steps is below that of the best ones in a row; None for too few steps.

    `plays` are step, tags and success of each episode, by step. In a window of steps every kind of tasks, those of the
    same tags, counts alike, with its newest success before where the window has none of it: a curriculum that draws
    more of what is hard would look like a fall.
    """
    steps = [list(of) for _, of in groupby(plays, key=itemgetter(0))]
    newest: dict[Sequence[str], float] = {}
    means: list[float] = []
    for first in range(len(steps) - WINDOW + 1):
        kinds = defaultdict[Sequence[str], list[float]](list)
        for _, tags, success in chain(*steps[first : first + WINDOW]):
            if success is not None:
                kinds[tags].append(success)
        newest |= {tags: float(np.mean(own)) for tags, own in kinds.items()}
        means.append(float(np.mean(list(newest.values()))))
    return round(max(means) - means[-1], 4) if means else None


def outcome(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns success with its 95% interval, overall and by tag; a world is a tag, where there are several."""

    def of(statistics: Mapping[str, Any]) -> list[float]:
        success = statistics["success"]
        return [round(success[key], 4) for key in ("mean", "low", "high")]

    worlds = summary["envs"] if len(summary["envs"]) > 1 else {}
    return {
        "success": of(summary["overall"]),
        "tags": {tag: of(one) for tag, one in {**worlds, **summary["tags"]}.items()},
    }


def summary(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the figures over seeds."""
    final = [of["final"]["success"][0] for of in runs.values()]
    falls = [of["fall"] for of in runs.values() if of["fall"] is not None]
    return {
        "seeds": len(runs),
        "final": interval(final),
        "worst": min(final),
        "last": interval([of["evaluations"][-1]["success"][0] for of in runs.values()]),
        "fall": interval(falls) if falls else None,
        "worse": {seed: tags for seed, of in runs.items() if (tags := worse(of))},
        "diagnosed": {seed: of["diagnosed"] for seed, of in runs.items() if of["diagnosed"]},
        "seconds": interval([of["seconds"] for of in runs.values()]),
    }


def worse(of: Mapping[str, Any]) -> list[str]:
    """Returns the tags that the run's weights are clearly worse at than the weights after its first stage."""
    cloned = next((one for one in of["evaluations"] if one["name"] == "warmup"), None)
    known = cloned["tags"] if cloned else {}
    return [
        tag
        for tag, (mean, _, high) in of["final"]["tags"].items()
        if tag in known and high < known[tag][0] and mean < known[tag][1]
    ]


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", choices=sorted(p.parent.name for p in HERE.parent.glob("recipes/*/train.toml")))
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--name", default="recipe", help="of an ablation")
    parser.add_argument("--with", dest="overrides", nargs="*", default=[], help="overrides of an ablation")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-learning")
    parser.add_argument("--keep", action="store_true", help="keep the checkpoints")
    parser.add_argument("--dry", action="store_true", help="build the recipe, run nothing")
    options = parser.parse_args(given)
    if bool(options.overrides) != (options.name != "recipe"):
        parser.error("--with and --name belong together: an ablation has both, the recipe as it is none")
    trainings = [Training(options.recipe, options.name, tuple(options.overrides), seed) for seed in options.seeds]
    if options.dry:
        for training in trainings:
            resolve(toml.read(training.path, training.settings))
            print(f"{training.recipe}, {training.name}, seed {training.seed} can be built")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()

    def attempt(training: Training) -> dict[str, Any] | None:
        return attempted(lambda: trained(training, folder, keep=options.keep), f"seed {training.seed}")

    with ThreadPoolExecutor(options.workers) as pool:
        done = list(pool.map(attempt, trainings))
    runs = {str(t.seed): of for t, of in zip(trainings, done, strict=True) if of is not None}
    if not runs:
        sys.exit(f"{options.recipe}: no training ended well")
    found = {"runs": {seed: {k: v for k, v in of.items() if k != "recipe"} for seed, of in runs.items()}}
    figures = {"overrides": options.overrides, "summary": summary(runs), **found}
    over = figures["summary"]
    print(f"{options.recipe}, {options.name}, {over['seeds']} seeds: {shown(over['final'])}, worst {over['worst']:.1%}")
    as_it_is, reported = options.name == "recipe", options.seeds == list(SEEDS)
    name = f"learning_{options.recipe}" + ("" if as_it_is else f"_{options.name}")
    print(write(name, figures, folder=RESULTS if reported else folder))
    picture = trainings[0].path.with_name("curve.png") if as_it_is and reported else folder / f"{name}.png"
    curve([t.run(folder) for t in trainings if str(t.seed) in runs], picture)
    print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
