"""What a run closes when it fails, and which failures a step counts as its own."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sojourn.config import toml
from sojourn.display import Display
from sojourn.envs.toy import Toy
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.streams.ref_logprobs import RefLogprobs
from sojourn.train.recipe import Recipe
from sojourn.train.resolve import resolve
from sojourn.train.run import run_recipe

RECIPE = """
name = "parts"
model = { name = "tiny:layers=1,hidden=64", dtype = "fp32" }
env = { name = "toy", rooms = 2 }
sampling = { max_tokens = 4 }
rollout = { retries = 0, limits = { turns = 2 } }
evaluation = { tasks = 4 }
[[stages]]
name = "rl"
steps = 2
groups = { name = "slots", width = 2, size = 2 }
losses = [{ name = "ppo" }]
"""


class BrokenError(Exception): ...


@dataclass
class Closed:
    """Counts how often it was closed."""

    times: int = 0

    def bind(self, folder: Path, config: Any) -> "Closed":
        return self

    def write(self, step: int, stage: str, values: Any) -> None: ...

    def close(self) -> None:
        self.times += 1


class BrokenSink:
    def bind(self, folder: Path, config: Any) -> Any:
        raise BrokenError


@dataclass
class BrokenStream:
    closed: list[str]

    provides = "broken"
    reference = False

    async def __call__(self, context: Any) -> Any:
        raise BrokenError

    def close(self) -> None:
        self.closed.append("stream")

    def __deepcopy__(self, memo: Any) -> "BrokenStream":
        return self


@dataclass(frozen=True)
class FailingTests:
    """The toy world, whose tasks of the split "test" cannot be entered."""

    toy: Toy

    def tasks(self, split: str) -> Any:
        return self.toy.tasks(split)

    def make(self, task: Any) -> Any:
        if task.split == "test" and task.id == self.toy.tasks("test")[0].id:
            raise BrokenError
        return self.toy.make(task)


def recipe(folder: Path) -> Recipe:
    (folder / "recipe.toml").write_text(RECIPE)
    return resolve(toml.read(folder / "recipe.toml", ())).recipe


def run(recipe: Recipe, path: Path) -> Path:
    with RunFolder.create(path, (path.parent / "recipe.toml").read_text()) as folder, Display(live=False) as display:
        asyncio.run(run_recipe(recipe, folder, display))
    return path


def test_sinks_are_closed_where_a_later_one_cannot_be_opened(tmp_path: Path) -> None:
    made, sink = recipe(tmp_path), Closed()
    made = replace(made, record=replace(made.record, sinks=(sink, BrokenSink())))
    with pytest.raises(BrokenError):
        run(made, tmp_path / "run")
    assert sink.times == 1


def test_streams_are_closed_where_a_step_fails(tmp_path: Path) -> None:
    made, stream = recipe(tmp_path), BrokenStream([])
    with pytest.raises(BrokenError):
        run(replace(made, stages=(replace(made.stages[0], streams=(stream,)),)), tmp_path / "run")
    assert stream.closed == ["stream"]


def test_a_stream_that_is_only_recorded_may_read_the_reference_weights(tmp_path: Path) -> None:
    made = recipe(tmp_path)
    made = replace(made, record=replace(made.record, streams=(RefLogprobs(),)))
    path = run(made, tmp_path / "run")
    with EpisodeStore(path) as store:
        assert all("ref_logprobs" in store.record(row.id).streams for row in store.query(stage="rl"))


def test_a_step_does_not_count_the_failures_of_an_evaluation(tmp_path: Path) -> None:
    made = recipe(tmp_path)
    path = run(replace(made, env=FailingTests(made.env)), tmp_path / "run")
    with RunFolder.open(path) as folder:
        assert [e["summary"]["errors"] for e in folder.evaluations()] == [1, 1]
    assert [line.values["errors"] for line in metrics.read(path / "metrics.jsonl")] == [0, 0]
