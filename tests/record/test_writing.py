"""A run records in a thread: what is begun is on the disk when the run has ended, however it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.train.episode_writer import EpisodeWriter
from tests.cases import group, paid, trajectory
from tests.envs.busy import given_up_while_it_queues


async def test_what_is_being_recorded_when_a_run_is_given_up_is_recorded(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "") as folder, EpisodeStore(folder.path, write=True) as store:
        writer = EpisodeWriter(store, folder.blobs)

        async def record() -> None:
            await writer.start("train", 0, [[group(trajectory([2]))], [paid([1.0])]])
            await writer.finish()

        await given_up_while_it_queues(record())
        await writer.finish()
        assert len(list(store.query(stage="train"))) == 1


async def test_who_waits_for_a_record_and_gives_up_leaves_it_to_be_waited_for(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "") as folder, EpisodeStore(folder.path, write=True) as store:
        writer = EpisodeWriter(store, folder.blobs)
        with store._lock:
            await writer.start("train", 0, [[group(trajectory([2]))], [paid([1.0])]])
            waiting = asyncio.ensure_future(writer.finish())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait({waiting})
        await writer.finish()
        assert len(list(store.query(stage="train"))) == 1
