"""Engines over torch, side by side with the same weights: Sojourn's own, and transformers' two ways to generate.

A contender is opened in a process of its own (`worker.py`) and loads the model there. All sample at temperature 1,
from every token, and none stops before its count.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from sojourn.backends.torch.models import loading
from sojourn.backends.torch.sampler.engine import Engine
from sojourn.types import Prompt, SamplingParams

Tokens = list[int]
PAGE = 32  # tokens that continuous batching keeps and shares together (its default, 256, shares far less)
SPARE = 20_000  # tokens of cache that it has beyond what all contexts take


class Setup(NamedTuple):
    """The model, how it is computed, and the largest sizes that will be asked for."""

    model: str
    dtype: str
    device: str
    threads: int
    max_context: int
    batch: int

    def load(self) -> Any:
        torch.set_num_threads(self.threads)
        return loading.load(self.model, self.dtype).model.to(self.device)


class Contender(Protocol):
    def greedy(self, prompts: Sequence[Tokens], count: int) -> list[Tokens]:
        """The likeliest continuations: all contenders must agree on them."""
        ...

    def read(self, prompts: Sequence[Tokens]) -> None:
        """Computes prompts that share nothing, and draws one token each."""
        ...

    def prime(self, contexts: Sequence[Tokens]) -> None:
        """Computes equally long contexts that share nothing, all but their last tokens."""
        ...

    def choose(self, batch: int) -> None:
        """Makes ready to go on from so many of them."""
        ...

    def more(self, count: int) -> None:
        """Draws so many tokens in each of them."""
        ...

    def episodes(self, shared: Tokens, shown: Sequence[Sequence[Tokens]], count: int) -> None:
        """Plays a group: `shown[e][t]` is what episode e is shown at turn t, at which it says `count` tokens."""
        ...

    def close(self) -> None: ...


class Sojourn:
    """Each context is a coroutine, as in a rollout."""

    def __init__(self, setup: Setup) -> None:
        self.loop, self.seed, model = asyncio.new_event_loop(), 0, setup.load()
        text = model.config.get_text_config()
        token = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * model.dtype.itemsize
        memory = (setup.batch + 2) * setup.max_context * token
        self.engine = Engine(model, stops=(), max_context=setup.max_context, memory_bytes=memory, max_batch=setup.batch)

    def greedy(self, prompts: Sequence[Tokens], count: int) -> list[Tokens]:
        return self.loop.run_until_complete(self._all(prompts, count, temperature=0.0))

    def gap(self, prompts: Sequence[Tokens], own: Sequence[Tokens], others: Sequence[Tokens]) -> float:
        """By how many nats the likeliest token is likelier than the other one, where continuations part; the most."""

        async def last(tokens: Tokens) -> float:
            return float((await self.engine.score(Prompt(np.array(tokens))))[-1])

        async def between(prompt: Tokens, one: Tokens, other: Tokens) -> float:
            place = next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
            if place is None:
                return 0.0
            return await last([*prompt, *one[: place + 1]]) - await last([*prompt, *other[: place + 1]])

        each = [between(*of) for of in zip(prompts, own, others, strict=True)]
        return max([self.loop.run_until_complete(one) for one in each])

    def read(self, prompts: Sequence[Tokens]) -> None:
        self.loop.run_until_complete(self.engine.forget())
        self.loop.run_until_complete(self._all(prompts, 1))

    def prime(self, contexts: Sequence[Tokens]) -> None:
        self.contexts = contexts
        self.read(contexts)

    def choose(self, batch: int) -> None:
        self.prompts = self.contexts[:batch]

    def more(self, count: int) -> None:
        self.loop.run_until_complete(self._all(self.prompts, count))

    def episodes(self, shared: Tokens, shown: Sequence[Sequence[Tokens]], count: int) -> None:
        async def play(turns: Sequence[Tokens]) -> None:
            context = list(shared)
            for turn in turns:
                context += turn
                context += await self._sample(context, count)

        async def group() -> None:
            await self.engine.forget()
            await asyncio.gather(*(play(turns) for turns in shown))

        self.loop.run_until_complete(group())

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.close())

    async def _sample(self, tokens: Tokens, count: int, temperature: float = 1.0) -> Tokens:
        self.seed += 1
        params = SamplingParams(count, temperature=temperature, seed=self.seed)
        return (await self.engine.sample(Prompt(np.array(tokens)), params)).tokens.tolist()

    async def _all(self, prompts: Sequence[Tokens], count: int, temperature: float = 1.0) -> list[Tokens]:
        return await asyncio.gather(*(self._sample(prompt, count, temperature) for prompt in prompts))


class Generate:
    """transformers' `generate`, a batch at a time; each turn reads the whole context again, as trainers use it."""

    def __init__(self, setup: Setup) -> None:
        self.model: Any = setup.load()
        self.base: Any = None  # the cache of all contexts but their last tokens
        self.cache: Any = None  # of those that go on

    def greedy(self, prompts: Sequence[Tokens], count: int) -> list[Tokens]:
        return [self._generate([prompt], count, do_sample=False)[0][len(prompt) :] for prompt in prompts]

    def read(self, prompts: Sequence[Tokens]) -> None:
        self.base = self.cache = None
        self._generate(prompts, 1)

    def prime(self, contexts: Sequence[Tokens]) -> None:
        self.contexts, self.cache = contexts, None
        self.base = self._read([context[:-1] for context in contexts])

    def choose(self, batch: int) -> None:
        self.prompts, self.cache = self.contexts[:batch], None
        self.cache = copy.deepcopy(self.base)
        self.cache.batch_select_indices(torch.arange(batch, device=self.model.device))

    def more(self, count: int) -> None:
        if extra := self.cache.get_seq_length() + 1 - len(self.prompts[0]):
            self.cache.crop(-extra)
        self._generate(self.prompts, count, past_key_values=self.cache)

    def episodes(self, shared: Tokens, shown: Sequence[Sequence[Tokens]], count: int) -> None:
        contexts = [list(shared) for _ in shown]
        for turns in zip(*shown, strict=True):
            contexts = self._turn([[*c, *turn] for c, turn in zip(contexts, turns, strict=True)], count)

    def close(self) -> None:
        pass

    def _turn(self, contexts: Sequence[Tokens], count: int) -> list[Tokens]:
        return self._generate(contexts, count)

    def _read(self, contexts: Sequence[Tokens]) -> Any:
        ids = torch.tensor(contexts, device=self.model.device)
        with torch.inference_mode():
            return self.model(ids, use_cache=True, logits_to_keep=1).past_key_values

    def _generate(self, prompts: Sequence[Tokens], count: int, **options: Any) -> list[Tokens]:
        ids = torch.tensor(prompts, device=self.model.device)
        options = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, **options}
        options |= {"max_new_tokens": count, "min_new_tokens": count, "pad_token_id": 0}
        with torch.inference_mode():
            return self.model.generate(ids, attention_mask=torch.ones_like(ids), **options).tolist()


