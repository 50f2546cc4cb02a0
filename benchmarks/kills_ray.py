"""SIGKILLs at random moments of every process of a run on Ray: what is lost or trained twice, and how soon it goes on.

    python benchmarks/kills_ray.py [--kills 20] [--seed 0] [--folder FOLDER]

A small toy run of backend `ray` (fp32, two samplers, two environment workers, one trainer rank, a checkpoint after each
step) is driven by a process of its own, on a Ray cluster of three nodes on this machine: the head, and two more, each
with room for most actors. As often as is said, a process is killed by SIGKILL: a sampler, the trainer's rank, an
environment worker, a node (all its processes; another one is added in its place), or the driver, which is then started
anew with `--resume`. The order and the moments are drawn from the seed: after a kill the run must come further than it
was, and then some seconds pass, up to `PAUSE_S`. Then it may finish.

Its weights are compared bit for bit with those of the same run in one process that nobody disturbed, and so are all
episodes of RL, token by token; slots are counted. A kill that the run has not come further after within `WITHIN_S` ends
the benchmark with a failure. Where the driver ends by itself, it is resumed, too, which is counted (`ended_by_itself`).
What was done is kept in the folder: the same command goes on there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from machine import write
from safetensors.numpy import load_file

from sojourn.backends.ray.cluster import SETTINGS, SLOW_START
from sojourn.record import checkpoint, metrics
from sojourn.record.episodes.store import EpisodeStore

WITHIN_S, PAUSE_S = 600.0, 8.0
ACTORS = {"sampler": "SamplerActor", "rank": "TrainerRank", "worker": "EnvWorker"}
KINDS = (*ACTORS, "node", "driver")
NODE = {"num_cpus": 2, "object_store_memory": 100_000_000}
HEAD = {**NODE, "num_cpus": 1, "include_dashboard": False}
STEPS_PER_KILL = 10
TOY = [
    "model.name=tiny:layers=1,hidden=64",
    "backend.threads=1",
    "backend.max_context=1024",
    "backend.memory_gb=0.05",
    "evaluation.tasks=8",
    "evaluation.every=0",
    "record.checkpoint_every=1",
    "stages.warmup.steps=3",
    "stages.warmup.groups.distinct_tasks=64",
    "stages.rl.groups.width=4",
    "stages.rl.groups.size=4",
]
RAY = [
    "backend.name=ray",
    "backend.samplers={replicas=2,cpus=0.5}",
    "backend.trainer={cpus=0.5,restarts=1000}",
    "backend.envs={workers=2,cpus=0.5}",
]
TRAIN = [sys.executable, "-m", "sojourn", "train"]


# -- processes


def parent_and_start(process: int) -> tuple[int, int]:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(words[1]), int(words[19])


def descends_from_this(process: int) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = parent_and_start(process)[0]
    return False


def actors(kind: str) -> list[int]:
    """Returns the processes of actors of a class, which Ray names after it."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (entry / "cmdline").read_bytes().startswith(f"ray::{kind}".encode()) and descends_from_this(
                int(entry.name)
            ):
                found.append(int(entry.name))
    return sorted(found)


# -- the run


def progress(out: Path) -> tuple[int, int]:
    """Returns how far a run has come: its stage, and the steps of that which are recorded."""
    path = out / "metrics.jsonl"
    lines = list(metrics.read(path)) if path.exists() else []
    return (["warmup", "rl"].index(lines[-1].stage), lines[-1].step + 1) if lines else (0, 0)


class Run:
    """A run on a cluster that loses its nodes, and whose driver is started anew whenever it ends."""

    def __init__(self, out: Path, steps: int) -> None:
        from ray.cluster_utils import Cluster

        self.out, self._steps = out, steps
        self._nodes: Any = Cluster(initialize_head=True, head_node_args=HEAD)
        self._others = [self._add(), self._add()]
        self.ended_by_itself: list[str] = []
        self._driver = self._start()

    def _add(self, attempts: int = 5) -> Any:
        """Adds a node, again where Ray has not waited long enough for it on a busy machine."""
        try:
            return self._nodes.add_node(**NODE)
        except Exception as error:  # Ray has no kind for it
            if attempts == 1 or SLOW_START not in str(error):
                raise
            return self._add(attempts - 1)

    def _start(self) -> subprocess.Popen[bytes]:
        where = f"backend.address={self._nodes.address}"
        command = [*TRAIN, "recipes/toy/train.toml", "--out", str(self.out), *TOY, *RAY, self._length, where]
        if (self.out / "config.toml").exists():
            command = [*TRAIN, "--resume", str(self.out), where]
        self._log = self.out.with_suffix(".log").open("ab")
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)

    @property
    def _length(self) -> str:
        return f"stages.rl.steps={self._steps}"

    def done(self) -> bool:
        """Returns whether the run has ended well. A driver that failed is started anew."""
        code = self._driver.poll()
        if code is None or code == 0:
            return code == 0
        lines = self.out.with_suffix(".log").read_text(errors="replace").strip().splitlines()
        self.ended_by_itself.append(lines[-1][:300] if lines else f"exit code {code}")
        if len(self.ended_by_itself) > 20:
            raise SystemExit(f"the run failed again and again: {self.ended_by_itself[-1]}")
        self._driver = self._start()
        return False

    def kill(self, kind: str, rng: random.Random) -> bool:
        """Kills a process of a kind; returns whether there was one."""
        if kind == "driver":
            self._driver.send_signal(signal.SIGKILL)
            self._driver.wait()
            self._driver = self._start()
            return True
        if kind == "node":
            at = rng.randrange(len(self._others))
            self._nodes.remove_node(self._others[at], allow_graceful=False)
            self._others[at] = self._add()
            return True
        with contextlib.suppress(ProcessLookupError):
            if found := actors(ACTORS[kind]):
                os.kill(rng.choice(found), signal.SIGKILL)
                return True
        return False

    def close(self) -> None:
        if self._driver.poll() is None:
            self._driver.kill()
            self._driver.wait()
        self._log.close()
        self._nodes.shutdown()


