"""What the relay before a browser reads of a client's messages: whether they ask for a crash, and nothing else."""

import io
import json

import pytest

from sojourn.envs.browser import inside


class Socket(io.BytesIO):
    """A socket that keeps what is sent."""

    def sendall(self, data):
        self.write(data)


def frame(data, *, first=0x81, mask=b"\x01\x02\x03\x04"):
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([first]) + size + mask + inside.unmasked(data, mask)


CRASH = json.dumps({"id": 1, "method": "Browser.crash"})


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        (json.dumps({"id": 1, "method": "Runtime.evaluate", "params": {"expression": "1"}}), False),
        (CRASH, True),
        (CRASH.replace("B", "\\u0042").replace("crash", "cr\\u0061sh"), True),
        (
            json.dumps({"method": "Target.sendMessageToTarget", "params": {"message": CRASH.replace("c", "\\u0063")}}),
            True,
        ),
        (json.dumps({"method": "Page.navigate", "params": {"url": " CHROME://kill"}}), True),
        (json.dumps([[{"method": "Page.crash"}]]), True),
        ("no JSON", True),
        ("[" * 100_000, True),
    ],
)
def test_a_message_that_may_ask_for_a_crash_is_known(text, asks):
    assert inside.asks_for_crash(text) is asks


@pytest.mark.parametrize("cut", [0, 5, 20])
def test_frames_are_forwarded_as_they_are_and_read_across_parts(cut):
    inside.crash_asked.clear()
    data = CRASH.encode()
    frames = frame(data[:cut], first=0x01) + frame(b"?", first=0x89) + frame(data[cut:], first=0x80)
    harmless = frame(b"x" * 0 + b'{"a": "' + b"y" * 300 + b'"}')
    browser = Socket()
    inside.read_frames(io.BytesIO(harmless), browser)
    assert not inside.crash_asked.is_set()
    inside.read_frames(io.BytesIO(frames), browser)
    assert browser.getvalue() == harmless + frames
    assert inside.crash_asked.is_set()


@pytest.mark.parametrize(
    "first", [frame(b"{}", first=0xC1), b"\x81\x02{}", b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"0000"]
)
def test_frames_that_cannot_be_read_end_the_connection(first):
    browser = Socket()
    with pytest.raises(inside.BadRequestError):
        inside.read_frames(io.BytesIO(first), browser)
    assert browser.getvalue() == b""


def test_a_request_is_forwarded_without_extensions_and_origin():
    head = (
        b"GET /devtools/page/1 HTTP/1.1\r\nHost: 127.0.0.1:9222\r\nOrigin: http://a\r\nUpgrade: WebSocket\r\n"
        b"Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Key: abc=\r\nX: y\r\n\r\n"
    )
    upgrade, request = inside.forwarded(head)
    assert upgrade
    lines = ("get /devtools/page/1 http/1.1", "host: 127.0.0.1:9222", "sec-websocket-key: abc=", "connection: upgrade",
             "upgrade: websocket", "", "")  # fmt: skip
    assert sorted(request.decode().lower().split("\r\n")) == sorted(lines)


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"GET / HTTP/1.1\r\nUpgrade : websocket\r\n\r\n",
    ],
)  # fmt: skip
def test_a_request_that_could_be_read_in_two_ways_is_refused(head):
    with pytest.raises(inside.BadRequestError):
        inside.forwarded(head)
