"""Which release answers: what is offered is tried, serves, is watched, and is taken back by what people say."""

import pytest

from sojourn.live.gate import FREEZE
from sojourn.live.store import LiveStore
from tests.live_releases import kinds, offer, released, said, watched


async def watched_and_tried(releases, store):
    """Has release 1 serve, watched beside 0, while 2 is tried."""
    offer(store)
    await releases.begin()
    offer(store)
    await releases.poll()
    said(store, 0, [0.5] * 4)
    said(store, 1, [0.5] * 4)
    offer(store)
    await releases.poll()
    assert (releases.serving, releases.tried, releases.previous) == (1, 2, 0)


async def test_without_a_release_nothing_begins(tmp_path):
    releases, store, _ = released(tmp_path)
    assert not await releases.begin()
    offer(store)
    assert await releases.begin()
    assert kinds(store) == [("serving", 0)]


async def test_a_release_is_tried_by_a_share_of_new_sessions_and_then_serves(tmp_path):
    releases, store, made = released(tmp_path)
    offer(store)
    await releases.begin()
    offer(store)
    offer(store)  # the newest is tried
    await releases.poll()
    assert (releases.serving, releases.tried) == (0, 2)
    share = sum(releases.choose(f"key-{n}") == 2 for n in range(1000)) / 1000
    assert 0.4 < share < 0.6
    assert releases.choose("key-1") == releases.choose("key-1")
    said(store, 0, [1.0, 0.5, 1.0, 0.5])
    said(store, 2, [1.0, 0.5, 1.0])
    await releases.poll()
    assert releases.tried == 2
    said(store, 2, [0.5])
    await releases.poll()
    assert (releases.serving, releases.tried, releases.previous) == (2, None, 0)
    assert kinds(store) == [("serving", 0), ("canary", 2), ("serving", 2)]
    assert not made[0].engine.closed  # it is watched
    said(store, 2, [1.0] * 4)
    said(store, 0, [1.0] * 3)
    await releases.poll()
    assert releases.previous == 0  # it has too few sessions to be compared with
    said(store, 0, [1.0])
    await releases.poll(used={0})
    assert (releases.previous, made[0].engine.closed) == (None, False)  # a session still uses it
    assert kinds(store)[-1] == ("kept", 2)
    await releases.poll()
    assert made[0].engine.closed


async def test_a_worse_one_is_rolled_back_at_once_where_that_is_sure(tmp_path):
    releases, store, made = released(tmp_path, canary_sessions=20)
    offer(store)
    await releases.begin()
    offer(store)
    await releases.poll()
    said(store, 0, [1.0, 0.8, 1.0, 0.9])
    said(store, 1, [-1.0, -0.9, -1.0])
    await releases.poll()
    assert (releases.serving, releases.tried) == (0, None)
    assert kinds(store) == [("serving", 0), ("canary", 1), ("rolled back", 1)]
    assert made[1].engine.closed
    await releases.poll()
    assert releases.tried is None  # it is not tried again


async def test_one_that_serves_is_taken_back_when_people_say_so(tmp_path):
    releases, store, _ = await watched(tmp_path)
    await releases.poll()
    assert releases.serving == 0
    assert kinds(store) == [("serving", 0), ("serving", 1), ("rolled back", 1), ("serving", 0)]
    again, _, _ = released(tmp_path)  # the service starts again
    await again.begin()
    assert again.serving == 0
    await again.poll()
    assert again.tried is None


async def test_when_people_change_the_release_that_serves_is_not_taken_back_for_that(tmp_path):
    """Its predecessor answers some sessions still, and is compared by these, not by what people said before."""
    releases, store, _ = released(tmp_path)
    offer(store)
    await releases.begin()
    offer(store)
    said(store, 0, [1.0] * 4)
    await releases.poll()
    said(store, 0, [1.0] * 4)
    said(store, 1, [1.0] * 4)
    await releases.poll()
    assert (releases.serving, releases.previous) == (1, 0)
    share = sum(releases.choose(f"key-{n}") == 0 for n in range(1000)) / 1000
    assert 0.4 < share < 0.6
    said(store, 0, [-1.0] * 4)
    said(store, 1, [-0.9] * 4)
    await releases.poll()
    assert (releases.serving, releases.previous) == (1, None)
    assert {releases.choose(f"key-{n}") for n in range(100)} == {1}


async def test_what_serves_is_taken_back_also_while_another_is_tried(tmp_path):
    releases, store, _ = released(tmp_path)
    offer(store)
    await releases.begin()
    offer(store)
    await releases.poll()
    said(store, 0, [0.0] * 4)
    said(store, 1, [0.5] * 4)
    offer(store)
    await releases.poll()
    assert (releases.serving, releases.tried, releases.previous) == (1, 2, 0)
    shares = [sum(releases.choose(f"key-{n}") == release for n in range(1000)) / 1000 for release in (0, 1, 2)]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.05)
    said(store, 0, [0.5, 0.6, 0.5, 0.6])
    said(store, 1, [-1.0, -0.9, -1.0, -0.9])
    await releases.poll()
    assert (releases.serving, releases.tried, releases.previous) == (0, 2, None)


async def test_one_that_is_tried_is_compared_with_what_is_said_in_the_same_time(tmp_path):
    releases, store, _ = released(tmp_path)
    offer(store)
    await releases.begin()
    said(store, 0, [1.0] * 4)
    offer(store)
    await releases.poll()
    said(store, 0, [-1.0] * 3)
    said(store, 1, [-0.5] * 4)
    await releases.poll()
    assert (releases.serving, releases.tried) == (0, 1)  # until what serves has as many sessions
    said(store, 0, [-1.0])
    await releases.poll()
    assert releases.serving == 1