def further(run: Run, than: tuple[int, int]) -> bool:
    """Waits until a run has come further, or has ended, which it then returns."""
    deadline = time.monotonic() + WITHIN_S
    while progress(run.out) <= than:
        if run.done():
            return True
        if time.monotonic() > deadline:
            raise SystemExit(f"the run came no further than {than} within {WITHIN_S:g} s: see {run.out}.log")
        time.sleep(0.1)
    return run.done()


def schedule(kills: int, seed: int) -> list[str]:
    """Returns which process is killed, in order: each kind equally often, as far as that goes."""
    kinds = [KINDS[n % len(KINDS)] for n in range(kills)]
    random.Random(seed).shuffle(kinds)
    return kinds


def disturb(run: Run, kinds: list[str], seed: int, noted: Path) -> Iterator[None]:
    """Kills in the order of `kinds`, and notes each kill with the seconds until the run had come further."""
    done: list[dict[str, Any]] = json.loads(noted.read_text()) if noted.exists() else []
    for number, kind in list(enumerate(kinds))[len(done) :]:
        rng = random.Random(f"{seed}/{number}")
        if further(run, (0, 0) if not done else tuple(done[-1]["at"])):
            return
        time.sleep(rng.uniform(0, PAUSE_S))
        while not run.kill(kind, rng):
            time.sleep(0.1)  # it is being started anew
            if run.done():
                return
        at, began = progress(run.out), time.monotonic()
        ended = further(run, at)
        done.append({"kind": kind, "at": list(at), "seconds": round(time.monotonic() - began, 1)})
        print(done[-1], flush=True)
        noted.write_text(json.dumps(done))
        if ended:
            return
        yield


# -- what became of it


def weights(out: Path) -> dict[str, np.ndarray]:
    found = checkpoint.latest(out / "checkpoints")
    assert found is not None
    return load_file(found.weights / "weights.safetensors")


def recorded(out: Path) -> dict[str, Any]:
    """Returns what a run recorded of RL: how many groups, slots and episodes, how many failed, and all sampled
    tokens."""
    with EpisodeStore(out) as store:
        groups = list(store.groups("rl"))
    episodes = [episode for group in groups for episode in group.episodes]
    tokens = [[turn.sample.tokens.tolist() for t in episode.trajectories for turn in t.turns] for episode in episodes]
    return {
        "groups": len(groups),
        "slots": len({group.slot for group in groups}),
        "episodes": len(episodes),
        "distinct_episodes": len({episode.id for episode in episodes}),
        "failed": sum(episode.error is not None for episode in episodes),
        "tokens": tokens,
    }


def measure(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    whole, killed, steps = folder / "whole", folder / "killed", STEPS_PER_KILL * kills
    while not (whole / "done").exists():
        start = ["--resume", str(whole)] if (whole / "config.toml").exists() else None
        new = ["recipes/toy/train.toml", "--out", str(whole), *TOY, f"stages.rl.steps={steps}"]
        subprocess.run([*TRAIN, *(start or new)], stdout=subprocess.DEVNULL, check=True)
        (whole / "done").touch()
    run, noted = Run(killed, steps), folder / "kills.json"
    try:
        for _ in disturb(run, schedule(kills, seed), seed, noted):
            pass
        while not run.done():
            time.sleep(0.2)
    finally:
        run.close()
    done = json.loads(noted.read_text())
    one, other = weights(whole), weights(killed)
    plain, found = recorded(whole), recorded(killed)
    same_tokens = plain.pop("tokens") == found.pop("tokens")
    seconds = {kind: [one["seconds"] for one in done if one["kind"] == kind] for kind in KINDS}
    return {
        "kills": len(done),
        "killed": done,
        "seconds_until_further": {
            kind: {"median": statistics.median(s), "most": max(s)} for kind, s in seconds.items() if s
        },
        "ended_by_itself": run.ended_by_itself,
        "same_weights_bit_for_bit": one.keys() == other.keys()
        and all(np.array_equal(one[name], other[name]) for name in one),
        "same_tokens": same_tokens,
        "recorded": {"uninterrupted": plain, "killed": found},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to work, and to go on (default: a new temporary folder)")
    given = parser.parse_args()
    own = tempfile.mkdtemp(dir="/tmp")  # Ray's sockets need a short path
    os.environ |= {**SETTINGS, "RAY_AUTH_MODE": "disabled", "RAY_memory_monitor_refresh_ms": "0", "RAY_TMPDIR": own}
    folder = given.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    figures = {"seed": given.seed, **measure(folder, given.kills, given.seed)}
    print(write("kills_ray", figures, "ray"), figures)
    whole = (
        figures["same_weights_bit_for_bit"] and figures["same_tokens"] and not figures["recorded"]["killed"]["failed"]
    )
    raise SystemExit(0 if whole else 1)


if __name__ == "__main__":
    main()
