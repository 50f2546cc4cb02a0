"""What was decided of releases holds when the service is killed, finds its disk full, and begins again."""

import contextlib

import pytest

from sojourn.errors import RecordError
from sojourn.live.store import LiveStore
from tests.live_releases import kinds, offer, released, said, watched


async def test_a_release_that_was_left_out_is_not_tried_after_a_restart(tmp_path):
    releases, store, _ = released(tmp_path)
    offer(store)
    await releases.begin()
    offer(store)
    offer(store)
    await releases.poll()
    assert releases.tried == 2
    again, _, _ = released(tmp_path)  # it was killed during the trial, which begins anew
    await again.begin()
    await again.poll()
    assert again.tried == 2
    said(store, 0, [1.0, 0.9] * 2)
    said(store, 2, [-1.0, -0.9] * 2)
    await again.poll()
    assert kinds(store)[-1] == ("rolled back", 2)
    last, _, _ = released(tmp_path)
    await last.begin()
    await last.poll()
    assert (last.serving, last.tried) == (0, None)


async def test_a_rollback_is_written_down_whole_or_not_at_all(tmp_path, monkeypatch):
    """A service that is killed between, or finds the disk full, never begins again with what was rolled back."""
    releases, *_ = await watched(tmp_path)
    written, add_events = [], LiveStore.add_events

    def fill(self, *events, of=None):
        if written:
            raise RecordError("the disk is full")
        written.append(events)
        add_events(self, *events, of=of)

    monkeypatch.setattr(LiveStore, "add_events", fill)
    with contextlib.suppress(RecordError):
        await releases.poll()
    monkeypatch.undo()
    again, _, _ = released(tmp_path)
    await again.begin()
    assert again.serving == 0


async def test_what_cannot_be_written_down_is_not_done(tmp_path, monkeypatch):
    releases, store, _ = released(tmp_path)
    offer(store)
    await releases.begin()
    offer(store)
    await releases.poll()

    def full(self, *events, of=None):
        raise RecordError("the disk is full")

    async def poll_with_a_full_disk():
        with monkeypatch.context() as patched:
            patched.setattr(LiveStore, "add_events", full)
            with pytest.raises(RecordError):
                await releases.poll()

    said(store, 0, [0.5] * 4)
    said(store, 1, [0.5] * 4)
    await poll_with_a_full_disk()
    assert (releases.serving, releases.tried, releases.previous) == (0, 1, None)
    await releases.poll()
    assert (releases.serving, releases.tried, releases.previous) == (1, None, 0)
    said(store, 0, [0.5, 0.6] * 2)
    said(store, 1, [-0.5, -0.6] * 2)
    await poll_with_a_full_disk()
    assert (releases.serving, releases.previous) == (1, 0)
    await releases.poll()
    assert (releases.serving, releases.previous) == (0, None)


@pytest.fixture(autouse=True)
def _closed(tmp_path):
    yield
    LiveStore(tmp_path).close()
