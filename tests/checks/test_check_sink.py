"""Our sink keeps its promises; every broken one here breaks one, and that one is reported."""

import asyncio
import sys
import threading
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from sojourn.checks.report import Outcome
from sojourn.checks.sink import PROMISES, check_sink
from sojourn.errors import MissingExtraError
from sojourn.record.metrics import TensorBoard, Wandb


def checked(config):
    return asyncio.run(check_sink(config))


def test_ours_keeps_every_promise():
    report = checked(TensorBoard())
    assert [v.outcome for v in report.verdicts] == [Outcome.PASSED] * len(PROMISES), report.verdicts


@pytest.mark.parametrize("package", ["wandb"])
def test_a_missing_package_is_said_before_anything_is_judged(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match="needs wandb, which is not installed"):
        checked(Wandb())


class Text:
    """Writes a line of text for each step; the broken ones change one thing."""

    mode = "a"

    def __init__(self, folder, config):
        self.folder = folder
        self.file = (folder / "steps.txt").open(self.mode)

    def write(self, step, stage, values):
        print(stage, step, *values.values(), file=self.file, flush=True)

    def close(self):
        self.file.close()


class NoClose:
    def __init__(self, folder, config):
        self.write = print


class Waits(Text):
    """Expects that something is written before it is closed."""

    def write(self, step, stage, values):
        self.written = True

    def close(self):
        super().close()
        assert self.written


class Picks(Text):
    """Needs a number that not every step has."""

    def write(self, step, stage, values):
        super().write(step, stage, {"reward": values["reward"]})


class Rounds(Text):
    """Needs numbers that are finite."""

    def write(self, step, stage, values):
        super().write(step, stage, {name: round(value) for name, value in values.items()})


class Takes(Text):
    def write(self, step, stage, values):
        super().write(step, stage, values)
        values.pop("loss", None)


class Renames(Text):
    def __init__(self, folder, config):
        super().__init__(folder, config)
        config["model"]["name"] = "mine"


class Overwrites(Text):
    def close(self):
        super().close()
        (self.folder / "metrics.jsonl").write_text("")


class Erases(Text):
    mode = "w"


class Once(Text):
    mode = "x"  # refuses a file that is there


class LeavesOpen(Text):
    left: ClassVar[list] = []

    def close(self):
        self.left.append(self.file)


class LeavesThread(Text):
    stopped = threading.Event()

    def close(self):
        super().close()
        threading.Thread(target=self.stopped.wait, name="sender", daemon=True).start()


@dataclass(frozen=True)
class Config:
    cls: type = Text
    keys: dict = field(default_factory=dict)

    def bind(self, folder, config):
        return self.cls(folder, config)


def test_a_sound_one_of_ones_own_passes():
    assert [v.outcome for v in checked(Config()).verdicts] == [Outcome.PASSED] * len(PROMISES)


@pytest.mark.parametrize(
    ("broken", "promise", "words"),
    [
        (NoClose, "it is bound to a run's folder", "NoClose has no close()"),
        (Waits, "it is bound to a run's folder", "AttributeError"),
        (Picks, "it takes the numbers of a run", "KeyError: 'reward'"),
        (Rounds, "it takes the numbers of a run", "ValueError: cannot convert float NaN to integer"),
        (Takes, "it leaves what it is given", "the numbers of step 0 are not what they were"),
        (Renames, "it leaves what it is given", "the config is not what it was"),
        (Overwrites, "it leaves what it is given", "metrics.jsonl is not what it was"),
        (Erases, "a resumed run goes on", "steps.txt has 0 bytes instead of"),
        (Once, "a resumed run goes on", "FileExistsError"),
        (LeavesOpen, "it closes", "after close() steps.txt is still open"),
        (LeavesThread, "it closes", "there still runs the thread sender"),
    ],
)
def test_a_broken_sink_is_caught(broken, promise, words):
    LeavesThread.stopped.clear()
    report = checked(Config(broken))
    LeavesThread.stopped.set()
    for file in LeavesOpen.left:
        file.close()
    assert report.failed == (promise,)
    assert words in report[promise].detail


def test_a_class_that_no_config_can_name_is_a_warning():
    class Loose:
        def bind(self, folder, config):
            return Text(folder, config)

    report = checked(Loose())
    assert report.passed
    assert report["a config can name it"].outcome is Outcome.WARNED
