"""Trains tiny models from scratch by self-play, and measures how far they are from optimal play.

    python benchmarks/selfplay.py                                        # all
    python benchmarks/selfplay.py --game kuhn_poker --seeds 0,1 --variants present
    python benchmarks/selfplay.py --game kuhn_poker --seeds 20,21 --add  # beside what the result has
    python benchmarks/selfplay.py --dry                                  # builds every recipe, runs nothing

Variants differ in who sits opposite: the present policy alone, a pool of its snapshots and the present policy half and
half, or the same with opponents that it beats least (prioritised fictitious self-play). In poker and matrix games the
measure is NashConv in the game's own units, every 30 steps: how much both players could gain by best responses,
together; 0 in an equilibrium. In tic-tac-toe it is how often the likeliest moves of the policy do not lose against a
player that draws among all perfect moves (minimax of OpenSpiel), in 512 games; beside it stand how often they win
against one that moves at random, and both for moves that are sampled (`_sampled`). Beside these, the checkpoints of
each run play a league (`sojourn league`), which gives their ratings on the scale of Elo, and NashConv of their
`mixture`: a player who draws one of the checkpoints before each game.

Three things make a policy gradient settle near an equilibrium of a game with hidden information, where it else runs in
circles around it: an entropy bonus that stays, whose equilibrium is close enough (in Kuhn poker a bonus of 0.1 of the
smallest payoff has one with a NashConv of 0.041; magnetic mirror descent with a uniform magnet: Sokota et al. 2023,
arXiv:2206.05825, whose update is another), Adam without momentum (`betas = [0, 0.99]`), and steps that fall to
nothing. The prompts leave the rules out, which a model from scratch cannot read: with them, what differs between two
states is one token in 140, and all states move together.

In tic-tac-toe, where nothing is hidden, momentum does no harm, and the likeliest move is the one that counts. The bonus
keeps all openings in play, without which a policy learns the few games that it plays; a critic of positions judges each
move, and prompts show the present position alone. In rock-paper-scissors, a single decision, steps must be small.

Measured so far: Kuhn poker and rock-paper-scissors, in play against the present policy, on five seeds each
(`results/selfplay_kuhn_poker.json`, `results/selfplay_matrix_rps.json`), to a NashConv of 0.050 and of 0.119. A pool of
snapshots, half of whose groups are against the present policy, does worse on each of the same five seeds of Kuhn poker:
0.087 to 0.105 on four, and 0.667 on one, whose policy stopped to change.
Tic-tac-toe is learned, but *not steadily*: with a token for each cell and mark (`tensor`), without which the tiny model
hardly tells boards apart, the likeliest moves of seed 0, on which settings were chosen, lose 1.4% of 512 games against
the perfect player after 640 steps. Seed 20 lost 1% after 360, 2% after 480, 14% at the end: one wrong answer to a line
that self-play leaves out costs so much. So games begin after up to four random moves (`opening`) now: 1.6% and 1.4%
lost (seeds 0 and 1, on which that was chosen), and on five fresh seeds (30 to 34) 2.9% in the mean: none on four of
them, 14.4% on 33, again by one wrong answer (`results/selfplay_tic_tac_toe.json`).

Leduc poker, too, is learned only where positions are shown as symbols: after 120 steps NashConv was 1.7 and 1.8 with
them (seed 0, learning rates of 1e-3 and 3e-4), and 3.3 as a text after 240. Five fresh seeds (10 to 14) end at 1.13
[0.70, 1.56], from 0.75 to 1.61, a uniform policy having 4.75 and the untrained models 3.4 to 8.5
(`results/selfplay_leduc_poker.json`). A greater bonus (0.03) makes it steadier: 1.13 after 360 steps of seed 0, where
0.01 swings between 1.5 and 4.

Trainings go on where they were killed; what is finished stays in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bakeoff import HERE, Runs, execute, in_units, interval, joined, made, missing, recorded, trained
from machine import RESULTS, write
from test_time_search import EVALUATE

from sojourn.config import toml
from sojourn.train.resolve import resolve

RECIPE = HERE / "selfplay.toml"
SEEDS = range(10, 15)
TASKS = 512  # games against a fixed player
GAMES_EACH = 100  # deals that every two checkpoints play, once with each seat


@dataclass(frozen=True)
class Game:
    """A game, and how it is trained: `steps` steps of `width` deals, each played `size` times. With a critic, each move
    is judged by it, and the prompts show the present position alone."""

    name: str
    steps: int
    width: int
    size: int = 8
    entropy: float = 0.05  # in rewards, which are payoffs divided by the greatest
    lr: float = 2e-4
    momentum: float = 0.0
    minibatches: int = 1
    critic: bool = False
    tensor: bool = False  # whether positions are shown as symbols, not as a text
    opening: int = 0  # at most so many random moves come first
    measure: str = "nash_conv"

    def tables(self) -> dict[str, Any]:
        """Returns the tables of a recipe that differ from game to game."""
        schedule = {"name": "cosine", "warmup": 10}
        stage: dict[str, Any] = {
            "name": "rl",
            "steps": self.steps,
            "groups": {"name": "slots", "width": self.width, "size": self.size},
            "estimator": {"name": "rloo"},
            "losses": [{"name": "ppo"}, {"name": "entropy", "coef": self.entropy}],
            "minibatches": self.minibatches,
            "optim": {"lr": self.lr, "betas": [self.momentum, 0.99], "schedule": schedule},
        }
        if not self.critic:
            return {"stages": [stage]}
        stage["estimator"] = {"name": "turn_gae", "discount": 1.0, "lam": 0.9, "bootstrap": False}
        stage["streams"] = [{"name": "values"}, {"name": "next_values"}]
        stage["losses"].append({"name": "value", "coef": 0.5})
        agent = {"name": "plain", "choices": True, "history": "page"}
        return {"stages": [stage], "agent": agent, "critic": {"optim": {"lr": 1e-3}}}


GAMES = {
    "kuhn_poker": Game("kuhn_poker", steps=960, width=64, lr=3e-4, entropy=0.04),
    "leduc_poker": Game("leduc_poker", steps=480, width=64, lr=3e-4, entropy=0.02, tensor=True),
    "matrix_rps": Game("matrix_rps", steps=320, width=16, size=16, entropy=0.1, lr=2e-5),
    "tic_tac_toe": Game(
        "tic_tac_toe", steps=640, width=32, entropy=0.1, lr=1e-3, momentum=0.9, minibatches=4, critic=True, tensor=True,
        opening=4, measure="no_loss",
    ),
}  # fmt: skip


def pool(choose: str) -> dict[str, Any]:
    return {
        "models": {"past": {"snapshots": {"every": 20, "keep": 5, "choose": choose}}},
        "seats": {"opponents": ["past", "policy"]},
    }


VARIANTS: dict[str, dict[str, Any]] = {"present": {}, "pool": pool("uniform"), "pfsp": pool("pfsp_hard")}


class Job(NamedTuple):
    game: str
    variant: str
    seed: int

    def tables(self) -> toml.Tables:
        game, recipe = GAMES[self.game], toml.read(RECIPE)
        table = {**recipe.data, **game.tables(), **VARIANTS[self.variant], "seed": self.seed}
        table["env"] = {**recipe.data["env"], "game": game.name, "tensor": game.tensor, "opening": game.opening}
        if self.variant != "present":
            table["evaluation"] = {**recipe.data["evaluation"], "seats": {}}
        return replace(recipe, data=table)

    def place(self, folder: Path) -> Path:
        return folder / self.game / self.variant / f"seed-{self.seed}"


def against(run: Path, opponent: str, temperature: float) -> float:
    """Returns how often the last policy of a run succeeds against a player of the world: against the expert, in a game
    that nobody can win by force, by not losing, against the random player by winning."""
    overrides: dict[str, Any] = {"env.opponent": opponent, "env.opening": 0, "seats": {}, "models": {}}
    overrides |= {"evaluation.tasks": TASKS, "evaluation.temperature": temperature}
    told = execute([sys.executable, "-c", EVALUATE, f"{run}@last", json.dumps(overrides)])
    return float(json.loads(told.strip().splitlines()[-1])["overall"]["success"]["mean"])


def measured(job: Job, folder: Path) -> dict[str, Any]:
    """Returns what the policy of a job came to: NashConv as it learns, or its games."""
    run = trained(job.place(folder), job.tables())
    if GAMES[job.game].measure == "no_loss":
        found: dict[str, Any] = {
            f"{opponent}{name}": round(against(run, opponent, temperature), 4)
            for opponent in ("expert", "random")
            for name, temperature in (("", 0.0), ("_sampled", 1.0))
        }
        found["final"] = found["expert"]
    else:
        evaluations = json.loads((run / "evaluations.json").read_text())
        curve = [round(one["summary"]["measures"]["nash_conv"], 4) for one in evaluations if "summary" in one]
        found = {"curve": curve, "final": curve[-1]}
    played = league(run)
    found["league"] = rated(played)
    if mixture := played["measures"].get(f"{run.name}@*"):
        found["mixture"] = round(mixture["nash_conv"], 4)
    print(f"{job.game}, {job.variant}, seed {job.seed}: {found['final']:.3f}", file=sys.stderr, flush=True)
    return found


def league(run: Path) -> dict[str, Any]:
    """Returns the league of a run's checkpoints and a player at random."""
    file = run / "league.json"
    if not file.exists():
        players = ["--operator", f"{run}@*", "--operator", "random"]
        words = [str(run), *players, "--tasks", str(GAMES_EACH), "--out", str(file)]
        execute([sys.executable, "-m", "sojourn", "league", *words])
    return json.loads(file.read_text())


