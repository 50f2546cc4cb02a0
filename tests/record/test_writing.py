"""A run records in a thread: what is begun is on the disk when the run has ended, however it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.train.run import Run
from tests.cases import group, paid, trajectory
from tests.envs.busy import given_up_while_it_queues


async def test_what_is_being_recorded_when_a_run_is_given_up_is_recorded(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "") as folder, EpisodeStore(folder.path, write=True) as store:
        nothing = cast(Any, None)
        session = Run(nothing, folder, nothing, nothing, store, nothing)

        async def record() -> None:
            await session._start_write("train", 0, [[group(trajectory([2]))], [paid([1.0])]])
            await session._finish_write()

        await given_up_while_it_queues(record())
        await session._finish_write()
        assert len(list(store.query(stage="train"))) == 1


async def test_who_waits_for_a_record_and_gives_up_leaves_it_to_be_waited_for(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "") as folder, EpisodeStore(folder.path, write=True) as store:
        nothing = cast(Any, None)
        session = Run(nothing, folder, nothing, nothing, store, nothing)
        with store._lock:
            await session._start_write("train", 0, [[group(trajectory([2]))], [paid([1.0])]])
            waiting = asyncio.ensure_future(session._finish_write())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait({waiting})
        await session._finish_write()
        assert len(list(store.query(stage="train"))) == 1
