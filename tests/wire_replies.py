"""Replies as the gateway's tests have them written and read back, and JSON that is nearly right."""

import json
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import strategies as st

from sojourn.gateway.parts import Parts
from sojourn.gateway.requests import Delta, Finish, Reply
from sojourn.types import Message, Role, Sample, Stop, ToolCall, Turn, Versions

CALLS = (
    ToolCall("look", {"at": "the  door\n", "deep": {"times": [1, 2.5, None, True]}}, "call1"),
    ToolCall("wait", {}, "call2"),
)
MESSAGES = [
    Message(Role.ASSISTANT, " The “door” is\tshut. \n\n", "  Hmm, é\n"),
    Message(Role.ASSISTANT, "Plain."),
    Message(Role.ASSISTANT, " I look. ", "A thought", calls=CALLS),
    Message(Role.ASSISTANT, "", "Only a thought before", calls=CALLS[:1]),
    Message(Role.ASSISTANT, "", calls=CALLS[1:]),
    Message(Role.ASSISTANT, "", "A thought that was cut"),
    Message(Role.ASSISTANT, ""),
]


def reply(message: Message, finish: Finish | None = None, stop_string: str = "") -> Reply:
    """Returns a reply of three tokens that says a message."""
    sample = Sample(np.array([5, 6, 7]), np.array([-0.5, -1, -2], dtype=np.float32), Versions(0, 0), Stop.END)
    return Reply(
        number=4,
        turn=Turn(-1, np.array([1, 2]), sample, message),
        message=message,
        finish=finish or ("calls" if message.calls else "stop"),
        prompt_tokens=20,
        cached_tokens=8,
        stop_string=stop_string,
        parts=Parts((b"a", "é".encode(), b"<end>"), text=range(2)),
    )


def deltas(message: Message, size: int) -> Iterator[Delta]:
    """Yields the first half of a thought and a text in pieces; the stream itself must write what is left."""
    for kind, text in (("thought", message.thought), ("text", message.text)):
        if kind == "text" and message.thought and not text:
            continue
        for start in range(0, len(text) if kind == "thought" else len(text) // 2, size):
            yield Delta(kind, text[start : start + size])


def streamed(stream, given: Reply, size: int = 3) -> list[str]:
    """Returns all frames of a reply that was told in pieces of a size; of one that was told at its end with size 0."""
    frames = list(stream.begin())
    for delta in deltas(given.message, size) if size else ():
        frames += stream.delta(delta)
    return frames + list(stream.end([given]))


def events(frames: Sequence[str]) -> list[dict]:
    """Returns the JSON of frames, each of which is one whole event, whose name is its type where it has one."""
    found = []
    for frame in frames:
        *names, data = frame.removesuffix("\n\n").split("\n")
        assert frame.endswith("\n\n")
        assert data.startswith("data: ")
        if data != "data: [DONE]":
            found.append(json.loads(data.removeprefix("data: ")))
            assert names in ([], [f"event: {found[-1].get('type')}"])
    return found


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just("\ud800")


def nearly(words: Sequence[str]) -> st.SearchStrategy:
    """JSON whose keys and texts are often those of an API, so that it goes deep into what reads it."""
    known = st.sampled_from(words)
    values = st.recursive(
        SCALARS | known,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(known | st.text(max_size=2), inner, max_size=5),
        max_leaves=25,
    )
    return st.dictionaries(known, values, max_size=8)
