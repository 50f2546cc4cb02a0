"""A model behind an endpoint that is asked for text: within a budget, and never twice for the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from sojourn.errors import ConfigError
from sojourn.models.answers import AnswerStore, KnownAnswer, earlier_answers
from sojourn.models.asking import Answer
from sojourn.models.endpoint import Completion, Endpoint, endpoint_of
from sojourn.models.spec import ServedModel
from sojourn.secrets import MASK
from sojourn.types import Message

BYTES_A_TOKEN = 3  # of a text whose tokens a server does not count; most tokenizers take more


@dataclass
class EndpointModel:
    """The model `models.NAME` behind a server of chat completions.

    An answer is known by both of the model's names, that of `[models]` and that at its server, the messages and the
    parameters: it is asked for once in a run folder, also where two ask at the same time, and where the first no longer
    waits; a reply without text is told as it is, and the next who asks the same asks the server. `ConfigError` stops
    the run once the budget is spent; requests that are under way then still end, so that a budget may be exceeded by
    what `concurrency` answers take. Where the server does not count tokens, one is counted for every three bytes of
    text.
    """

    name: str
    served: ServedModel
    answers: AnswerStore
    endpoint: Endpoint = field(init=False)
    _earlier: AnswerStore | None = field(init=False)  # of another run
    _free: asyncio.Semaphore = field(init=False)
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary[str, asyncio.Lock])
    _requests: dict[str, asyncio.Task[Answer]] = field(default_factory=dict[str, "asyncio.Task[Answer]"])  # by key

    def __post_init__(self) -> None:
        self.endpoint = endpoint_of(self.name, self.served)
        self._free = asyncio.Semaphore(self.served.concurrency)
        self._earlier = earlier_answers(self.served.answers) if self.served.answers else None

    async def ask(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float, seed: int, asker: str = ""
    ) -> Answer:
        texts = [{"role": str(message.role), "content": message.text} for message in messages]
        options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        content = json.dumps([self.name, self.served.model, texts, options], sort_keys=True)
        key = hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:  # whoever asks the same meanwhile waits for this answer
            if (under_way := self._requests.get(key)) is not None:  # of one who no longer waits for it
                await asyncio.wait({under_way})
            if (known := self._known(key)) is not None:
                cost = known.cost if known.asker == asker else 0.0
                return Answer(known.text, known.prompt_tokens, known.sampled_tokens, known.seconds, True, cost)
            request = await self._begun(key, lambda: self._asked(key, asker, texts, options))
            return await asyncio.shield(request)  # also who no longer waits for the answer has to pay for it

    async def _begun(self, key: str, asked: Callable[[], Coroutine[Any, Any, Answer]]) -> asyncio.Task[Answer]:
        """Begins a request once the budget and `concurrency` allow it. It is one of those at once until it is over,
        whether or not somebody still waits for it."""
        await self._free.acquire()
        try:
            self._require_budget()
            request = self._requests[key] = asyncio.create_task(asked())
        except BaseException:
            self._free.release()
            raise
        self.answers.awaited.add(request)
        request.add_done_callback(lambda _: self._requests.pop(key))
        request.add_done_callback(lambda _: self._free.release())
        request.add_done_callback(self.answers.awaited.discard)
        return request

    def _known(self, key: str) -> KnownAnswer | None:
        """Returns the answer of this run or, free of charge, that of the earlier one."""
        if (own := self.answers.find(key)) is not None or self._earlier is None:
            return own
        found = self._earlier.find(key)
        return None if found is None else found._replace(cost=0.0)

    async def _asked(self, key: str, asker: str, texts: list[dict[str, str]], options: dict[str, Any]) -> Answer:
        """Returns the server's answer, once it, and what it took, is kept."""
        began = time.monotonic()
        completion = await self.endpoint.complete(texts, **options)
        text = self._text(completion)
        prompt_tokens = completion.prompt_tokens or _estimate("".join(one["content"] for one in texts))
        sampled_tokens = completion.tokens or _estimate(text)
        priced = prompt_tokens * self.served.prompt_price + sampled_tokens * self.served.sampled_price
        spent = prompt_tokens, sampled_tokens, priced / 1e6, time.monotonic() - began
        self.answers.add(key, KnownAnswer(self.name, asker, text, *spent))
        return Answer(text, prompt_tokens, sampled_tokens, seconds=spent[-1], cost=spent[-2])

    def _text(self, completion: Completion) -> str:
        """Returns the text of a reply, empty where it has none; the key is in no record, even if a server repeats
        it."""
        content = completion.message.get("content")
        text = content if isinstance(content, str) else ""
        text = text.encode(errors="replace").decode()  # half a character, as of an emoji that max_tokens cut, is none
        secret = os.environ.get(self.served.key, "").strip() if self.served.key else ""
        return text.replace(secret, MASK) if secret else text

    def _require_budget(self) -> None:
        served = self.served
        if not (served.token_budget or served.cost_budget):
            return
        spent = self.answers.spent(self.name)
        for key, budget, taken in (
            ("token_budget", served.token_budget, spent.tokens),
            ("cost_budget", served.cost_budget, spent.cost),
        ):
            if budget and taken >= budget:
                raise ConfigError(
                    f"models.{self.name}.endpoint.{key} = {budget:g} is spent: its answers took {taken:g}. They are "
                    "kept, and none is asked for again: resume the run with a larger budget, such as "
                    f"sojourn train --resume RUN models.{self.name}.endpoint.{key}={2 * budget:g}"
                )


def _estimate(text: str) -> int:
    return -(-len(text.encode(errors="backslashreplace")) // BYTES_A_TOKEN)
