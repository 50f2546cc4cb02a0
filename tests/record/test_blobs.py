"""Images that worlds show are kept in the run folder, once, before the episodes that name them are recorded."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sojourn.config import toml
from sojourn.display import Display
from sojourn.errors import InfrastructureError, RecordError
from sojourn.record.blobs import Blobs
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.render.chatml import ChatML
from sojourn.render.turns import Turns
from sojourn.tasks import Generated
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe
from sojourn.types import Message, Observation, Role, Step, Task

EVERYWHERE = b"shown in every episode"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Two turns: an image that every episode shows, then one of the task's own. `wrong` misnames the second.

    `broken` fails at the second turn of every first play of a task, so that every episode is played twice.
    """

    pictures: bool = True
    wrong: bool = False
    broken: bool = False
    failed: set[int] = field(default_factory=set, init=False, compare=False)

    def tasks(self, split: str):
        first = 0 if split == "train" else 100
        return Generated(lambda index: Task("gallery", {}, first + index, split), 50)

    def make(self, task: Task):
        return Room(self, task) if self.pictures else Bare(self, task)


@dataclass
class Bare:
    """A room without pictures, and without `blobs`."""

    family: Gallery
    task: Task
    turn: int = 0

    async def start(self) -> Observation:
        return Observation((self.show(EVERYWHERE),))

    async def step(self, agent: str, action: Message) -> Step:
        self.turn += 1
        if self.turn == 1 and self.family.broken and self.task.seed not in self.family.failed:
            self.family.failed.add(self.task.seed)
            raise InfrastructureError("the light went out")
        if self.turn == 2:
            return Step(None, {agent: 1.0}, done=True)
        return Step(Observation((self.show(f"picture {self.task.seed}".encode()),)))

    async def close(self) -> None: ...

    def expert(self) -> str:
        return "yes"

    def show(self, data: bytes) -> Message:
        return Message(Role.USER, "none")


@dataclass
class Room(Bare):
    blobs: dict[str, bytes] = field(default_factory=dict)

    def show(self, data: bytes) -> Message:
        name = digest(data + b"!" * (self.family.wrong and self.turn > 0))
        self.blobs[name] = data
        return Message(Role.USER, images=(name,))


class Captions(Turns):
    """ChatML for a model that cannot see: it is told that there is an image."""

    def _body(self, message: Message, tools: Any):
        return super()._body(replace(message, text=message.text or "image", images=()), tools)


@dataclass(frozen=True, kw_only=True)
class Blind:
    def bind(self, tokenizer: Any, template: str = "") -> Captions:
        bound = ChatML().bind(tokenizer)
        return Captions(bound.marks, bound.codec, bound.stops)


RECIPE = f"""
name = "gallery"
model = {{ name = "tiny:layers=1,hidden=64", dtype = "fp32" }}
env.name = "{__name__}:Gallery"
renderer = {{ name = "{__name__}:Blind" }}
sampling = {{ max_tokens = 2 }}
evaluation = {{ tasks = 2 }}
[[stages]]
name = "warmup"
steps = 2
groups = {{ name = "experts", width = 2, distinct_tasks = 2 }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
[[stages]]
name = "rl"
steps = 2
groups = {{ name = "slots", width = 2, size = 2, max_lag = 1, zero_signal = "drop" }}
losses = [{{ name = "ppo" }}]
"""


def run(folder: Path, *overrides: str) -> RunFolder:
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    resolved = resolve(toml.read(path, overrides))
    with RunFolder.create(folder / "run", toml.dump(resolved.table)) as made, Display(live=False) as display:
        asyncio.run(run_recipe(resolved.recipe, made, display))
    return RunFolder.read(folder / "run")


def named(folder: RunFolder) -> set[str]:
    """Every image that a recorded turn names."""
    with EpisodeStore(folder.path) as store:
        turns = [
            turn
            for entry in store.query()
            for trajectory in store.read(entry).episode.trajectories
            for turn in trajectory.turns
        ]
    shown = {image for turn in turns for message in turn.observed for image in message.images}
    assert not any(turn.images for turn in turns)  # the format shows the model none of them
    return shown


def kept(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.blobs.folder.iterdir())


def test_every_image_of_a_run_is_kept_once_evaluations_and_dropped_groups_included(tmp_path: Path):
    folder = run(tmp_path)
    pictures = [EVERYWHERE, *(f"picture {seed}".encode() for seed in (0, 1, 2, 3, 4, 5, 100, 101))]
    assert kept(folder) == sorted(map(digest, pictures))
    assert named(folder) == set(kept(folder))
    assert [folder.blobs.get(digest(data)) for data in pictures] == pictures


def test_a_world_without_images_leaves_nothing(tmp_path: Path):
    folder = run(tmp_path, "env.pictures=false")
    assert named(folder) == set()
    assert kept(folder) == []


def test_a_play_that_failed_and_was_tried_again_changes_nothing(tmp_path: Path):
    folder = run(tmp_path, "env.broken=true")
    assert named(folder) == set(kept(folder))
    assert len(kept(folder)) == 9
    with EpisodeStore(folder.path) as store:
        assert list(store.query(failed=True)) == []


def test_a_misnamed_image_stops_the_run_before_an_episode_names_it(tmp_path: Path):
    with pytest.raises(RecordError, match=r"the world names a blob of 11 bytes '[0-9a-f]{64}', but its SHA-256 is"):
        run(tmp_path, "env.wrong=true")
    assert named(RunFolder.read(tmp_path / "run")) == set()


def test_keeping_what_is_kept_already_writes_nothing(tmp_path: Path):
    blobs = Blobs(tmp_path / "blobs")
    blobs.keep({})
    assert not blobs.folder.exists()
    pictures = {digest(data): data for data in (b"one", b"two")}
    blobs.keep(pictures)
    before = {path: path.stat().st_mtime_ns for path in blobs.folder.iterdir()}
    blobs.keep(dict(reversed(pictures.items())))
    assert {path: path.stat().st_mtime_ns for path in blobs.folder.iterdir()} == before
    assert [blobs.get(name) for name in pictures] == [b"one", b"two"]
    with pytest.raises(RecordError, match=r"'first\.png', but its SHA-256 is"):
        blobs.keep({"first.png": b"three"})
    assert len(list(blobs.folder.iterdir())) == 2