def rated(played: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Returns what each came to in a league: ratings and mean returns, each with its 95% interval."""
    return {
        one["name"].rpartition("@")[2]: {
            "elo": [round(one[key]) for key in ("rating", "low", "high")],
            "return": [round(value, 3) for value in one["reward"]],
        }
        for one in played["standings"]
    }


def compared(game: Game, jobs: Sequence[Job], known: Runs, folder: Path, workers: int) -> dict[str, Any]:
    """Returns the figures of a game, of known runs and new ones: of each variant, the mean over seeds with its
    interval, the worst, and all."""
    found = made(jobs, lambda job: measured(job, folder), workers)
    figures: dict[str, Any] = {"measure": game.measure, "variants": {}}
    for variant, runs in joined(known, found, list(VARIANTS)).items():
        finals = np.array([one["final"] for one in runs.values()])
        worst = finals.min() if game.measure == "no_loss" else finals.max()
        figures["variants"][variant] = {
            "mean": interval(finals.tolist()),
            "worst": round(float(worst), 4),
            "runs": runs,
        }
    return figures


def told(game: str, figures: Mapping[str, Any]) -> str:
    lines = [f"{game}: {figures['measure']}"]
    for variant, of in figures["variants"].items():
        lines.append(f"  {variant:8} {in_units(of['mean'])}, worst {of['worst']:.3f}")
    return "\n".join(lines)


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="self-play, measured against optimal play")
    parser.add_argument("--game", choices=GAMES, action="append", help="(default: all)")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=list(SEEDS))
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS), metavar="A,B")
    parser.add_argument("--workers", type=int, default=2, help="trainings at once, of one thread each")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sojourn-selfplay")
    parser.add_argument("--add", action="store_true", help="add to the result: what it has is not made again")
    parser.add_argument("--dry", action="store_true", help="build every recipe, run nothing")
    options = parser.parse_args(given)
    if unknown := set(options.variants) - set(VARIANTS):
        parser.error(f"no variant {sorted(unknown)[0]}: choose among {', '.join(VARIANTS)}")
    whole = options.add or (options.variants == list(VARIANTS) and set(options.seeds) >= set(SEEDS))
    options.folder.mkdir(parents=True, exist_ok=True)
    for game in options.game or GAMES:
        if options.dry:
            for variant in options.variants:
                resolve(Job(game, variant, 0).tables())
                print(f"{game}: {variant} can be built")
            continue
        known = recorded(f"selfplay_{game}") if options.add else {}
        jobs = [Job(game, variant, seed) for variant, seed in missing(known, options.variants, options.seeds)]
        figures = compared(GAMES[game], jobs, known, options.folder.resolve(), options.workers)
        print(told(game, figures), flush=True)
        print(write(f"selfplay_{game}", figures, "open-spiel", folder=RESULTS if whole else options.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
