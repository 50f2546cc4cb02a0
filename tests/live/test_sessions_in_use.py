"""A session in which something is asked is not idle, and what is said of a reply is said of no other."""

from __future__ import annotations

import asyncio

from tests.gateway_sessions import said
from tests.live_site import HELLO, Site


class Asking:
    """A second request of the session "a", whose reply waits until `go_on`."""

    def __init__(self, site, first):
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        site.sampler.wait = self.wait
        self.reply = asyncio.create_task(site.ask(messages=[*HELLO, first, {"role": "user", "content": "More"}]))

    async def wait(self):
        self.asked.set()
        await self.go_on.wait()

    async def done(self):
        self.go_on.set()
        return await self.reply


def numbered():
    numbers = iter(range(1, 9))
    return lambda prompt: said(f"reply {next(numbers)}")


def words(site):
    return [(turn.message.text, turn.reward) for turn in site.store.turns("a")]


async def test_a_session_whose_reply_is_sampled_does_not_end_and_keeps_the_reply(tmp_path):
    async with Site(tmp_path, script=numbered(), consent=True, idle_s=-1.0) as site:
        asking = Asking(site, await site.ask())
        await asking.asked.wait()
        await site.server.look()
        assert (await asking.done())["content"] == "reply 2"
        assert (await site.post("/s/a/feedback", value=-1)).json()["turn"] == 1
        assert words(site) == [("reply 1", 0.0), ("reply 2", -1.0)]
        await site.server.look()
        assert site.store.session("a").ended is not None
        assert not site.server.people


async def test_a_request_that_begins_is_a_use_of_its_session(tmp_path):
    async with Site(tmp_path, consent=True, idle_s=1e6) as site:
        await site.ask()
        site.server.people["a"].touched -= 2e6
        refused = await site.post("/s/a/v1/chat/completions", messages=[])
        assert refused.status_code == 400
        await site.server.look()
        assert "a" in site.server.people


async def test_feedback_of_a_reply_that_is_not_kept_is_no_feedback_of_the_one_before(tmp_path):
    async with Site(tmp_path, script=numbered(), consent=True) as site:
        asking = Asking(site, await site.ask())
        await asking.asked.wait()
        await site.post("/s/a/end")
        assert (await asking.done())["content"] == "reply 2"
        refused = await site.post("/s/a/feedback", value=-1)
        assert (refused.status_code, "that reply is not kept" in refused.text) == (409, True)
        assert words(site) == [("reply 1", 0.0)]
        assert (await site.post("/s/a/feedback", value=1, turn=0)).json() == {"counts": True, "turn": 0}


async def test_a_person_takes_back_a_session_while_a_reply_is_sampled_for_it(tmp_path):
    """The reply is told, as the request had begun, but kept nowhere, nor is what comes next under the name."""
    async with Site(tmp_path, script=numbered(), consent=True) as site:
        first = await site.ask()
        await site.post("/s/a/consent", consent=True, person="jo")
        body = {"model": "m", "messages": [*HELLO, first, {"role": "user", "content": "More"}]}
        asking = Asking(site, first)
        await asking.asked.wait()
        assert (await site.http.delete("/people/jo")).json() == {"removed": ["a"]}
        assert (await asking.done())["content"] == "reply 2"
        assert site.store.sessions() == []
        site.sampler.wait = None
        assert (await site.http.post("/s/a/v1/chat/completions", json=body)).status_code == 200
        assert (await site.http.delete("/people/jo")).json() == {"removed": []}
        assert site.store.sessions() == []
        assert site.store.scores(0) == []
