"""The live server over HTTP: consent, feedback, what is masked, what is forgotten; and that what is kept is exact."""

import asyncio
from urllib.parse import quote

import pytest

from sojourn.errors import RecordError
from sojourn.live.gate import FREEZE
from tests.live_site import HELLO, Site


async def test_what_is_kept_is_what_was_sampled(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        reply = await site.ask()
        await site.ask(messages=[*HELLO, reply, {"role": "user", "content": "More"}])
        turns = site.store.turns("a")
        assert [turn.sample.tokens.tolist() for turn in turns] == [s.tokens.tolist() for s in site.sampler.samples]
        assert [turn.parent for turn in turns] == [-1, 0]
        assert site.store.session("a").release == 0


async def test_without_consent_nothing_is_kept_and_with_it_all_of_the_session(tmp_path):
    async with Site(tmp_path) as site:
        await site.ask()
        assert site.store.sessions() == []
        refused = await site.post("/s/a/feedback", value=1)
        assert (refused.status_code, "its person agrees first" in refused.text) == (409, True)
        assert (await site.post("/s/a/consent", consent=True, person="jo")).json() == {"consent": True}
        assert len(site.store.turns("a")) == 1
        assert site.store.session("a").person == "jo"
        await site.ask()
        assert len(site.store.turns("a")) == 2
        await site.post("/s/a/consent", consent=False)
        await site.ask()
        assert len(site.store.turns("a")) == 2
        assert not site.store.session("a").consent


async def test_feedback_is_of_a_turn_once(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        await site.ask()
        for _ in range(2):
            assert (await site.post("/s/a/feedback", value=-1, turn=0, id="x")).json() == {"counts": True, "turn": 0}
        assert (await site.post("/s/a/feedback", value=0.5)).json()["turn"] == 1
        assert [turn.reward for turn in site.store.turns("a")] == [-1.0, 0.5]
        await site.post("/s/a/feedback", value=None, turn=0, id="x")
        assert [turn.reward for turn in site.store.turns("a")] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/s/a/feedback", {"value": 2}, 400, "expected a number from -1 to 1"),
        ("/s/a/feedback", {"value": True}, 400, "expected a number from -1 to 1"),
        ("/s/a/feedback", {"value": 1, "turn": 1}, 400, "expected a number below 1"),
        ("/s/a/feedback", {"value": 1, "turn": "0"}, 400, "expected a number below 1"),
        ("/s/a/consent", {"consent": "yes"}, 400, "true or false"),
        ("/s/b/feedback", {"value": 1}, 409, "agrees first"),
        ("/s/a/feedback", {"value": 1, "id": "x" * 20_000}, 413, "more than 10000 bytes"),
        ("/s/a/feedback", {"vlaue": 1, "trun": 0}, 400, "unknown key 'vlaue': did you mean 'value'?"),
        ("/s/a/feedback", {"value": 1, "trun": 0}, 400, "unknown key 'trun': did you mean 'turn'?"),
        ("/s/a/feedback", {"value": 1, "comment": "x"}, 400, "unknown key 'comment': use one of id, turn, value"),
        ("/s/a/feedback", {"turn": 0}, 400, "the body has no 'value'"),
        ("/s/a/consent", {"consent": True, "preson": "jo"}, 400, "unknown key 'preson': did you mean 'person'?"),
        ("/s/a/consent", {"person": "jo"}, 400, "the body has no 'consent'"),
    ],
)
async def test_what_cannot_be_meant_gets_one_clear_error(tmp_path, path, body, status, words):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        answer = await site.post(path, **body)
        assert answer.status_code == status
        assert words in answer.json()["error"]["message"]
        assert site.store.feedback("a") == []
        assert site.store.session("a").person == "a"


