"""The releases of a service over engines that answer nothing, with sessions and what is said of them."""

from dataclasses import dataclass, field

from sojourn.errors import ModelError
from sojourn.live.gate import OFFERED, Gate
from sojourn.live.store import LiveStore
from sojourn.serving.served_releases import ServedReleases
from tests.live_sessions import kept

PANEL = {"success": 1.0, "success_low": 1.0, "malformed": 0.0, "tokens": 1.0}


@dataclass
class Engine:
    closed: bool = False

    async def close(self):
        self.closed = True


@dataclass
class Opened:
    engine: Engine = field(default_factory=Engine)


def released(folder, **gate):
    store, made = LiveStore(folder), {}

    def opens(release):
        if release.folder.name == "broken":
            raise ModelError("its weights are damaged")
        if release.folder.name == "cut short":
            raise EOFError("Ran out of input")
        made[release.number] = Opened()
        return made[release.number]

    config = Gate(**{"canary_share": 0.5, "canary_sessions": 4, "tolerance": 0.1, "watch_sessions": 4, **gate})
    return ServedReleases(config, store, opens), store, made


def offer(store, name="weights"):
    number = store.offer(0, store.folder / name, PANEL)
    store.tell(OFFERED, number, name)
    return number


def said(store, release, values, name="s"):
    for number, value in enumerate(values):
        key = f"{name}-{release}-{number}-{len(store.sessions())}"
        kept(store, key, release=release)
        store.add_feedback(key, "f", 0, value)


async def watched(folder):
    """Returns a service whose second release serves and is watched, while people like the first one better."""
    releases, store, made = released(folder, canary_share=0)
    offer(store)
    await releases.begin()
    said(store, 0, [1.0, 0.8, 1.0, 0.9])
    offer(store)
    await releases.poll()
    assert releases.serving == 1
    said(store, 1, [0.0, 0.1, 0.0, 0.1])
    return releases, store, made


def kinds(store):
    return [(event.kind, event.release) for event in store.events() if event.kind != OFFERED]
