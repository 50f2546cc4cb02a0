"""Makes the pictures of docs/viewer.md and the README: trains a small model, plays some screens, looks with Chromium.

    python docs/screenshots.py [--keep FOLDER]

Two minutes on two cores. With --keep the runs stay in FOLDER, and are used again from there.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.types import (
    Credit,
    Ending,
    Episode,
    Group,
    Message,
    Role,
    Sample,
    Score,
    Stop,
    Task,
    Trajectory,
    Turn,
    Versions,
)
from sojourn_worlds.grounding import Grounding

ROOT = Path(__file__).parent.parent
IMAGES = Path(__file__).parent / "images"
TRAINED, SEEN = "treasure", "screens"
TRAINING = ["stages.0.steps=120", "stages.1.steps=12", "stages.1.groups.width=6", "evaluation.tasks=48",
            "evaluation.every=60"]  # fmt: skip


def train(folder: Path) -> None:
    command = [sys.executable, "-m", "sojourn", "train", str(ROOT / "recipes/toy/train.toml"), *TRAINING]
    subprocess.run([*command, "--out", str(folder)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


async def screens(folder: Path) -> None:
    """Some episodes of `grounding`: its expert, and one who points beside."""
    family, numbers = Grounding(sources=("drawn", "shop"), observation="screenshot"), random.Random(0)
    await family.open()
    try:
        with RunFolder.create(folder, 'name = "screens"\n') as run, EpisodeStore(folder, write=True) as store:
            groups = [
                await _screen(run, family, task, slot, numbers) for slot, task in enumerate(family.tasks("test")[:4])
            ]
            scores = [[Score(np.array([t.reward], np.float32)) for t in g.trajectories] for g in groups]
            means = [sum(score.total for score in of) / len(of) for of in scores]
            credits = [
                [Credit.uniform(t, score.total - mean) for t, score in zip(g.trajectories, of, strict=True)]
                for g, of, mean in zip(groups, scores, means, strict=True)
            ]
            store.append("rl", 0, groups, scores, credits)
    finally:
        await family.close()


async def _screen(run: RunFolder, family: Grounding, task: Task, slot: int, numbers: random.Random) -> Group:
    episodes: list[Episode] = []
    for play in range(3):
        env = family.make(task)
        seen = await env.start()
        run.blobs.keep(env.blobs)
        said = env.expert() if play else f"click({numbers.randrange(20, 400)}, {numbers.randrange(20, 300)})"
        step = await env.step(seen.agent, Message(Role.ASSISTANT, said))
        sample = Sample(np.arange(9), np.full(9, -0.1, np.float32), Versions(0, 0), Stop.END, 1.0)
        info = {"success": float(bool(step.success))}
        reward = float(step.rewards[seen.agent])
        turn = Turn(
            -1,
            np.arange(9),
            sample,
            Message(Role.ASSISTANT, said),
            reward,
            info,
            observed=(*seen.system, *seen.messages),
        )
        episodes.append(Episode(f"rl/{slot}/{play}", task, (Trajectory("agent", (turn,), Ending.DONE),), None, 1.0))
        await env.close()
    return Group(slot, task, tuple(episodes))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a viewer of the runs in a folder."""
    command = [sys.executable, "-m", "sojourn", "view", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().split()[2].rstrip("/")
    finally:
        server.terminate()
        server.wait()


def look(page: Page, address: str, run: Path) -> None:
    """One picture after another."""
    with EpisodeStore(run) as store:
        groups = [
            (count.step, place) for count in store.steps() if count.stage == "rl" for place in range(count.groups)
        ]
        step, place = max(groups, key=lambda at: (_spread(store, *at), at))
        won = next(e for e in store.query(stage="rl", step=step) if e.place == place and e.success and e.turns > 2)
    _shoot(page, f"{address}/runs/{TRAINED}", "run", 760)
    _shoot(page, f"{address}/runs/{TRAINED}/groups/rl/{step}/{place}", "group", 520)
    _shoot(page, f"{address}/runs/{TRAINED}/episodes/{won.id}?tokens=logprob", "episode", 760)
    _shoot(page, f"{address}/runs/{TRAINED}/changes?a=before&b=rl", "panels", 420)
    _shoot(page, f"{address}/runs/{TRAINED}/find?q=treasure+success:yes+turns:>3", "find", 420)
    _shoot(page, f"{address}/runs/{SEEN}/episodes/rl/0/1", "screen", 620)
    page.emulate_media(color_scheme="dark")
    _shoot(page, f"{address}/runs/{TRAINED}/steps/rl/{step}", "step-dark", 420)


def _spread(store: EpisodeStore, step: int, place: int) -> int:
    """Returns how much the episodes of a group show where they part: their turns, if some were won and some lost."""
    entries = [entry for entry in store.query(stage="rl", step=step) if entry.place == place]
    longest = max(entry.turns for entry in entries)
    return longest if len({entry.success for entry in entries}) > 1 and longest <= 9 else 0


def _shoot(page: Page, address: str, name: str, height: int) -> None:
    page.set_viewport_size({"width": 1120, "height": height})
    page.goto(address)
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    options = argparse.ArgumentParser(description="Makes the pictures of the docs.")
    options.add_argument("--keep", type=Path, help="where the runs stay")
    kept = options.parse_args().keep
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = kept or Path(made)
        if not (folder / TRAINED).exists():
            train(folder / TRAINED)
        if not (folder / SEEN).exists():
            asyncio.run(screens(folder / SEEN))
        shoot(folder)


def shoot(folder: Path) -> None:
    """All pictures, of the runs in a folder."""
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        with served(folder) as address:
            look(browser.new_page(color_scheme="light"), address, folder / TRAINED)
        browser.close()


if __name__ == "__main__":
    main()
