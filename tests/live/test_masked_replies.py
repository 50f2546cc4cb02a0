"""A reply that looks private is known again though its client's requests are masked; what is the number of a card, an
account or a phone, and what is none."""

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


IBANS = (
    "DE89370400440532013000", "GB29NWBK60161331926819", "FR1420041010050500013M02606", "IT60X0542811101000000123456",
    "CH9300762011623852957", "NL91ABNA0417164300", "ES9121000418450200051332", "AT611904300234573201",
    "BE68539007547034", "PL61109010140000071219812874", "NO9386011117947", "MT84MALT011000012345MTLCAST001S",
    "LC55HEMM000100010012001200023015", "RO49AAAA1B31007593840000",
)  # fmt: skip


@pytest.mark.parametrize("iban", IBANS)
def test_an_iban_of_any_length_is_masked_however_it_is_written(iban):
    mask = masks_private()
    groups = " ".join(iban[at : at + 4] for at in range(0, len(iban), 4))
    for text in (iban, iban.lower(), groups, groups.lower(), groups.replace(" ", "-"), groups.replace(" ", "\xa0")):
        assert mask(f"My ref ab12 is at {text} and room 12, {text}.") == "My ref ab12 is at <iban> and room 12, <iban>."
    other = iban[:-1] + ("1" if iban[-1] != "1" else "2")
    assert "<iban>" not in mask(other)


def test_groups_of_an_iban_may_have_any_length_and_words_are_no_ibans():
    mask = masks_private()
    assert mask("GB29 NWBK 601613 31926819, FR14 20041 01005 0500013M026 06") == "<iban>, <iban>"
    for number in range(100):
        text = f"as in py{number:02} that has all of them, and v{number:02} is the best we had"
        assert mask(text) == text


@pytest.mark.parametrize(
    "phone",
    [
        "+49 30 1234567", "+1 555 123 4567", "+49 (0)170/1234567", "+1.555.123.4567", "0049 170 1234567",
        "0049 (0)170 1234567", "00491701234567", "0170 1234567", "01701234567", "0170/1234567", "0170 / 123 45 67",
        "(0170) 1234567", "030 12345-67", "01 23 45 67 89", "01.23.45.67.89", "0612345678", "020 7946 0958",
        "03-1234-5678", "0170\u20131234567", "0170\xa01234567", "(555) 123-4567", "(555)123-4567", "1 (555) 123-4567",
        "555-123-4567", "555.123.4567", "555 123 4567", "1-800-555-0199", "1 800 555 0199", "8 (912) 345-67-89",
    ],
)  # fmt: skip
def test_a_phone_is_masked_in_the_usual_written_forms(phone):
    mask = masks_private()
    assert mask(f"Call {phone}, room 12.") == "Call <phone>, room 12."
    assert mask(f"Call:{phone} 2026 times") in ("Call:<phone> 2026 times", "Call:<phone> times")


@pytest.mark.parametrize(
    "text",
    [
        "On 01-12-2026 0935, 01.12.2026 17:30, 01/12/26 1730 and 2026-12-01T08:33:36.012345678Z.",
        "0.0123456789 and 3.14159265358979, 1,000,000,000, 100 200 300, 123 456 789.",
        "192.168.100.200, 10.0.0.1:8080, v01.02.03, 5551234567, 12345678, sort 12-34-56",
        "abcdefab-0123-4567-8901-abcdefabcdef, 001 002 003 004, /files/0123456789/x, 1764560000001 ms",
        "978-3-16-148410-0, 0-306-40615-2, 3 of 12 doors, 09:00-17:00, 0x0123456789",
    ],
)
def test_other_numbers_are_left_as_they_are(text):
    assert masks_private()(text) == text


def test_a_link_to_a_phone_is_masked():
    assert masks_private()("tel:5551234567") == "tel:<phone>"
