"""Sessions of the gateway over a scripted sampler, whose samples are not tokenised as their text would be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sojourn.backends.torch.models import tiny
from sojourn.gateway.requests import ChatRequest
from sojourn.gateway.session import Session
from sojourn.protocols import AgentContext
from sojourn.render.chatml import ChatML
from sojourn.render.turns import Turns
from sojourn.types import Ending, FloatArray, Message, Prompt, Role, Sample, SamplingParams, Stop, Tool, Turn, Versions

LOOK = Tool("look", "Look around.", {"type": "object", "properties": {"at": {"type": "string"}}})
Script = Callable[[str], Message | str]


def renderer(*, thinking: bool = False) -> Turns:
    return ChatML(thinking=thinking).bind(tiny.build_tokenizer())


def said(text: str, thought: str = "", *calls) -> Message:
    return Message(Role.ASSISTANT, text, thought, calls=tuple(calls))


def user(text: str) -> Message:
    return Message(Role.USER, text)


@dataclass
class OddSampler:
    """Says what `script` makes of the prompt's text, each character a token of its own. It keeps all prompts and
    samples."""

    format: Turns
    script: Script
    version: int = 0
    wait: Callable[[], object] | None = None  # is awaited before it answers
    prompts: list[list[int]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        reply = self.script(self.format.decode(prompt.tokens))
        if self.wait is not None:
            await self.wait()
        tokens = odd(self.format, reply)
        stop = Stop.END if tokens[-1] in self.format.stops else Stop.LENGTH
        if params.choices:
            tokens, stop = list(params.choices[0]), Stop.CHOICE
        for text in params.stop_strings:
            decoded = [self.format.decode(tokens[: n + 1]) for n in range(len(tokens))]
            if (at := next((n for n, so_far in enumerate(decoded) if text in so_far), None)) is not None:
                tokens, stop = tokens[: at + 1], Stop.END
        logprobs = -np.arange(1, len(tokens) + 1, dtype=np.float32) / 7
        sample = Sample(np.array(tokens), logprobs, Versions(self.version, self.version), stop)
        self.prompts.append(prompt.tokens.tolist())
        self.params.append(params)
        self.samples.append(sample)
        await asyncio.sleep(0)
        return sample

    async def score(self, prompt: Prompt) -> FloatArray:
        raise NotImplementedError

    async def close(self) -> None: ...


def odd(format: Turns, reply: Message | str) -> list[int]:
    """Returns the tokens of a reply, each character a token of its own; a text is taken as it is, without an end."""
    tokens = format.codec.control(reply) if isinstance(reply, str) else format.encode_reply(reply)
    controls = set(format.codec.controls.values())
    split: list[int] = []
    for token in tokens:
        text = format.decode([token])
        letters = [format.codec.control(letter) for letter in text]
        kept = token in controls or len(text) < 2 or "\ufffd" in text or any(len(one) != 1 for one in letters)
        split += [token] if kept else [one for letter in letters for one in letter]
    return split


def replies(*said: Message | str) -> Script:
    left = list(said)
    return lambda prompt: left.pop(0)


def session(
    script: Script, key: str = "s", *, thinking: bool = False, max_context: int = 4096, turns: int = 0, wait=None
) -> tuple[Session, OddSampler]:
    format = renderer(thinking=thinking)
    sampler = OddSampler(format, script, wait=wait)
    context = AgentContext(name="agent", renderer=format, sampler=sampler, params=SamplingParams(512),
                           max_context=max_context)  # fmt: skip
    return Session(key, context, turns_at_most=turns), sampler


def asked(*messages: Message, tools: Sequence[Tool] = (), **more) -> ChatRequest:
    return ChatRequest(messages=messages, tools=tuple(tools), **more)


def exact(one: Session, sampler: OddSampler) -> None:
    """Checks that the recorded turns are what was sampled, from the prompts that were sampled from."""
    trajectory = one.trajectory(Ending.DONE)
    assert len(trajectory.turns) == len(sampler.samples)
    recorded = [(trajectory.prompt(n).tolist(), turn.sample.tokens.tolist(), turn.sample.logprobs.tolist())
                for n, turn in enumerate(trajectory.turns)]  # fmt: skip
    sampled = [(prompt, sample.tokens.tolist(), sample.logprobs.tolist())
               for prompt, sample in zip(sampler.prompts, sampler.samples, strict=True)]  # fmt: skip
    assert sorted(recorded) == sorted(sampled)


def cause(turn: Turn) -> str:
    """Returns why a turn began a new context; empty where it extended another."""
    named = [name.removeprefix("window_") for name in turn.info if name.startswith("window_")]
    return named[0] if named else ("first" if turn.parent < 0 else "")
