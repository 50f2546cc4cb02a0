"""What a stage that learns from a live service is refused for, and what it says while it waits."""

import asyncio
from contextlib import closing
from dataclasses import replace

import pytest
from live_sessions import kept
from made_world import Odd, components, stage_of

from sojourn.errors import ConfigError
from sojourn.live.service_lock import ServiceLock
from sojourn.live.store import LiveStore
from sojourn.record.episodes.store import EpisodeStore
from sojourn.rewards.native import Native
from sojourn.rewards.next_state import NextState
from sojourn.sources import live
from sojourn.sources.live import Live, LiveGroups


async def test_what_people_say_is_not_counted_twice():
    """It is the turn's reward and its feedback."""
    stage = stage_of(components(Odd()), "rl")
    for reward in (NextState(base=Native()), NextState(base=Native(scale=0.5, malformed=-1.0))):
        with pytest.raises(ConfigError, match="stage 'rl': what people say of a turn is its reward, which native"):
            await Live().check(replace(stage, reward=reward))
    for reward in (Native(), NextState(), NextState(base=Native(scale=0.0, malformed=-1.0))):
        await Live().check(replace(stage, reward=reward))


@pytest.mark.parametrize(
    ("folder", "remedy"),
    [
        (
            "",
            "end this by Ctrl-C; `sojourn live '{}' --resume` serves this run to people, and trains it",
        ),
        ("elsewhere", "start the service to which it belongs, with `sojourn live`"),
    ],
)
async def test_a_step_that_waits_while_nobody_serves_says_once_what_it_waits_for(
    tmp_path, monkeypatch, caplog, folder, remedy
):
    monkeypatch.setattr(live, "UNSERVED_S", 0.02)
    run = tmp_path / "a run"
    with EpisodeStore(run) as episodes, closing(LiveStore(run / "live")) as store:
        kept(store, "a", "ann")
        kept(store, "b", "ann")  # a step takes one of a person
        groups = LiveGroups(Live(width=2, per_person=1, poll_s=0.01, folder=folder), store, episodes, "rl")
        with closing(ServiceLock(store.folder)) as service:
            service.take()
            assert await _waited(groups, 0.1)
            assert not caplog.messages
        assert await _waited(groups, 0.1)
        kept(store, "c", "cyn")
        assert len(await groups.take(3)) == 2
    assert caplog.messages == [
        "stage 'rl': step 3 waits for 2 sessions that have ended and may be trained on, of which 1 are there, and no "
        f"service runs that keeps any in {run / 'live'}: {remedy.format(run)}"
    ]


async def _waited(groups: LiveGroups, seconds: float) -> bool:
    """Returns whether a step still waited after so long."""
    try:
        await asyncio.wait_for(groups.take(3), seconds)
    except TimeoutError:
        return True
    return False
