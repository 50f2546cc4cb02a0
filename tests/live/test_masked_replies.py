"""A reply that looks private is known again though its client's requests are masked, and digits of no card are not."""

from __future__ import annotations

import pytest

from sojourn.serving.private import masks_private
from tests.gateway_sessions import said
from tests.live_site import HELLO, Site


@pytest.mark.parametrize(
    "text", ["Plain.", "Write to help@example.com.", "git clone git@github.com:a/b.git", "Call +49 30 1234567 now."]
)
async def test_a_masked_reply_is_extended(tmp_path, text):
    async with Site(tmp_path, script=lambda prompt: said(text), consent=True) as site:
        reply = await site.ask()
        assert reply["content"] == text
        await site.ask(messages=[*HELLO, reply, {"role": "user", "content": "More"}])
        assert [turn.parent for turn in site.store.turns("a")] == [-1, 0]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Created at 1764560000001 ms.", "Created at 1764560000001 ms."),
        ("4111 1111 1111 1111 is mine", "<card> is mine"),
        ("4111-1111-1111-1111, 5500005555555559", "<card>, <card>"),
        ("room 12 4111 1111 1111 1111 9 times", "room 12 <card> 9 times"),
        ("4111 1111 1111 1112", "4111 1111 1111 1112"),
    ],
)
def test_a_card_is_told_from_other_digits_by_its_checksum(text, masked):
    mask = masks_private()
    assert mask(text) == masked
    assert mask(masked) == masked