async def test_a_watch_does_not_wait_for_ever(tmp_path):
    releases, store, _ = released(tmp_path, limit_sessions=8)
    offer(store)
    await releases.begin()
    offer(store)
    await releases.poll()
    said(store, 0, [0.5, 0.6] * 2)
    said(store, 1, [0.5, 0.6] * 2)
    await releases.poll()
    said(store, 0, [0.5, 0.9, 0.8])
    said(store, 1, [0.5, 0.6] * 3 + [0.5])
    await releases.poll()
    assert releases.previous == 0
    said(store, 1, [0.6])
    await releases.poll()
    assert (releases.serving, releases.previous) == (1, None)
    assert kinds(store)[-1] == ("kept", 1)
    assert store.events()[-1].reason.startswith("too few sessions to tell: feedback +0.550 in 8 sessions, +0.733 in 3")


async def test_nothing_new_serves_before_the_watch_of_what_serves_has_ended(tmp_path):
    releases, store, _ = released(tmp_path)
    await watched_and_tried(releases, store)
    said(store, 1, [0.5, 0.6] * 2)
    said(store, 2, [0.5, 0.6] * 2)
    await releases.poll()
    assert (releases.serving, releases.tried, releases.previous) == (1, 2, 0)
    said(store, 0, [0.5, 0.6] * 2)
    await releases.poll()
    assert (releases.serving, releases.tried, releases.previous) == (2, None, 1)


async def test_releases_that_may_overlap_do_not_wait_for_a_watch(tmp_path):
    """The one that was replaced is no longer watched, which is written down; the new one is, against the replaced."""
    releases, store, _ = released(tmp_path, overlap=True)
    await watched_and_tried(releases, store)
    said(store, 1, [0.5, 0.6] * 2)
    said(store, 2, [0.5, 0.6] * 2)
    await releases.poll()
    assert (releases.serving, releases.tried, releases.previous) == (2, None, 1)
    assert kinds(store)[-2:] == [("kept", 1), ("serving", 2)]
    assert store.events()[-2].reason == "too few sessions to tell: release 2 serves in its place"
    again, _, _ = released(tmp_path, overlap=True)
    await again.begin()
    assert (again.serving, again.previous) == (2, 1)


@pytest.mark.parametrize(("overlap", "serving"), [(False, 1), (True, 2)])
async def test_where_nothing_is_tried_first_the_next_one_waits_for_the_watch_too(tmp_path, overlap, serving):
    releases, store, _ = released(tmp_path, canary_share=0, overlap=overlap)
    offer(store)
    await releases.begin()
    said(store, 0, [0.5] * 4)
    for _ in range(2):
        offer(store)
        await releases.poll()
    assert releases.serving == serving
    said(store, 1, [0.5] * 4)
    await releases.poll()
    assert releases.serving == 2


async def test_a_watch_goes_on_when_the_service_begins_again(tmp_path):
    releases, store, _ = released(tmp_path)
    offer(store)
    await releases.begin()
    offer(store)
    await releases.poll()
    said(store, 0, [0.5] * 4)
    said(store, 1, [0.5] * 4)
    await releases.poll()
    said(store, 0, [0.5, 0.6])
    again, _, made = released(tmp_path)
    await again.begin()
    assert (again.serving, again.previous, sorted(made)) == (1, 0, [0, 1])
    said(store, 0, [0.5, 0.6])
    said(store, 1, [-0.5, -0.6])
    await again.poll()
    assert (again.serving, again.previous) == (0, None)
    last, _, _ = released(tmp_path)
    await last.begin()
    assert (last.serving, last.previous) == (0, None)


async def test_a_watch_that_has_ended_does_not_begin_again(tmp_path):
    releases, store, _ = released(tmp_path, canary_share=0)
    offer(store)
    await releases.begin()
    said(store, 0, [0.5] * 4)
    offer(store)
    await releases.poll()
    said(store, 1, [0.5] * 4)
    await releases.poll()
    again, _, _ = released(tmp_path, canary_share=0)
    await again.begin()
    assert (again.serving, again.previous) == (1, None)


async def test_nothing_changes_while_it_is_frozen_and_a_damaged_release_is_left_out(tmp_path):
    releases, store, _ = released(tmp_path)
    offer(store)
    await releases.begin()
    offer(store, "broken")
    (tmp_path / FREEZE).touch()
    for _ in range(2):
        await releases.poll()
        assert kinds(store) == [("serving", 0), ("frozen", 0)]
    again, _, _ = released(tmp_path)  # the service starts again
    await again.begin()
    await again.poll()
    assert kinds(store) == [("serving", 0), ("frozen", 0)]
    (tmp_path / FREEZE).unlink()
    await releases.poll()
    assert kinds(store) == [("serving", 0), ("frozen", 0), ("thawed", 0), ("failed", 1)]
    assert "its weights are damaged" in store.events()[-1].reason
    offer(store, "cut short")
    await releases.poll()
    assert "Ran out of input" in store.events()[-1].reason
    assert releases.serving == 0
    await releases.close()


@pytest.fixture(autouse=True)
def _closed(tmp_path):
    yield
    LiveStore(tmp_path).close()
