"""The task that every client does, and the replies that a scripted model gives it.

There are two files to read and one to write. The model first asks for both files at once, then for the third to be
written, and ends with a text; to a further question it answers with another text. What it says follows from the prompt
alone, so that recorded requests can be answered again. Its samples are written as no client would write them again: a
thought, white space around texts, and JSON with spaces, escapes and keys in an order of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FILES = {"first.txt": "lamp: umbrellabird\n", "second.txt": "door: quokka41\n"}
ANSWER = "answer.txt"
PROMPT = "Read first.txt and second.txt, write what both say into answer.txt, and tell me when it is done."
FURTHER = "Thanks. Which bird was it?"
SEEN, STORED = "quokka41", "stored-ok-93"  # are in the answers of the tools alone
SHELL = {
    "read": ("cat first.txt", "cat  second.txt"),
    "write": "cat first.txt second.txt > answer.txt && echo stored-ok-$((90+3))",
}
END = "<|im_end|>"


@dataclass(frozen=True)
class Call:
    """Holds a call as the model writes it."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        inner = json.dumps(self.arguments, indent=1).replace('": ', '" :  ').replace("/", "\\/")
        return f'<tool_call>\n{{ "name":"{self.name}" ,\t"arguments" : {inner} }}\n</tool_call>'


@dataclass(frozen=True)
class Script:
    """Says what the model replies to one client, whose tools have names of their own. Without `last` it ends with a
    text. With `idle` it begins with a text, and calls nothing until it is told so."""

    read: tuple[Call, ...]
    write: Call
    last: Call | None = None
    side: str = "<tools>"  # a prompt without it asks for something else, such as a title
    idle: bool = False

    def __call__(self, prompt: str) -> str:
        if self.side not in prompt:
            return sampled("A name for it.", " Reading two files \n")
        if self.idle and prompt.count("<|im_start|>user") == 1:
            return sampled("How?", " I would read both files.\n")
        if SEEN not in prompt:
            return sampled("Both files, at once.", " \n I read both files. ", *self.read)
        if STORED not in prompt:
            return sampled('Now the third; it\'s "easy".', "", self.write)
        if FURTHER in prompt:
            return self._ended("  An umbrellabird.\n")
        return self._ended(" It is done: answer.txt has both. \n\n")

    def _ended(self, text: str) -> str:
        return sampled("That is all.", text if self.last is None else "", *filter(None, [self.last]))


def sampled(thought: str, text: str, *calls: Call) -> str:
    """Returns the text of a sample, after the `<think>` that begins it."""
    return "\n".join([f"{thought}\n</think>\n\n{text}", *map(str, calls)]) + END


FUNCTIONS = Script(  # the tools of programs/tools.py
    read=(Call("read", {"lines": 10.0, "name": "first.txt"}), Call("read", {"name": "second.txt", "lines": 5})),
    write=Call(
        "write", {"text": "lamp: umbrellabird\ndoor: quokka41\n", "name": "answer.txt", "label": "caf\u00e9 1/2"}
    ),
)


def shell(name: str, key: str = "command", last: Call | None = None, **more: Any) -> Script:
    """Returns the script for a client with a tool that runs commands of a shell, which are its argument `key`."""
    first, second = (Call(name, {**more, key: command}) for command in SHELL["read"])
    return Script(read=(first, second), write=Call(name, {key: SHELL["write"], **more}), last=last)


def edits(prompt: str) -> str:
    """Replies to a client that wants whole files in the text."""
    if FURTHER in prompt:
        return sampled("That is all.", "  An umbrellabird.\n")
    return sampled("The third file.", " \nanswer.txt\n```\nlamp: umbrellabird\ndoor: quokka41\n```\n\n")


def dspy(prompt: str) -> str:
    """Replies to DSPY's ReAct, whose calls are fields of a text."""
    if "[[ ## next_tool_name ## ]]" not in prompt:
        return sampled(
            "That is all.", "[[ ## reasoning ## ]]\nBoth.\n\n[[ ## answer ## ]]\n It is done. \n" + COMPLETED
        )
    read = [Call("read", {"name": name}) for name in FILES]
    words = {"umbrellabird": read[0], SEEN: read[1], STORED: FUNCTIONS.write}
    call = next((call for word, call in words.items() if word not in prompt), Call("finish", {}))
    fields = {
        "next_thought": "Go on.",
        "next_tool_name": call.name,
        "next_tool_args": json.dumps(call.arguments, indent=1),
    }
    return sampled("A step.", "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in fields.items()) + COMPLETED)


COMPLETED = "[[ ## completed ## ]]"
Reply = Callable[[str], str]


@dataclass(frozen=True)
class Delegating:
    """Says what the model replies to a client with sub-agents: the main agent gives the whole task to one of them,
    which does it by `work`."""

    delegate: Call
    work: Script

    def __call__(self, prompt: str) -> str:
        if self.work.side not in prompt or (SUBTASK in prompt and str(self.delegate) not in prompt):
            return self.work(prompt)
        if str(self.delegate) not in prompt:
            return sampled("Someone else can do it.", "", self.delegate)
        return sampled("That is all.", "  An umbrellabird.\n" if FURTHER in prompt else " It is done by another. \n")


@dataclass(frozen=True)
class Compacting:
    """Says what the model replies to a client whose window is full once both files are read: it is asked for a summary
    then, and goes on from that."""

    work: Script

    def __call__(self, prompt: str) -> str:
        if STORED in prompt or FURTHER in prompt or (self.work.side not in prompt and SEEN not in prompt):
            return self.work(prompt)
        if SEEN not in prompt:
            return sampled("Both files, at once.", LONG, *self.work.read)
        if SUMMARY not in prompt:
            return sampled("What was done.", SUMMARY)
        return sampled("It is clear.", "", self.work.write)


SUMMARY = (
    "Summary: both files were read; they say lamp: umbrellabird, and door: quokka41. Write that into answer.txt next."
)
LONG = (
    "I read both files, and this is why. "
    + "They are short, but what I say of them is not. " * 100
    + "So much for that."
)
SUBTASK = f"Your part: {PROMPT}"


def delegating(name: str, kind: str, work: Script) -> Delegating:
    """Returns the script for a client whose tool `name` gives a task to a sub-agent of this kind."""
    return Delegating(Call(name, {"subagent_type": kind, "prompt": SUBTASK, "description": "Work with files"}), work)