class KeptGenerate(Generate):
    """`generate` that is handed its own cache back at the next turn, and begins with the shared prompt's: what can be
    done by hand where all contexts of a batch are equally long."""

    def episodes(self, shared: Tokens, shown: Sequence[Sequence[Tokens]], count: int) -> None:
        self.cache = self._read([shared])
        self.cache.batch_repeat_interleave(len(shown))
        super().episodes(shared, shown, count)

    def _turn(self, contexts: Sequence[Tokens], count: int) -> list[Tokens]:
        return self._generate(contexts, count, past_key_values=self.cache)


class Continuous:
    """transformers' continuous batching, with its sharing of prefixes."""

    def __init__(self, setup: Setup) -> None:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        self.model = setup.load()
        blocks = (setup.batch * setup.max_context + SPARE) // PAGE
        self.batching = ContinuousBatchingConfig(page_size=PAGE, num_blocks=blocks, max_batch_tokens=512)
        self.manager = self._start(do_sample=True, top_k=0, top_p=1.0)

    def _start(self, **options: Any) -> Any:
        from transformers import GenerationConfig

        config = GenerationConfig(eos_token_id=-1, max_new_tokens=64, **options)
        manager = self.model.init_continuous_batching(config, self.batching)
        manager.start()
        return manager

    def greedy(self, prompts: Sequence[Tokens], count: int) -> list[Tokens]:
        self.manager.stop(block=True, timeout=10)
        self.manager = self._start(do_sample=False)
        found = self._generate(prompts, count)
        self.manager.stop(block=True, timeout=10)
        self.manager = self._start(do_sample=True, top_k=0, top_p=1.0)
        return found

    def read(self, prompts: Sequence[Tokens]) -> None:
        self._generate(prompts, 1)

    def prime(self, contexts: Sequence[Tokens]) -> None:
        self.contexts = contexts
        self._generate(contexts, 2)  # what ends at its first token is not kept for others

    def choose(self, batch: int) -> None:
        self.prompts = self.contexts[:batch]
        self.more(2)  # where its pages were taken for others, they are computed again

    def more(self, count: int) -> None:
        self._generate(self.prompts, count)

    def episodes(self, shared: Tokens, shown: Sequence[Sequence[Tokens]], count: int) -> None:
        contexts = [list(shared) for _ in shown]
        for turns in zip(*shown, strict=True):
            contexts = [[*c, *turn] for c, turn in zip(contexts, turns, strict=True)]
            said = self._generate(contexts, count)
            contexts = [[*c, *s] for c, s in zip(contexts, said, strict=True)]

    def close(self) -> None:
        self.manager.stop(block=True, timeout=10)

    def _generate(self, prompts: Sequence[Tokens], count: int) -> list[Tokens]:
        ids = [self.manager.add_request(list(prompt), max_new_tokens=count) for prompt in prompts]
        done: dict[Any, Tokens] = {}
        while len(done) < len(ids):
            result = self.manager.get_result(timeout=120)
            if result is None or result.error:
                raise RuntimeError(f"continuous batching failed: {result}")
            if result.is_finished():
                done[result.request_id] = list(result.generated_tokens)
        return [done[i] for i in ids]
