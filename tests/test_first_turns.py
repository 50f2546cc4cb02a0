"""What the first turn of a world would tell is told before the run begins: by `--dry`, and by `train` at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from made import chatml
from made_world import Odd, Play
from spawned import sojourn

from sojourn.config import toml
from sojourn.errors import ConfigError
from sojourn.train.group_checks import check_groups
from sojourn.train.resolve import resolve
from sojourn.types import Message, Observation, Role, Task

RECIPE = """
name = "t"
model = {{ name = "tiny:layers=1,hidden=64", dtype = "fp32" }}
env = {{ name = "{world}" }}
evaluation = {{ tasks = 2 }}
[[stages]]
name = "warmup"
steps = 1
groups = {{ name = "experts", width = 2 }}
estimator = {{ name = "constant" }}
losses = [{{ name = "nll" }}]
"""
LIVE = "stages.warmup.groups={name='slots',width=1,size=2}"
CHOOSES = "agent={name='plain',choices=true}"
TOLD = f"agent={{name='instructed',text='Press.',base={CHOOSES.removeprefix('agent=')}}}"
LONG = "press(" + " + ".join(["1"] * 40) + ")"


class Silent:
    """Press a button."""

    tasks: ClassVar = {"train": [{"wanted": n} for n in range(4)], "test": [{"wanted": 9}]}

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.pressed: int | None = None

    def press(self, button: int) -> None:
        self.pressed = button

    def reward(self) -> float | None:
        return None if self.pressed is None else float(self.pressed == self.wanted)

    def expert(self) -> str:
        return f"press({self.wanted})"


class Listing(Silent):
    def choices(self) -> list[str]:
        return ["press(1)", "press(2)"]


class ListingLater(Silent):
    """Press a button, twice."""

    def choices(self) -> list[str]:
        return [] if self.pressed is None else ["press(1)"]

    def press(self, button: int) -> None:
        self.pressed, self.before = button, self.pressed

    def reward(self) -> float | None:
        return None if self.pressed is None or self.before is None else 1.0


class SilentWithoutExpert(Silent):
    expert: ClassVar = None


class Wordy(Silent):
    def expert(self) -> str:
        return LONG


class Talkative(Silent):
    def goal(self) -> str:
        return "Press the button. " * 200


class Failing(Silent):
    def goal(self) -> str:
        raise RuntimeError("not yet")


@dataclass(frozen=True, kw_only=True)
class Pictures(Odd):
    """Has a page that is shown as an image, after one that is not."""

    def tasks(self, split: str) -> list[Task]:
        return [Task("pictures", {}, 0, split, ("text",)), Task("pictures", {}, 1, split, ("seen",))]

    def make(self, task: Task) -> Play:
        return Picture(self, 1.0) if task.tags == ("seen",) else super().make(task)


class Picture(Play):
    async def start(self) -> Observation:
        return Observation((Message(Role.USER, "Look.", images=("0" * 64,)),))

    def expert(self) -> str:
        return "yes"


def check(folder: Path, world: str, *overrides: str, max_context: int = 1024) -> Mapping[str, int]:
    (folder / "recipe.toml").write_text(RECIPE.format(world=f"{__name__}:{world}"))
    recipe = resolve(toml.read(folder / "recipe.toml", overrides)).recipe
    return asyncio.run(check_groups(recipe, chatml(), max_context))


@pytest.mark.parametrize(
    ("world", "overrides", "said"),
    [
        (
            "Silent",
            [CHOOSES],
            r"agent.choices = true, but the world '.*:Silent' lists no choices in the first turns of its",
        ),
        (
            "Silent",
            [TOLD],
            r"agent.choices = true, but the world '.*:Silent' lists no choices in the first turns of its",
        ),
        ("Wordy", [], r"the world '.*:Wordy': the expert's action has \d+ tokens, 'press\(1 .*raise sampling.max_tok"),
        ("Talkative", [LIVE], r"'.*:Talkative': the prompt has \d+ tokens, a context at most 1024: .*shorten what"),
        (
            "Pictures",
            [LIVE],
            r"the world 'pictures' for its tasks 'seen': a user message shows 1 images, but this chat",
        ),
    ],
)
def test_what_cannot_go_together_is_refused(tmp_path: Path, world: str, overrides: list[str], said: str):
    with pytest.raises(ConfigError, match=said):
        check(tmp_path, world, *overrides)


def test_what_can_go_together_is_not(tmp_path: Path):
    check(tmp_path, "Silent")
    check(tmp_path, "Listing", CHOOSES)
    check(tmp_path, "Listing", TOLD)
    check(tmp_path, "ListingLater", CHOOSES)
    check(tmp_path, "SilentWithoutExpert", CHOOSES, LIVE)  # it may list some later
    check(tmp_path, "Wordy", LIVE)
    check(tmp_path, "Talkative", LIVE, max_context=8192)
    check(tmp_path, "Failing", LIVE)  # its first episode tells, with what was played of it


@pytest.mark.parametrize("words", [["--dry"], ["--out", "run"]])
def test_it_is_one_sentence_before_anything_is_played(tmp_path: Path, words: list[str]):
    lines = Path(__file__).read_text().partition("class Silent:")[2].partition("class Listing")[0]
    (tmp_path / "mine.py").write_text(f"from typing import ClassVar\n\nclass Silent:{lines}")
    (tmp_path / "r.toml").write_text(RECIPE.format(world="mine:Silent"))
    done = sojourn(tmp_path, "train", "r.toml", CHOOSES, *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "the world 'mine:Silent' lists no choices" in done.stderr
    assert "evaluation before" not in done.stdout
    assert not (tmp_path / "run").exists()


class TwoKinds(Odd):
    def tasks(self, split: str) -> list[Task]:
        return [Task("odd", {}, seed, split, (kind,)) for seed, kind in ((1, "plain"), (2, "more"))]


def test_the_length_of_the_first_prompts_is_known_by_kind(tmp_path: Path):
    shown = (Message(Role.SYSTEM, "Play."), Message(Role.USER, "Say yes."))
    expected = len(chatml().open(shown, ()).tokens)
    found = check(tmp_path, "TwoKinds")
    assert found == {f"the world 'odd' for its tasks '{kind}'": expected for kind in ("plain", "more")}