async def test_only_null_takes_feedback_back(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        await site.post("/s/a/feedback", value=1)
        assert (await site.post("/s/a/feedback")).status_code == 400
        assert site.store.feedback("a") == [(0, 1.0)]
        await site.post("/s/a/feedback", value=None)
        assert site.store.feedback("a") == []


async def test_all_that_changes_something_needs_the_token(tmp_path):
    async with Site(tmp_path, consent=True, token="secret-token") as site:
        for method, path in (
            ("POST", "/s/a/feedback"),
            ("DELETE", "/s/a"),
            ("DELETE", "/people/a"),
            ("GET", "/releases"),
            ("POST", "/s/a/end"),
        ):
            assert (await site.http.request(method, path, json={})).status_code == 401


async def test_a_session_ends_and_may_be_forgotten(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        await site.ask("b")
        assert (await site.post("/s/a/end")).json() == {"ended": True}
        assert site.store.session("a").ended is not None
        assert (await site.http.delete("/s/b")).json() == {"removed": ["b"]}
        assert site.store.session("b") is None
        told = (await site.http.get("/releases")).json()
        assert told["serving"] == 0
        assert [event["kind"] for event in told["events"]] == ["offered", "serving"]


async def test_a_person_takes_back_all_sessions_and_the_records_are_looked_after(tmp_path):
    calls = []
    async with Site(tmp_path, remove=lambda: calls.append("remove")) as site:
        for key, person in (("a", "jo"), ("b", "jo"), ("c", "al")):
            await site.ask(key)
            await site.post(f"/s/{key}/consent", consent=True, person=person)
        answer = await site.http.delete("/people/jo", headers={"Origin": "https://example.org"})
        assert answer.status_code == 403
        assert sorted((await site.http.delete("/people/jo")).json()["removed"]) == ["a", "b"]
        for person in ("jo", "nobody", "j%2Fo", ""):
            answer = await site.http.delete(f"/people/{person}")
            assert (answer.status_code, answer.json()) == (200, {"removed": []})
        assert [one.key for one in site.store.sessions()] == ["c"]
        assert ("a" in site.server.sessions, "c" in site.server.sessions) == (False, True)
        assert calls == []
        await site.server.look()
        assert calls == ["remove"]


async def test_a_session_that_is_used_after_its_end_is_a_new_one_that_replaces_nothing(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        await site.post("/s/a/end")
        await site.ask()
        assert len(site.store.turns("a")) == 1


async def test_what_is_decided_is_told_once_also_what_the_training_decides(tmp_path):
    async with Site(tmp_path) as site:
        lines = []
        site.server.tell = lines.append
        site.store.tell("returned", 0, "8 candidates in a row were refused, the last one rl-8")
        site.store.tell("refused", None, "rl-9: success 20.0%")
        for _ in range(2):
            await site.server.look()
        assert lines == [
            "returned (release 0): 8 candidates in a row were refused, the last one rl-8",
            "refused: rl-9: success 20.0%",
        ]


async def test_what_is_idle_is_over_whether_it_was_kept_or_not(tmp_path):
    async with Site(tmp_path, idle_s=-1.0) as site:
        await site.ask("kept")
        await site.post("/s/kept/consent", consent=True)
        await site.ask("unkept")
        await site.server.look()
        assert site.store.session("kept").ended is not None
        assert "unkept" not in site.server.sessions


async def test_a_name_that_is_used_again_after_a_restart_adds_nothing_to_what_was_kept(tmp_path):
    """The server knows nothing of the turns before, so that those which follow would go on from others."""
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        await site.ask(messages=[{"role": "user", "content": "Other"}])
    async with Site(tmp_path, consent=True) as site:
        for _ in range(3):
            await site.ask()
        assert len(site.store.turns("a")) == 2
        assert site.store.session("a").ended is not None
        for answer in (await site.post("/s/a/feedback", value=1), await site.post("/s/a/consent", consent=True)):
            assert (answer.status_code, "a session of this name before" in answer.text) == (409, True)
        assert site.store.feedback("a") == []


async def test_what_was_said_can_be_taken_back_when_the_name_is_used_again(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        await site.post("/s/a/feedback", value=1)
        await site.post("/s/a/feedback", value=-1, id="x")
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        unsaid = await site.post("/s/a/feedback", value=None)
        assert (unsaid.status_code, "name the turn" in unsaid.text) == (409, True)
        assert (await site.post("/s/a/feedback", value=0.5, turn=0)).status_code == 409
        assert (await site.post("/s/a/feedback", value=None, turn=0)).json() == {"counts": True, "turn": 0}
        assert site.store.feedback("a") == [(0, -1.0)]
        await site.post("/s/a/feedback", value=None, turn=0, id="x")
        assert site.store.feedback("a") == []


async def test_what_is_forgotten_while_a_reply_is_sampled_is_not_kept_by_it(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def wait():
            asked.set()
            await go_on.wait()

        site.sampler.wait = wait
        reply = asyncio.create_task(site.ask())
        await asked.wait()
        assert (await site.http.delete("/s/a")).json() == {"removed": ["a"]}
        go_on.set()
        await reply
        assert site.store.sessions() == []


async def test_consent_can_be_taken_back_and_given_again(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        await site.post("/s/a/consent", consent=False)
        await site.ask()
        await site.post("/s/a/consent", consent=True, person="jo")
        assert (site.store.session("a").consent, site.store.session("a").person) == (True, "jo")
        assert len(site.store.turns("a")) == 2
        await site.post("/s/a/consent", consent=True)
        assert site.store.session("a").person == "jo"


async def test_pages_of_other_sites_change_nothing(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        page = {"Origin": "https://example.org"}
        for method, path in (("POST", "/s/a/feedback"), ("DELETE", "/s/a"), ("POST", "/s/a/end"), ("GET", "/releases")):
            assert (await site.http.request(method, path, json={"value": 1}, headers=page)).status_code == 403
        assert site.store.session("a").ended is None
        assert site.store.feedback("a") == []


async def test_requests_are_counted_by_release_and_by_how_they_ended(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        for _ in range(3):
            await site.ask()
        await site.http.post("/s/b/v1/messages", json={"model": "m", "messages": []})
        await site.http.post("/s/b/v1/chat/completions", content="no JSON")
        await site.post("/s/a/feedback", value=1)
        await site.server.look()
        await site.ask()
        await site.server.look()
        await site.server.look()
        rows = site.store.rows("SELECT release, api, status, SUM(requests) FROM traffic GROUP BY 1, 2, 3 ORDER BY 2, 3")
    assert rows == [(0, "chat/completions", "200", 4), (0, "chat/completions", "400", 1), (0, "messages", "400", 1)]


async def test_what_is_no_whole_text_is_refused(tmp_path):
    async with Site(tmp_path) as site:
        for path, body in (("consent", '{"consent": true, "person": "\\ud800"}'), ("feedback", '{"id": "\\ud800"}')):
            answer = await site.http.post(f"/s/a/{path}", content=body)
            assert answer.status_code == 400
            assert "the body cannot be written as JSON" in answer.json()["error"]["message"]


async def test_what_a_person_refused_is_kept_neither_after_a_pause_nor_after_a_restart(tmp_path):
    """Where consent is assumed, the refusal itself is all that is kept of the session."""
    async with Site(tmp_path, consent=True, idle_s=-1.0) as site:
        assert (await site.post("/s/a/consent", consent=False)).json() == {"consent": False}
        await site.ask()
        await site.server.look()
        await site.ask()
        assert site.store.turns("a") == ()
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        assert site.store.turns("a") == ()


async def test_without_assumed_consent_a_refusal_keeps_nothing(tmp_path):
    async with Site(tmp_path) as site:
        await site.post("/s/a/consent", consent=False)
        assert site.store.sessions() == []


async def test_of_requests_that_name_no_session_nothing_is_kept(tmp_path):
    """They are of many people, and nobody could take them back."""
    async with Site(tmp_path, consent=True) as site:
        answer = await site.http.post("/v1/chat/completions", json={"model": "m", "messages": HELLO})
        assert answer.status_code == 200
        assert site.store.sessions() == []
        named = await site.http.post(
            "/v1/chat/completions", json={"model": "m", "messages": HELLO}, headers={"x-session-id": "b"}
        )
        assert named.status_code == 200
        assert [one.key for one in site.store.sessions()] == ["b"]


@pytest.mark.parametrize("person", ["https://example.net/u/17", "a/b", "ü ñ", "100%", "u?x#y"])
async def test_a_person_of_any_name_can_be_removed(tmp_path, person):
    async with Site(tmp_path) as site:
        await site.ask()
        await site.post("/s/a/consent", consent=True, person=person)
        answer = await site.http.delete(f"/people/{quote(person, safe='')}")
        assert answer.json() == {"removed": ["a"]}


async def test_a_session_that_is_agreed_to_late_began_when_its_release_was_chosen(tmp_path):
    async with Site(tmp_path) as site:
        await site.ask()
        site.store.tell("serving", 0, "another one, as it were")
        await site.post("/s/a/consent", consent=True)
        assert site.store.age(site.store.session("a")) == 1


async def test_what_goes_wrong_with_one_duty_keeps_no_other_from_being_done(tmp_path, capsys):
    def fails():
        raise RecordError("the run folder is locked: let the other program end")

    async with Site(tmp_path, remove=fails) as site:
        (tmp_path / FREEZE).touch()
        for _ in range(2):
            await site.server.look()
        assert [event.kind for event in site.store.events()][-1] == "frozen"
    assert capsys.readouterr().err.count("the run folder is locked") == 1


async def test_ids_of_feedback_are_texts_or_numbers(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        for id in (0, "0", "x"):
            assert (await site.post("/s/a/feedback", value=0.25, id=id)).status_code == 200
        assert len(site.store.feedback("a")) == 2
        refused = await site.post("/s/a/feedback", value=1, id={"a": 1})
        assert (refused.status_code, "id = {'a': 1}: expected a text or a whole number" in refused.text) == (400, True)


async def test_who_goes_on_after_a_deletion_is_not_kept_again_unless_they_agree(tmp_path):
    """Clients send the whole conversation with each request, so all that was deleted would be back."""
    async with Site(tmp_path, consent=True) as site:
        reply = await site.ask(messages=[{"role": "user", "content": "my secret"}])
        more = [{"role": "user", "content": "my secret"}, reply, {"role": "user", "content": "More"}]
        await site.http.delete("/s/a")
        await site.ask(messages=more)
        assert site.store.sessions() == []
        await site.post("/s/b/consent", consent=True, person="jo")
        await site.http.delete("/people/jo")
        await site.ask("b", messages=more)
        assert site.store.sessions() == []
        await site.post("/s/b/consent", consent=True, person="jo")
        await site.ask("b")
        assert len(site.store.turns("b")) == 2


async def test_what_is_said_of_a_session_whose_person_does_not_agree_any_more_is_not_kept(tmp_path):
    async with Site(tmp_path, consent=True) as site:
        await site.ask()
        await site.post("/s/a/feedback", value=1, id="x")
        await site.post("/s/a/consent", consent=False)
        answer = await site.post("/s/a/feedback", value=-1, id="y")
        assert (answer.status_code, "its person agrees first" in answer.text) == (409, True)
        assert site.store.feedback("a") == [(0, 1.0)]
        await site.post("/s/a/feedback", value=None, id="x")
        assert site.store.feedback("a") == []
