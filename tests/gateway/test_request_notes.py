"""What is kept of the request behind a turn: by whom and how it was asked, why a new context began, and its body."""

import json
import re
from dataclasses import replace

import httpx
import pytest

from sojourn.gateway.placement import SHOWN
from sojourn.gateway.request_notes import LONGEST_BODY, READ_BODY, body_of, shared
from sojourn.gateway.server import Gateway
from sojourn.gateway.service import without_keys
from sojourn.gateway.sessions import Sessions
from sojourn.record.note_names import BEFORE, BODY, NOW, PLACE, SHARES
from sojourn.types import Ending, Role
from tests.gateway_sessions import asked, said, session, user

LONG = "You are careful. " * 40
KEY = "sk-" + "a1B2" * 10
CLEAN = without_keys()


class Site:
    """A gateway with one session, asked without a network; it keeps the bodies that were sent."""

    def __init__(self, script=lambda prompt: said("Well."), clean=CLEAN):
        self.session, self.sampler = session(script, "s")
        sessions = Sessions()
        sessions.open(self.session)
        transport = httpx.ASGITransport(Gateway(sessions, clean=clean).app())
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        self.sent = []

    async def ask(self, messages, path="chat/completions", headers=None, **more):
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": 64, **more})
        self.sent.append(body)
        answer = await self.http.post(f"/s/s/v1/{path}", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer

    @property
    def turns(self):
        return self.session.trajectory(Ending.DONE).turns


def talk(count):
    """Yields conversations that grow, as they would be sent."""
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "Hi"}]
    for number in range(count):
        yield list(messages)
        messages += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": f"And {number}?"}]


async def test_each_turn_says_how_it_was_asked():
    site = Site()
    await site.ask([{"role": "user", "content": "Hi"}], headers={"User-Agent": "agent/1 " + "x" * 500})
    await site.ask([{"role": "user", "content": "Hello"}], "messages", stream=True)
    await site.http.post("/s/s/v1/responses", json={"model": "m", "input": "Hey"})
    notes = [turn.notes for turn in site.turns]
    assert [one["API"] for one in notes] == ["chat completions", "messages", "responses"]
    assert [one["streamed"] for one in notes] == ["no", "yes", "no"]
    assert notes[0]["client"] == "agent/1 " + "x" * 192
    assert notes[1]["client"].startswith("python-httpx/")


async def test_every_body_can_be_read_whole_though_each_is_kept_once():
    site = Site()
    for messages in talk(6):
        await site.ask(messages)
    await site.ask([{"role": "user", "content": "Write a title."}])
    turns = site.turns
    assert [body_of(turns, number) for number in range(7)] == site.sent
    assert [shared(turn) is not None for turn in turns] == [False, True, True, True, True, True, False]
    assert all(len(turn.notes[BODY]) < 100 for turn in turns[1:6])


async def test_branches_of_a_conversation_share_with_the_turn_that_they_extend():
    site = Site()
    first, second, third = talk(3)
    for messages in (first, second, [{"role": "user", "content": "Aside " * 100}], third):
        await site.ask(messages)
    same = shared(site.turns[3])
    assert same is not None
    assert same.turn == 1
    assert body_of(site.turns, 3) == site.sent[3]


async def test_a_body_whose_earlier_part_is_not_there_says_so():
    site = Site()
    for messages in talk(2):
        await site.ask(messages)
    alone = [replace(site.turns[0], notes={}), site.turns[1]]
    whole = body_of(alone, 1)
    assert whole is not None
    assert re.match(r"\[\d+ characters as in turn 1\].*And 0\?", whole)
    for broken in ("0 1", "x 1 2", "1 5 5", "7 1 1", "0 99999999999 1"):
        notes = {**site.turns[1].notes, SHARES: broken}
        assert "And 0?" in str(body_of([site.turns[0], replace(site.turns[1], notes=notes)], 1))
    assert body_of(alone, 0) is None


