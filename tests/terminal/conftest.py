"""A run folder as a training leaves it, made at once: two stages, an evaluation, branches, seats, failures, images."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from sojourn.record.episodes import vocabulary
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.record.run import RunFolder
from sojourn.record.summary import summarise
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
    ToolCall,
    Trajectory,
    Turn,
    Versions,
)

CONFIG = """
name = "made"
seed = 3
[env]
name = "toy"
[[stages]]
name = "warmup"
steps = 2
losses = [{ name = "nll" }]
[[stages]]
name = "rl"
steps = 4
losses = [{ name = "ppo" }]
groups = { name = "slots", width = 2, size = 2, max_lag = 1 }
estimator = { name = "grpo" }
[model]
name = "tiny"
[record]
tags = ["baseline", "small"]
"""
PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 640, 480) + b"\0" * 976
WORDS = Vocabulary((b"<|im_start|>", b"go", b" north", b"\xe2", b"\x98", b"\x83", b"\n", b"\x1b[2J"), frozenset({0}))
TRACEBACK = "Traceback (most recent call last)\n" + "  of a library\n" * 300 + "  of your own line\nOSError: gone\n"
HOSTILE = "\x1b[31mred\x07\u202e " + "a" * 100_000


def turn(number: int, parent: int, text: str | None = "go north", tokens=(1, 2), info=None, **more) -> Turn:
    sample = Sample(np.array(tokens), np.full(len(tokens), -0.5, np.float32), Versions(3, 3), Stop.END)
    said = None if text is None else Message(Role.ASSISTANT, text, **more)
    shown = (Message(Role.USER, f"page {number}"),)
    return Turn(parent, np.array([0, 6]), sample, said, info=info or {}, observed=shown)


def seat(name: str, trainable: bool, *said: tuple[int, str]) -> Trajectory:
    """What a seat said in which of the play's moves."""
    turns = [turn(n, n - 1, text, info={"move": float(move)}) for n, (move, text) in enumerate(said)]
    return Trajectory(name, tuple(turns), Ending.DONE, trainable)


def episode(name: str, trajectories, seed: int = 1, error: str | None = None, traceback: str | None = None) -> Episode:
    task = Task("toy", {"rooms": 2}, seed, "train", ("easy",))
    return Episode(name, task, tuple(trajectories), error, 1.5, traceback=traceback)


def line_of(turns: int, won: bool) -> Trajectory:
    info = {"success": float(won)}
    return Trajectory("agent", tuple(turn(n, n - 1, info=info) for n in range(turns)), Ending.DONE)


def special(digest: str) -> list[Episode]:
    """A forest with a call, a thought and an image; two seats; hostile text; what could not be read; a failure."""
    forest = [turn(0, -1), turn(1, 0), turn(2, 1), turn(3, 0), turn(4, -1)]
    call = (ToolCall("look", {"at": "door", "n": 2}, "c1"),)
    forest[1] = turn(1, 0, "see", thought="a door perhaps", calls=call, images=(digest, "f" * 64))
    white = seat("white", True, (0, "white opens"), (3, "white ends"))
    black = seat("black", False, (1, "black one"), (2, "black two"))
    hostile = Trajectory("agent", (turn(0, -1, HOSTILE), turn(1, 0, None, (1, 7, 3, 4, 5))), Ending.MALFORMED)
    return [
        episode("rl/0/0/forest", [Trajectory("agent", tuple(forest), Ending.DONE)]),
        episode("rl/0/0/seats", [white, black]),
        episode("rl/0/0/hostile", [hostile]),
        episode("rl/0/0/failed", [], error="the server is gone\x1b[2J", traceback=TRACEBACK),
    ]


def add(store: EpisodeStore, stage: str, step: int, groups: list[Group]) -> list[list[Score]]:
    """Records groups whose episodes earn 0, 1, 0, ... with the advantages that follow."""
    scores = [
        [Score(np.eye(1, len(t.turns), len(t.turns) - 1, dtype=np.float32)[0] * (n % 2), {"native": float(n % 2)},
               {"judge": f"I saw {n % 2} of it"})
         for n, t in enumerate(group.trajectories)]
        for group in groups
    ]  # fmt: skip
    credits = [[Credit.uniform(t, n % 2 - 0.5) for n, t in enumerate(group.trajectories)] for group in groups]
    store.append(stage, step, groups, scores, credits)
    return scores


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make(tmp_path / "runs" / "made-1")


def make(path: Path, config: str = CONFIG, stages: int = 2) -> Path:
    with RunFolder.create(path, config, seeds={"run": 3}) as folder, EpisodeStore(path, write=True) as store:
        digest = folder.blobs.put(PNG)
        vocabulary.write(path, WORDS)
        played = special(digest)
        first = Group(0, played[0].task, tuple(played))
        lines = []
        for step in range(4):
            members = tuple(episode(f"rl/{step}/1/{n}", [line_of(2, bool(n))], 100 + step) for n in range(2))
            groups = [*([first] if step == 0 else []), Group(2 * step + 1, members[0].task, members)]
            scores = add(store, "rl", step, groups)
            values = {
                "success": 0.25 * step,
                "reward": 0.1 * step,
                "episodes": 8.0,
                "version": 4.0 + step,
                "kl": 2.91e-4,
            }
            values |= {"seconds_step": 2.0, "seconds_sample": 1.0, "seconds_train": 0.8, "sampled_tokens": 40.0}
            lines.append({"step": step, "stage": "rl", **values, "kl": 2.91e-4, "lag_mean": 0.5, "errors": 1.0})
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for name in ("before", "warmup", "rl")[: 1 + stages]:
            folder.add_evaluation(name, name, 4, summarise(groups, scores))
    return path


def printed(renderable, width: int) -> str:
    """What a file gets, after a check that no line is wider and that nothing a terminal obeys is left."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(cell_len, text.splitlines()), default=0) <= width
    assert all(character == "\n" or character.isprintable() for character in text)
    return text
