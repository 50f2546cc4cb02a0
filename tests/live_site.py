"""The live server over a scripted sampler, asked without a network."""

import httpx

from sojourn.gateway.bodies import Limits
from sojourn.live.gate import OFFERED, Gate
from sojourn.live.store import LiveStore
from sojourn.serving.live_server import Keeping, LiveServer
from sojourn.serving.opening import Served
from sojourn.serving.served_releases import ServedReleases
from sojourn.serving.server import Address, Service
from sojourn.types import SamplingParams
from tests.gateway_sessions import OddSampler, renderer, said

PANEL = {"success": 1.0, "success_low": 1.0, "malformed": 0.0, "tokens": 1.0}
HELLO = [{"role": "user", "content": "Hi"}]


class Site:
    """A server over a sampler that says how many words it was asked."""

    def __init__(
        self, folder, *, script=lambda prompt: said("Well."), token="", gate=None, offers=True, remove=lambda: None,
        **keeping,
    ):  # fmt: skip
        self.store = LiveStore(folder)
        if offers:
            number = self.store.offer(0, folder / "weights", PANEL)
            self.store.tell(OFFERED, number, "before")
        self.sampler = OddSampler(renderer(), script)
        served = Served(engine=self.sampler, renderer=self.sampler.format, max_context=4096)
        self.releases = ServedReleases(gate or Gate(), self.store, lambda release: served)
        self.keeping, self.token, self.remove = Keeping(**keeping), token, remove

    async def __aenter__(self):
        await self.releases.begin()
        service = Service(names=("m",), params=SamplingParams(64), limits=Limits(body_bytes=10_000), seed=0)
        self.server = LiveServer(
            self.releases, self.store, self.keeping, service, Address(token=self.token), self.remove
        )
        transport = httpx.ASGITransport(self.server.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        return self

    async def __aexit__(self, *_):
        await self.http.aclose()
        self.store.close()

    async def ask(self, key="a", messages=HELLO):
        answer = await self.http.post(f"/s/{key}/v1/chat/completions", json={"model": "m", "messages": messages})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    async def post(self, path, **body):
        return await self.http.post(path, json=body)
