"""The run folder of a live service in which people asked, weights were published, refused and rolled back: made by the
real gateway, gate and store, over a scripted sampler."""

import time
from dataclasses import replace
from pathlib import Path

from sojourn.live.facts import Traffic
from sojourn.live.gate import FREEZE, Gate
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.episodes.vocabulary import Vocabulary
from sojourn.record.episodes.vocabulary import write as write_vocabulary
from sojourn.record.run import RunFolder
from sojourn.sources.live import Live, LiveGroups
from sojourn.train.releases import Releases
from sojourn.types import Episode
from tests.gateway_sessions import said
from tests.live_sessions import summary
from tests.live_site import Site

GATE = Gate(canary_share=0.5, canary_sessions=2, tolerance=0.1, watch_sessions=0, limit_sessions=2)
CONFIG = "name = 'support'\nseed = 1\nmodel.name = 'tiny'\n"


async def make(folder: Path, text: str = "My parcel is late.", person: str = "u-17", frozen: bool = True) -> None:
    """Makes the folder. `text` is what people say, and the model replies with it."""
    RunFolder.create(folder, CONFIG).close()
    write_vocabulary(folder, Vocabulary(tuple(bytes([n]) for n in range(256)), frozenset()))
    releases = Releases.of(GATE, folder)
    judged(folder, releases, "before", 0, 0.4)
    async with Site(folder / "live", script=lambda prompt: said(text), gate=GATE, offers=False, consent=True) as site:
        await asked(site, "first", text, [1.0], person)
        await asked(site, "second", text, [0.0, -1.0], person)
        await asked(site, "goes-on", text, [], person, end=False)
        await trained(folder, 2)
        judged(folder, releases, "rl-4", 4, 0.55)
        await tried(site, text, 1.0)
        judged(folder, releases, "rl-8", 8, 0.2)
        judged(folder, releases, "rl-12", 12, 0.6)
        await tried(site, text, -1.0)
        await failing(site)
        minute = int(time.time() // 60)
        site.store.add_traffic(
            {Traffic(minute - ago, 1, "responses", "200" if ago % 5 else "503"): 3 + ago % 7 for ago in range(1, 30)}
        )
        if frozen:
            (folder / "live" / FREEZE).touch()
        await site.server.look()
    releases.close()


def judged(folder: Path, releases: Releases, name: str, step: int, success: float) -> None:
    """Records an evaluation, whose weights are offered or refused."""
    with RunFolder.open(folder) as run:
        run.add_evaluation(name, "rl", step, summary(success))
    releases.consider(name, step, summary(success), {})


async def asked(site: Site, key: str, text: str, feedback: list[float], person: str = "", end: bool = True) -> None:
    """Asks three times, the last time with another history."""
    messages = [{"role": "user", "content": text}]
    reply = await site.ask(key, messages)
    await site.ask(key, [*messages, reply, {"role": "user", "content": f"And then? {text}"}])
    changed = [{"role": "user", "content": f"(summary) {text}"}, reply, {"role": "user", "content": "Go on."}]
    await site.ask(key, changed)
    if person:
        await site.post(f"/s/{key}/consent", consent=True, person=person)
    for turn, value in enumerate(feedback):
        await site.post(f"/s/{key}/feedback", value=value, turn=turn)
    if end:
        await site.post(f"/s/{key}/end")


async def tried(site: Site, text: str, value: float) -> None:
    """Lets what was offered be tried, and says of its replies `value`."""
    await site.server.look()
    tried = site.releases.tried
    assert tried is not None
    keys = [f"{tried}-{number}" for number in range(40)]
    for key in [key for key in keys if site.releases.choose(key) == tried][:3]:
        await asked(site, key, text, [value])
    await site.server.look()


async def failing(site: Site) -> None:
    """Asks what cannot be answered."""
    for _ in range(2):
        answer = await site.http.post("/s/broken/v1/chat/completions", json={"model": "m", "messages": []})
        assert answer.status_code == 400


async def trained(folder: Path, width: int) -> None:
    """Takes sessions as a step of training does, and records them."""
    with EpisodeStore(folder, write=True) as episodes:
        source = LiveGroups(Live(width=width), Releases.of(GATE, folder).store, episodes, "rl")
        episodes.append("rl", 0, await source.take(0))
        await source.close()


def without_notes(episode: Episode) -> Episode:
    """Returns an episode as an older Sojourn recorded it."""
    trajectories = [
        replace(trajectory, turns=tuple(replace(turn, notes={}) for turn in trajectory.turns))
        for trajectory in episode.trajectories
    ]
    return replace(episode, id=f"{episode.id}-older", trajectories=tuple(trajectories))
