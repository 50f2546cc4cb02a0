"""A run never waits for what its parts say of themselves, and what does not answer is recorded as such."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sojourn.abilities import PartLoad, PartState
from sojourn.errors import InfrastructureError
from sojourn.record import part_recorder
from sojourn.record.part_recorder import LoopLag, PartRecorder
from sojourn.record.parts import PartsFile, Reading, read

UP = PartLoad(name="sampler 0", kind="sampler")


class Part:
    """Says what it is told to say, or does what it is told to do."""

    def __init__(self, says: Any = (UP,)) -> None:
        self.says, self.asked = says, 0

    async def part_loads(self) -> Sequence[PartLoad]:
        self.asked += 1
        return await self.says() if callable(self.says) else self.says


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(part_recorder, "GIVEN_UP_S", 0.2)


@pytest.fixture
def recorder(tmp_path) -> Callable[..., PartRecorder]:
    told: list[str] = []

    def make(*reporters: Any) -> PartRecorder:
        made = PartRecorder(PartsFile(tmp_path / "parts.jsonl"), list(reporters), tell=told.append)
        made.told = told  # type: ignore[attr-defined]
        return made

    return make


def recorded(recorder: PartRecorder) -> list[Reading]:
    return list(read(Path(recorder.file.path)))


def states(recorder: PartRecorder) -> list[list[PartState]]:
    return [[part.state for part in reading.parts] for reading in recorded(recorder)]


async def hang() -> Any:
    await asyncio.Event().wait()


async def stubborn() -> Any:
    """Ignores that it is cancelled."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if time.monotonic() > STUBBORN_UNTIL[0]:
                raise


STUBBORN_UNTIL = [0.0]


async def test_each_step_is_recorded(recorder):
    async with recorder(Part(), Part((PartLoad(name="driver", kind="driver", numbers={"plays": 3}),))) as made:
        for step in range(3):
            made.write(step, "rl", {})
            await asyncio.sleep(0.01)
    found = recorded(made)
    assert [(one.step, one.stage) for one in found] == [(0, "rl"), (1, "rl"), (2, "rl")]
    assert [part.name for part in found[0].parts] == ["sampler 0", "driver"]
    assert found[1].parts[1].numbers == {"plays": 3}
    assert 0 < found[1].over_s < 1
    assert made.told == []


async def test_a_part_that_does_not_return_holds_nothing_up(recorder):
    hung = Part(hang)
    async with recorder(Part(), hung) as made:
        began = time.monotonic()
        for step in range(5):
            made.write(step, "rl", {})
            await asyncio.sleep(0.001)
        assert time.monotonic() - began < 0.15, "the steps do not wait"
        await asyncio.sleep(0.5)
    assert time.monotonic() - began < 5, "nor does the end"
    assert hung.asked == 1, "it is not asked again before it has answered"
    found = recorded(made)
    assert [one.step for one in found] == [0, 4], "steps that end meanwhile share a reading"
    assert states(made)[0] == [PartState.UP, PartState.SILENT]
    assert found[0].parts[1].name == "Part"
    assert "has not returned within" in found[0].parts[1].note


async def test_a_part_that_ignores_its_end_holds_nothing_up(recorder):
    STUBBORN_UNTIL[0] = time.monotonic() + 3
    began = time.monotonic()
    async with recorder(Part(stubborn)) as made:
        made.write(0, "rl", {})
    assert time.monotonic() - began < 2
    assert states(made) == [[PartState.SILENT]]
    STUBBORN_UNTIL[0] = 0.0


async def test_a_part_that_answers_again_is_up_again(recorder):
    answer = asyncio.Event()

    async def late() -> Sequence[PartLoad]:
        await answer.wait()
        return [UP]

    part = Part(late)
    async with recorder(part) as made:
        made.write(0, "rl", {})
        await asyncio.sleep(0.3)
        answer.set()
        made.write(1, "rl", {})
        await asyncio.sleep(0.05)
        made.write(2, "rl", {})
    assert states(made) == [[PartState.SILENT], [PartState.UP], [PartState.UP]]
    assert part.asked == 2, "the first answer came late, and then it was asked again"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (InfrastructureError("the node is gone"), "the node is gone"),
        (ValueError("odd"), "ValueError: odd"),
        (SystemExit("bye"), "part_loads exits (bye)"),
        (["a text"], "AttributeError"),
        ([PartLoad(name="a", kind="b", numbers={"n": "many"})], "TypeError"),  # type: ignore[dict-item]
        (7, "TypeError"),
    ],
    ids=str,
)
async def test_a_part_that_fails_is_recorded_as_such(recorder, says, why):
    async def fail() -> Any:
        if isinstance(says, BaseException):
            raise says
        return says

    async with recorder(Part(fail), Part()) as made:
        made.write(0, "rl", {})
    [found] = recorded(made)
    assert [part.state for part in found.parts] == [PartState.SILENT, PartState.UP]
    assert why in found.parts[0].note


async def test_what_is_gone_or_back_is_told_once(recorder):
    part = Part()
    async with recorder(part) as made:
        for step, state in enumerate(["up", "down", "down", "loading", "up", "up", "silent"]):
            part.says = [PartLoad(name="sampler 0", kind="s", state=PartState(state), seen_s=12.0, note="killed")]
            made.write(step, "rl", {})
            await asyncio.sleep(0.01)
    assert made.told == [
        "sampler 0 is down (killed), last seen 12 s ago",
        "sampler 0 is up again",
        "sampler 0 is silent (killed), last seen 12 s ago",
    ]


async def test_a_long_step_is_read_several_times(recorder, monkeypatch):
    monkeypatch.setattr(part_recorder, "TICK_S", 0.01)
    monkeypatch.setattr(part_recorder, "EVERY_S", 0.1)
    async with recorder(Part()) as made:
        await asyncio.sleep(0.15)
        made.write(0, "rl", {})
        await asyncio.sleep(0.35)
    found = [(one.step, one.stage) for one in recorded(made)]
    assert found[0] == (-1, "")
    assert found[1:] == [(0, "rl")] * (len(found) - 1)
    assert 3 <= len(found) <= 5


async def test_an_error_leaves_a_last_reading(recorder):
    part = Part()
    made = recorder(part)

    async def fail() -> None:
        async with made:
            made.write(3, "rl", {})
            await asyncio.sleep(0.01)
            part.says = [PartLoad(name="trainer rank 0", kind="trainer rank", state=PartState.DOWN, note="it died")]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert states(made) == [[PartState.UP], [PartState.DOWN]]
    assert recorded(made)[-1].step == 3


async def test_a_file_that_cannot_be_written_stops_no_run(recorder):
    async with recorder(Part()) as made:
        made.file._file.close()
        made.file._file = open("/dev/full", "wb", buffering=0)  # noqa: ASYNC230, SIM115
        made.write(0, "rl", {})
        await asyncio.sleep(0.05)
    assert made.told[0].startswith("what the parts of the run do is not recorded: ")


async def test_the_delay_of_the_event_loop_is_measured(monkeypatch):
    monkeypatch.setattr(part_recorder, "TICK_S", 0.02)
    lag = LoopLag()
    lag.start()
    await asyncio.sleep(0.1)
    time.sleep(0.2)  # noqa: ASYNC251
    await asyncio.sleep(0.05)
    mean_s, most_s = lag.take()
    lag.stop()
    assert 0.1 < most_s < 1
    assert 0 < mean_s < most_s
    assert lag.take() == (0.0, 0.0)
