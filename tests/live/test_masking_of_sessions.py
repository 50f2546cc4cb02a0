"""What is private in what people and programs send reaches neither the model nor the store."""

import time

from sojourn.serving.private import masks_private
from tests.live_site import HELLO, Site


async def test_private_things_reach_neither_the_model_nor_the_store(tmp_path):
    text = "I am jo@example.org, +49 30 1234567, card 4111 1111 1111 1111; 3 of 12 doors."
    async with Site(tmp_path, consent=True) as site:
        reply = await site.ask(messages=[{"role": "user", "content": text}])
        again = [{"role": "user", "content": text}, reply, {"role": "user", "content": "More"}]
        await site.ask(messages=again)
        seen = site.sampler.format.decode(site.sampler.prompts[0])
        assert "I am <email>, <phone>, card <card>; 3 of 12 doors." in seen
        assert [turn.parent for turn in site.store.turns("a")] == [-1, 0]  # the same text is masked alike
        for path in tmp_path.iterdir():
            assert b"example.org" not in path.read_bytes()
    async with Site(tmp_path / "open", consent=True, mask=False) as site:
        await site.ask(messages=[{"role": "user", "content": text}])
        assert text in site.sampler.format.decode(site.sampler.prompts[0])


async def test_the_requests_behind_turns_are_kept_without_what_is_private(tmp_path):
    text = "I am jo@example.org, +49 30 1234567, card 4111 1111 1111 1111."
    name = '"jo\\u0040example.org"'
    escaped = f'{{"model": "m", "messages": [{{"role": "user", "content": {name}}}], "user": {name}}}'
    async with Site(tmp_path, consent=True) as site:
        await site.ask(messages=[{"role": "user", "content": text}])
        answer = await site.http.post(
            "/s/a/v1/chat/completions", content=escaped, headers={"User-Agent": "jo@example.org"}
        )
        assert answer.status_code == 200
        first, second = site.store.turns("a")
        assert "I am <email>, <phone>, card <card>." in first.notes["request body"]
        assert second.notes["client"] == "<email>"
        assert second.notes["request body"].count("<email>") == 2
        assert second.notes["new context"].startswith("side")
        for path in tmp_path.iterdir():
            assert b"example.org" not in path.read_bytes()
        await site.http.delete("/s/a")
        for path in tmp_path.iterdir():
            assert b"<email>" not in path.read_bytes()
    async with Site(tmp_path / "open", consent=True, mask=False) as site:
        await site.ask(messages=[{"role": "user", "content": text}])
        assert text in site.store.turns("a")[0].notes["request body"]


def test_long_texts_are_masked_in_time_that_grows_with_their_length():
    mask = masks_private()
    for piece in ("a", "a.", "+1", "1 ", "01 ", "0", "(0", "1-", "DE89 ", "de89", "ab12 3", "+1.22", "0 (", "200 "):
        began = time.process_time()
        mask(piece * (20_000 // len(piece)))
        assert time.process_time() - began < 1.0
    assert mask("to a@b.co+c@d.org, " + "x" * 64 + "@example.org.") == "to <email><email>, <email>."


async def test_private_things_in_calls_of_tools_and_under_names_of_keys_are_masked_too(tmp_path):
    tool = {"name": "mail", "description": "ask jo@example.org", "parameters": {"type": "object", "properties": {}}}
    arguments = '{"to": "jo@example.org", "login": {"password": "hunter2!"}, "headers": {"Cookie": "id-4711-secret"}}'
    call = {"id": "c", "type": "function", "function": {"name": "mail", "arguments": arguments}}
    anthropic = {"type": "tool_use", "id": "c", "name": "mail", "input": {"password": "hunter2!", "n": 3}}
    async with Site(tmp_path, consent=True) as site:
        asked = {
            "model": "m", "tools": [{"type": "function", "function": tool}],
            "messages": [*HELLO, {"role": "assistant", "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": "c", "content": "sent"}],
        }  # fmt: skip
        assert (await site.http.post("/s/a/v1/chat/completions", json=asked)).status_code == 200
        asked = {
            "model": "m", "max_tokens": 9,
            "messages": [*HELLO, {"role": "assistant", "content": [anthropic]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}],
        }  # fmt: skip
        assert (await site.http.post("/s/b/v1/messages", json=asked)).status_code == 200
        seen = " ".join(site.sampler.format.decode(prompt) for prompt in site.sampler.prompts)
        assert '"to": "<email>"' in seen
        kept = " ".join(text for (text,) in site.store.rows("SELECT CAST(data AS TEXT) FROM turns"))
        for private in ("example.org", "hunter2", "4711"):
            assert private not in seen
            assert private not in kept
        deep = {"model": "m", "messages": HELLO, "user": "[" * 2000, "metadata": {"a": "[" * 900 + "]" * 900}}
        assert (await site.http.post("/s/c/v1/chat/completions", json=deep)).status_code == 200
        [turn] = site.store.turns("b")
        assert '"input": {"password": "<masked>", "n": 3}' in turn.notes["request body"]
