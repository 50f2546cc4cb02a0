"""The torch sampler: continuous batching over a prefix cache that is kept between turns.

Each step runs one packed row of tokens through the model: one token of every context that is decoding, and chunks of
prompts (chunked prefill), so that a long prompt never stalls the others. Steps run in a thread of their own, and
environments go on meanwhile. Before each step the engine waits until the event loop has settled, so that the agents
which received the last step's results have submitted their next requests: when nothing but the engine is asynchronous,
the same requests always meet in the same steps, and the results are the same to the bit.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import numpy as np

from sojourn.abilities import PartLoad, Tell
from sojourn.backends.torch.kernels.cache import PAGE
from sojourn.backends.torch.models.adapters import Adapter
from sojourn.backends.torch.place import place_of
from sojourn.backends.torch.sampler.attention import Piece
from sojourn.backends.torch.sampler.decoders import Weights
from sojourn.backends.torch.sampler.engine_stats import EngineStats
from sojourn.backends.torch.sampler.limits import checked_choices, checked_tokens, require_samplable, require_scorable
from sojourn.backends.torch.sampler.model_runner import ModelRunner, Outcome, ScheduledPiece
from sojourn.backends.torch.sampler.prefix_cache import POLICY, Copy, Wait
from sojourn.backends.torch.sampler.publication import Publication
from sojourn.backends.torch.sampler.request import Decode, Request
from sojourn.backends.torch.sampler.sampling import DIVERGED
from sojourn.errors import InfrastructureError, ModelError
from sojourn.gauge import Gauge
from sojourn.timeline import Timeline
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams

QUIET_PASSES = 16  # passes of the event loop without a new request, after which it counts as settled
MAX_PASSES = 2000  # passes after which a step begins in any case
CONTEXTS_PER_ROW = 4  # contexts that the cache holds, at most, for each that can be sampled at the same time


class Engine:
    """Samples from a causal language model of transformers, in this process.

    The model is the engine's own: its attention is replaced and `publish` overwrites its weights. `stops` end a sample,
    `max_context` bounds prompt and sample together, `memory_bytes` the cache; a step computes at most `prefill_chunk`
    new prompt tokens and holds at most `max_batch` contexts. `decode` turns tokens into text, to find stop strings.
    Without `kernel`, torch computes what a compiled kernel would. With `compiled`, torch.compile is applied to parts of
    transformers' layers, where those run.

    `in_flight` says what becomes of samples that have begun when weights are published: they go on over the keys and
    values of the old weights ("keep"), over keys and values computed anew ("recompute"), or end first ("drain").

    Several models may be sampled in the same steps: adapters that are added to the engine's weights, which a request
    names by `SamplingParams.model` ("policy": the engine's own weights). They share no cached contexts. What is sampled
    does not depend on the adapters of other requests, nor on what steers them (`SamplingParams.steering`).

    A sample's `temperature` is 1 where it was drawn greedily: its logprobs are those of temperature 1.
    """

    def __init__(
        self,
        model: Any,
        *,
        stops: tuple[int, ...],
        max_context: int,
        memory_bytes: int = 2 << 30,
        prefill_chunk: int = 512,
        max_batch: int = 64,
        kernel: bool = True,
        compiled: bool = False,
        decode: Decode | None = None,
        in_flight: Literal["keep", "recompute", "drain"] = "keep",
        timeline: Timeline | None = None,
    ) -> None:
        self.version = 0
        self.max_context = max_context
        self._stops, self._decode = frozenset(stops), decode
        self._prefill_chunk, self._max_batch, self._in_flight = prefill_chunk, max_batch, in_flight
        cache_tokens = CONTEXTS_PER_ROW * max_batch * (max_context + PAGE)
        self._runner = ModelRunner(model, max_context, memory_bytes, cache_tokens, kernel=kernel, compiled=compiled)
        self._tree, self.device = self._runner.tree, self._runner.device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sojourn-engine")
        self._waiting: list[Request] = []
        self._active: list[Request] = []
        self._publications: list[Publication] = []
        self._adapters = set[str]()
        self._step_loop: asyncio.Task[None] | None = None
        self._event_count = 0  # requests submitted and answers given
        self._timeline = timeline or Timeline()
        self._closed = False
        self._totals: defaultdict[str, Any] = defaultdict(int)
        self._reported = self._loaded = EngineStats()
        self._gauge = Gauge()  # of requests

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        """Samples a continuation of the prompt. Raises `BudgetError` where prompt and `max_tokens` exceed
        `max_context`, `InfrastructureError` where the model fails."""
        return await self.sample_telling(prompt, params)

    async def sample_telling(self, prompt: Prompt, params: SamplingParams, tell: Tell | None = None) -> Sample:
        """Samples as `sample` does, and tells the tokens while they are drawn (`TellsTokens`)."""
        tokens = checked_tokens(prompt, self._runner.vocab_size)
        require_samplable(tokens, params, self.max_context)
        if params.stop_strings and self._decode is None:
            raise ModelError(f"stop_strings {params.stop_strings}: this engine was given no `decode`: use stop_tokens")
        self._require_model(params.model)
        choices = checked_choices(params, self._stops, self._runner.vocab_size)
        mark = None if params.steering is None else self._runner.mark(params.steering)
        future = asyncio.get_running_loop().create_future()
        request = Request(tokens, future, params, choices, params.model, tell, mark)
        request.restart(self.version)
        if (stop := request.stop(self._stops, self._decode)) is not None:
            return request.sample(stop)
        return await self._submit(request)

    async def score(self, prompt: Prompt, model: str = POLICY) -> FloatArray:
        """Returns the log-probability of every token of the prompt but the first, given those before it: (P - 1,)."""
        self._require_model(model)
        tokens = checked_tokens(prompt, self._runner.vocab_size)
        require_scorable(tokens, self.max_context)
        if len(tokens) == 1:
            return np.zeros(0, dtype=np.float32)
        return await self._submit(Request(tokens, asyncio.get_running_loop().create_future(), model=model))

    async def publish(self, weights: Weights, version: int) -> None:
        """Overwrites the named parameters between two steps, under a new version number.

        Cached contexts of other weights are dropped, those of adapters included. A sample that has begun goes on with
        the new weights, as `in_flight` says, and reports both versions; a request without a sampled token starts again.
        If this fails, some of the weights may have been replaced.
        """
        await self._publish(partial(self._runner.load, weights), version, None)

    async def publish_adapter(self, adapter: Adapter, version: int) -> None:
        """Samples the policy by an adapter from the next step on, under a new version number, as `publish` does by
        other weights. The engine's weights stay, and so do the cached contexts of the other adapters."""
        await self._publish(partial(self._runner.add_adapter, POLICY, adapter), version, POLICY)

    def begin_with(self, adapter: Adapter) -> None:
        """Samples the policy by an adapter from the beginning: call it before anything is asked."""
        self._runner.add_adapter(POLICY, adapter)

    async def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Adds an adapter, which requests may name from now on. Raises `ModelError` where it is not one of this model,
        or the name is taken."""
        if name in {POLICY, *self._adapters}:
            raise ModelError(f"an adapter '{name}' is added, but the engine has a model of that name: drop it first")
        await self._in_thread(partial(self._runner.add_adapter, name, adapter))
        self._adapters.add(name)

    async def drop_adapter(self, name: str) -> None:
        """Removes an adapter and its cached contexts, once no request names it any more; until then its name is
        taken."""
        if not self._closed and name not in self._adapters:
            raise ModelError(f"the adapter '{name}' is dropped, but there is none of that name")
        while asked := [r.future for r in self._active + self._waiting if r.model == name and not r.future.done()]:
            await asyncio.wait(asked)
        if self._closed:
            return
        self._adapters.remove(name)
        self._tree.forget(name)
        await self._in_thread(partial(self._runner.drop_adapter, name))

    async def forget(self) -> None:
        """Empties the cache: the next samples are computed as by a new engine."""
        await self.publish([], self.version)

    async def close(self) -> None:
        """Fails all open requests and ends the thread."""
        self._closed = True
        if self._step_loop is not None and not self._step_loop.done():
            self._step_loop.cancel()
            await asyncio.wait([self._step_loop])
        self._thread.shutdown()

    def stats(self) -> EngineStats:
        tree = self._tree
        return EngineStats(
            **self._totals,
            waiting=len(self._waiting),
            evicted_pages=tree.evicted,
            held_pages=tree.held,
            pages=tree.pages,
        )

    def metrics(self) -> dict[str, float]:
        """Returns the metrics since the last call: contexts in a step, the fraction of prompt tokens that were cached
        and the number of those that were not, a request's mean time in the queue, and the fraction of the cache in
        use."""
        before, self._reported = self._reported, self.stats()
        return self._reported.metrics(before)

    async def part_loads(self) -> list[PartLoad]:
        """Returns what the engine does (`ReportsParts`)."""
        before, self._loaded, busy = self._loaded, self.stats(), self._gauge.take()
        numbers = {
            "busy_share": busy.share,
            "requests_mean": busy.mean,
            "weights_version": self.version,
            **self._loaded.numbers(before, busy.over_s),
            "running": len(self._active),
        }
        facts = {**place_of(self.device), "engine": "sojourn"}
        return [PartLoad(name="sampler", kind="sampler", facts=facts, numbers=numbers)]

    def _require_model(self, name: str) -> None:
        if name not in {POLICY, *self._adapters}:
            known = ", ".join([POLICY, *sorted(self._adapters)])
            raise ModelError(f"the model '{name}' is asked, but this engine samples {known}: add_adapter comes first")

    async def _publish(self, load: Callable[[], None], version: int, model: str | None) -> None:
        publication = Publication(load, version, model, asyncio.get_running_loop().create_future())
        self._publications.append(publication)
        self._wake()
        await publication.future

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Does work between two steps."""
        self._require_open()
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _require_open(self) -> None:
        if self._closed:
            raise InfrastructureError("the engine is closed: open another one")

    # -- on the event loop: which requests take part in a step

    async def _submit(self, request: Request) -> Any:
        self._waiting.append(request)
        self._event_count += 1
        self._wake()
        with self._gauge.during():
            return await request.future

    def _wake(self) -> None:
        self._require_open()
        if self._step_loop is None or self._step_loop.done():
            self._step_loop = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop, settled = asyncio.get_running_loop(), -1
        try:
            while self._waiting or self._active or self._publications:
                if settled != self._event_count:  # else no request came or was answered since before the last step
                    await self._settle()
                if self._publications and not (self._in_flight == "drain" and self._active):
                    await self._apply(self._publications[0])
                    del self._publications[0]
                    continue
                before, settled = self._event_count, -1
                try:
                    with self._timeline.during("sample"):
                        scheduled, copies = self._admit()
                        if scheduled:
                            outcomes = await loop.run_in_executor(self._thread, self._runner.step, scheduled, copies)
                            self._deliver(outcomes)
                            settled = before
                except Exception as error:  # whatever a model raises: its requests fail, and the engine goes on
                    self._fail(self._active or self._waiting, f"a step failed: {error or repr(error)}", error)
        except asyncio.CancelledError:
            self._fail(self._active + self._waiting + self._publications, "it was closed meanwhile")
            self._publications = []
            raise

    async def _settle(self) -> None:
        """Lets the event loop run everything that can run now."""
        quiet, passes = 0, 0
        while quiet < QUIET_PASSES and passes < MAX_PASSES:
            before = self._event_count
            await asyncio.sleep(0)
            quiet, passes = (quiet + 1 if self._event_count == before else 0), passes + 1

    def _admit(self) -> tuple[list[ScheduledPiece], list[Copy]]:
        """Admits waiting requests. Returns the pieces of the next step, and the pages to copy before it."""
        for request in [r for r in self._active if r.future.done()]:
            self._release(request)
        copies, left = [], []
        waiting = [r for r in self._waiting if not r.future.done()]
        for number, request in enumerate(waiting):
            claim = None
            if len(self._active) < self._max_batch and not self._publications:  # which wait for the active ones
                claim = self._tree.claim(
                    request.context_tokens, request.room, model=request.model, reuse=request.params is not None
                )
            if claim is None:
                left += waiting[number:]
                break
            if isinstance(claim, Wait):
                left.append(request)
                continue
            copies += [claim.copy] if claim.copy else []
            request.context = claim.context
            if not request.drawn:
                request.restart(self.version)
            self._active.append(request)
            reused, queued = min(claim.reused, len(request.prompt)), time.perf_counter() - request.submitted
            self._count(reused_tokens=reused, requests=1, queued_s=queued)
        self._waiting = left
        return list(self._pieces()), copies

    def _pieces(self) -> Iterator[ScheduledPiece]:
        """Yields one token of each context that is decoding, and chunks of prompts. The oldest prompt gets at least
        half of the step's prompt tokens, and the shortest of the others come first: none starves, and short ones do not
        queue behind long ones."""
        uncomputed = {r: r.admitted_context.known - r.admitted_context.filled for r in self._active}
        prefilling = [request for request, count in uncomputed.items() if count > 1]
        granted = {request: 1 for request, count in uncomputed.items() if count == 1}
        if prefilling:
            oldest, *others = prefilling
            granted[oldest] = min(uncomputed[oldest], max(self._prefill_chunk // 2, 1))
            left = self._prefill_chunk - granted[oldest]
            for request in sorted(others, key=lambda r: uncomputed[r]):
                granted[request] = min(uncomputed[request], left)
                left -= granted[request]
            granted[oldest] += min(uncomputed[oldest] - granted[oldest], left)
        for request, count in granted.items():
            if count:
                context = request.admitted_context
                yield ScheduledPiece(request, Piece(context, context.filled, context.filled + count))

    def _deliver(self, outcomes: list[Outcome]) -> None:
        """Adds a step's results to their requests, and answers those that are complete."""
        prefilled = sampled = 0
        for request, end, drawn, scores in outcomes:
            context, prompt = request.admitted_context, len(request.prompt)
            prefilled += max(0, min(end, prompt) - context.filled)
            self._tree.fill(context, end)
            if drawn is not None and drawn.token < 0:
                self._fail([request], f"a step failed: {DIVERGED}", ArithmeticError(DIVERGED))
            elif drawn is not None:
                before = len(request.tokens)
                request.accept(*drawn, self.version)
                request.report()
                sampled += len(request.tokens) - before
                stop = request.stop(self._stops, self._decode)
                if stop is None:
                    new = request.tokens[before:]
                    self._tree.append(context, new if request.mark is None else request.mark(new))
                else:
                    self._answer(request, request.sample(stop))
            elif scores is not None:
                request.scores.append(scores)
                if end == prompt - 1:
                    self._answer(request, np.concatenate(request.scores))
        held = self._tree.held
        self._count(steps=1, rows=len(outcomes), prefill_tokens=prefilled, sampled_tokens=sampled, step_pages=held)

    def _answer(self, request: Request, answer: Sample | FloatArray) -> None:
        if not request.future.done():
            request.future.set_result(answer)
        self._event_count += 1
        self._release(request)

    def _release(self, request: Request, *, keep: bool = True) -> None:
        """Removes a request from the steps. With `keep`, what it has computed stays in the cache."""
        self._active.remove(request)
        self._tree.release(request.admitted_context, keep=keep)

    def _fail(self, failed: list[Any], reason: str, cause: Exception | None = None) -> None:
        """Answers requests with the failure, and drops what they had computed."""
        for one in list(failed):
            if not one.future.done():
                error = InfrastructureError(f"the engine gave no answer: {reason}")
                error.__cause__ = cause
                one.future.set_exception(error)
            if one in self._active:
                self._release(one, keep=False)
        self._waiting = [request for request in self._waiting if not request.future.done()]

    async def _apply(self, publication: Publication) -> None:
        """Loads new weights between two steps, and drops what was cached of the old ones."""
        loop = asyncio.get_running_loop()
        try:
            with self._timeline.during("publish"):
                await loop.run_in_executor(self._thread, publication.load)
            self.version = publication.version
            if not publication.future.done():
                publication.future.set_result(None)
        except Exception as error:  # whatever the weights' source raises goes to whoever published them
            if not publication.future.done():
                publication.future.set_exception(error)
        finally:
            if publication.model is None:
                self._tree.invalidate()
            else:
                self._tree.forget(publication.model)
        anew = self._in_flight == "recompute"
        changed = [request for request in self._active if publication.changes(request.model)]
        restarted = [request for request in changed if anew or not request.drawn]
        for request in restarted:
            self._release(request)
        self._waiting = restarted + self._waiting

    def _count(self, **more: float) -> None:
        for name, count in more.items():
            self._totals[name] += count
