"""Twenty SIGKILLs at random moments of a run on Ray: of samplers, workers, trainer ranks, nodes, the driver.

    pip install -r tests/backends/ray/requirements.txt
    python benchmarks/kills_ray.py [seed of the moments]

Four of Ray's nodes on this machine, of which the last three hold a small toy run (fp32, cloning and RL, a checkpoint
every step). Each time, after a random while, something that is drawn at random is killed with SIGKILL: a process of an
actor, all processes of a node (another one joins the cluster then), or the driver, which is started again with
`--resume`. Then the run may finish. It is held against a run in one process that nothing was killed of: the weights bit
for bit, the sampled tokens of every group, the number of groups of each slot. `seconds_to_next_step` are those from a
kill to the next step that was recorded, unless something else was killed before.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from kills import OVERRIDES, TRAIN, position, recorded, weights
from machine import write

from sojourn.backends.ray.cluster import SETTINGS
from sojourn.record.episodes.store import EpisodeStore

KILLS = 20
PAUSE_S = (0.5, 30.0)  # between kills
PATIENCE_S = 3600.0  # for the run to end after the last kill
ACTORS = ("SamplerActor", "EnvWorker", "TrainerRank")
KINDS = (*ACTORS, "node", "driver")
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100_000_000}
WORK = [*OVERRIDES, "record.checkpoint_every=1", "stages.rl.steps=300", "stages.rl.groups.width=3"]
ON_RAY = [
    "backend.name=ray",
    "backend.samplers={replicas=2, cpus=0.5}",
    "backend.trainer={cpus=0.5, restarts=1000}",
    "backend.envs={workers=2, cpus=0.5}",
]


@dataclass
class Run:
    """A run whose parts are killed, in a cluster that this process started."""

    out: Path
    nodes: Any  # Ray's Cluster
    joined: list[Any] = field(default_factory=list[Any])  # the nodes that may be killed
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        address = f"backend.address={self.nodes.address}"
        begun = (self.out / "config.toml").exists()
        anew = ["recipes/toy/train.toml", "--out", str(self.out), *WORK, *ON_RAY, address]
        what = ["--resume", str(self.out)] if begun else anew
        self.process = subprocess.Popen([*TRAIN, *what], stdout=subprocess.DEVNULL)

    def over(self) -> bool:
        """Returns whether the run has ended; raises SystemExit if it failed."""
        assert self.process is not None
        if self.process.poll():
            raise SystemExit("the run on Ray failed: see its message above")
        return self.process.returncode == 0

    def steps(self) -> str:
        return position(self.out)

    def kill(self, kind: str, draw: random.Random) -> bool:
        """Kills something of this kind; returns whether there was something."""
        if kind == "node":
            victim = draw.choice(self.joined)
            self.joined.remove(victim)
            self.nodes.remove_node(victim, allow_graceful=False)
            self.joined.append(self.nodes.add_node(**NODE))
            return True
        if kind == "driver":
            assert self.process is not None
            self.process.kill()
            self.process.wait()
            self.start()
            return True
        found = sorted(_actors(kind))
        if not found:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(found), signal.SIGKILL)
        return True


def _actors(kind: str) -> Iterator[int]:
    """Yields the processes of actors of a class, which Ray names after it, in clusters that this process started."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (entry / "cmdline").read_bytes().startswith(f"ray::{kind}".encode()) and _is_ours(int(entry.name)):
                yield int(entry.name)


def _is_ours(process: int) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def kill_all(run: Run, seed: int) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """Kills `KILLS` times; returns what was killed, after which step and when, and how long it took to the next."""
    draw, killed, took = random.Random(seed), list[dict[str, Any]](), defaultdict[str, list[float]](list)
    began = time.monotonic()
    while len(killed) < KILLS and not run.over():
        kind, until = draw.choice(KINDS), time.monotonic() + draw.uniform(*PAUSE_S)
        last = killed[-1] if killed else None
        while time.monotonic() < until and not run.over():
            time.sleep(0.05)
            if last is not None and "seconds" not in last and run.steps() != last["after"]:
                last["seconds"] = round(time.monotonic() - began - last["at"], 1)
                took[last["kind"]].append(last["seconds"])
        if not run.over() and run.kill(kind, draw):
            killed.append({"kind": kind, "after": run.steps(), "at": round(time.monotonic() - began, 1)})
            print(killed[-1], flush=True)
    return killed, took


def played(folder: Path) -> dict[int, list[list[list[int]]]]:
    """Returns the sampled tokens of each episode, turn by turn, of the groups of RL by slot."""
    found = defaultdict[int, list[list[list[int]]]](list)
    with EpisodeStore(folder) as store:
        for group in store.groups("rl"):
            turns = [turn for episode in group.episodes for one in episode.trajectories for turn in one.turns]
            found[group.slot].append([turn.sample.tokens.tolist() for turn in turns])
    return found


def measure(folder: Path, seed: int) -> dict[str, Any]:
    from ray.cluster_utils import Cluster

    whole, killed = folder / "whole", folder / "killed"
    began = time.monotonic()
    plain = [*TRAIN, "recipes/toy/train.toml", "--out", str(whole), *WORK]
    if subprocess.run(plain, stdout=subprocess.DEVNULL, check=False).returncode:
        raise SystemExit("the uninterrupted run failed: see its message above")
    alone = time.monotonic() - began
    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
    try:
        run = Run(killed, nodes, [nodes.add_node(**NODE) for _ in range(3)])
        run.start()
        began = time.monotonic()
        kills, took = kill_all(run, seed)
        assert run.process is not None
        if run.process.wait(PATIENCE_S):
            raise SystemExit("the run on Ray failed: see its message above")
        seconds = time.monotonic() - began
    finally:
        nodes.shutdown()
    one, other = weights(whole), weights(killed)
    with EpisodeStore(killed) as store:
        errors = sum(bool(row.error) for row in store.query())
    return {
        "kills": dict(Counter(kill["kind"] for kill in kills)),
        "killed": kills,
        "same_weights_bit_for_bit": one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one),
        "same_tokens": played(whole) == played(killed),
        "episodes_with_an_error": errors,
        "recorded": {"uninterrupted": recorded(whole), "killed": recorded(killed)},
        "seconds": {"uninterrupted_in_one_process": round(alone, 1), "killed": round(seconds, 1)},
        "seconds_to_next_step": {k: [statistics.median(v), max(v), len(v)] for k, v in took.items()},
    }


if __name__ == "__main__":
    os.environ |= {**SETTINGS, "RAY_AUTH_MODE": "disabled", "RAY_memory_monitor_refresh_ms": "0"}
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else int(time.time())
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/tmp") as own:
        os.environ["RAY_TMPDIR"] = own  # Ray's sockets need a short path
        figures = {"seed": seed, **measure(Path(folder), seed)}
    print(write("kills_ray", figures, "ray"), figures)
    raise SystemExit(0 if figures["same_weights_bit_for_bit"] and figures["same_tokens"] else 1)