async def test_what_is_secret_is_kept_nowhere():
    site = Site()
    headers = {"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY, "User-Agent": f"agent key={KEY}", "Cookie": KEY}
    await site.ask([{"role": "user", "content": "Hi"}], headers=headers, metadata={"note": KEY})
    told = json.dumps(dict(site.turns[0].notes))
    assert KEY not in told
    assert "<masked>" in site.turns[0].notes[BODY]
    assert "<masked>" in site.turns[0].notes["client"]


async def test_a_body_has_bounds():
    site = Site()
    text = "letter " * (LONGEST_BODY // 6)
    await site.ask([{"role": "user", "content": "Hi"}], metadata={"note": text})
    kept = site.turns[0].notes[BODY]
    assert LONGEST_BODY < len(kept) < LONGEST_BODY + 100
    assert re.match(r'\{"model": "m".*\[\d+ characters are not kept\].*letter "\}\}$', kept)


async def test_no_part_of_a_key_is_kept_where_a_body_is_cut():
    site = Site()
    await site.ask([{"role": "user", "content": "Hi"}], metadata={"note": ""})
    begins, ends = len(site.sent[0]) - len('"}}'), len('"}}')
    for most in (LONGEST_BODY, READ_BODY):
        head = "a" * (most // 2 - begins - 10)  # ten letters of the key come before the cut
        tail = "b" * (most // 2 - ends - 10)
        for note in (f"{head} {KEY} {'c ' * READ_BODY}", f"{'c ' * READ_BODY} {KEY} {tail}"):
            await site.ask([{"role": "user", "content": "Hi"}], metadata={"note": note})
    for number in range(1, 5):
        whole = str(body_of(site.turns, number))
        assert KEY[:8] not in whole
        assert KEY[-8:] not in whole


async def test_a_gateway_that_keeps_nothing_keeps_nothing():
    site = Site(clean=None)
    first, second = talk(2)
    await site.ask(first)
    await site.ask(second)
    assert [dict(turn.notes) for turn in site.turns] == [{}, {}]
    assert site.session.bodies == {}


@pytest.mark.parametrize(
    ("changed", "place", "before", "now"),
    [
        (lambda m: [replace(m[0], text="Do that."), *m[1:]], "message 1 of the user, from character 4 on", "it.",
         "that."),
        (lambda m: [m[0], replace(m[1], thought="so"), *m[2:]],
         "message 2 of the assistant, its reasoning, from character 1 on", "hm", "so"),
        (lambda m: [m[0], replace(m[1], text="No."), *m[2:]], "message 2 of the assistant, from character 1 on", "Yes.",
         "No."),
        (lambda m: [replace(m[0], role=Role.SYSTEM), *m[1:]], "message 1", "a message of the user",
         "a message of the system"),
        (lambda m: m[:1], "its end: message 1 of 4 is the last", "", ""),
    ],
)  # fmt: skip
async def test_both_sides_of_a_rewritten_history_are_kept(changed, place, before, now):
    one, _ = session(lambda prompt: said("Yes.", "hm"), thinking=True)
    await one.reply(asked(user("Do it.")))
    await one.reply(asked(user("Do it."), one.placement.recorded[0].reply, user("On.")))
    messages = list(one.placement.recorded[-1].messages)
    await one.reply(asked(*changed(messages[:3]), *([user("Again.")] if len(changed(messages[:3])) > 1 else [])))
    notes = one.turns[2].notes
    assert (notes[PLACE], notes.get(BEFORE, ""), notes.get(NOW, "")) == (place, before, now)
    assert notes["new context"].split(":")[0] in ("rewritten", "side", "repeated", "compacted")


async def test_of_long_sides_the_beginning_is_kept():
    one, _ = session(lambda prompt: said("Yes."))
    await one.reply(asked(user("a" * 900)))
    await one.reply(asked(user("b" * 900), one.placement.recorded[0].reply, user("On.")))
    assert (one.turns[1].notes[BEFORE], one.turns[1].notes[NOW]) == ("a" * SHOWN, "b" * SHOWN)
