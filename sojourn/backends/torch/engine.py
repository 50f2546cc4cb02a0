"""The torch sampler: continuous batching over a cache that outlives the turn.

Each step runs one row of tokens through the model: one for every context that is being continued, and pieces of the
contexts that are new, so that a long prompt never stalls the others. Steps run in a thread of their own, and worlds go
on meanwhile. Before a step the event loop settles: whatever the last step's results set off has asked for its next
sample, so that, when nothing but the engine is asynchronous, the same requests always meet in the same steps and the
results are the same to the bit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from sojourn.backends.torch import fused, sampling
from sojourn.backends.torch.attention import Piece, Plan, Probe
from sojourn.backends.torch.cache import Claim, KeyValues, Slots, Wait
from sojourn.backends.torch.sampling import Choices, Row
from sojourn.errors import BudgetError, ConfigError, InfrastructureError, ModelError
from sojourn.types import FloatArray, IntArray, Prompt, Sample, SamplingParams, Stop, Versions

QUIET = 16  # passes of the event loop without a new request, after which it has settled
RESTLESS = 2000  # passes after which it never will
SLOTS_PER_ROW = 4  # contexts kept, at most, for each that can be sampled at the same time

Weights = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class EngineStats:
    """What an engine has done so far, and the requests that wait now."""

    sampled_tokens: int = 0
    prefill_tokens: int = 0  # prompt tokens that went through the model
    reused_tokens: int = 0  # prompt tokens that were in the cache
    steps: int = 0
    rows: int = 0  # contexts, summed over steps
    busy_s: float = 0.0
    waiting: int = 0

    @property
    def mean_batch(self) -> float:
        """Contexts in a step."""
        return self.rows / max(self.steps, 1)

    @property
    def reuse(self) -> float:
        """The share of prompt tokens that cost nothing."""
        return self.reused_tokens / max(self.reused_tokens + self.prefill_tokens, 1)


@dataclass(eq=False)
class Request:
    """A sample under way; a score, where `params` is None."""

    prompt: IntArray
    future: asyncio.Future[Any]
    params: SamplingParams | None = None
    choices: Choices | None = None
    slot: int = -1
    versions: Versions = Versions(0, 0)
    drawn: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    allowed: list[IntArray | None] = field(default_factory=list)
    scores: list[FloatArray] = field(default_factory=list)
    uniforms: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        if self.params is not None:
            self.uniforms = sampling.uniforms(self.params.seed, len(self.prompt), self.params.max_tokens)
            self._force()

    @property
    def context(self) -> IntArray:
        """The tokens to compute. A score needs no logits of the last one."""
        return self.prompt[:-1] if self.params is None else np.concatenate([self.prompt, self.tokens]).astype(np.int64)

    def row(self) -> Row:
        """How to draw the next token."""
        assert self.params is not None
        allowed = None if self.choices is None else self.choices.allowed()
        return Row(self.params, float(self.uniforms[len(self.tokens)]), allowed)

    def accept(self, token: int, logprob: float, row: Row, version: int) -> None:
        """A drawn token, and those that can only follow it."""
        self.drawn, self.versions = True, Versions(self.versions.oldest, version)
        self._add(token, logprob, row.allowed)
        self._force()

    def stop(self, stops: frozenset[int]) -> Stop | None:
        assert self.params is not None
        if self.tokens and self.choices is not None and self.choices.complete:
            return Stop.CHOICE
        if self.tokens and self.choices is None and self.tokens[-1] in stops:
            return Stop.END
        return Stop.LENGTH if len(self.tokens) >= self.params.max_tokens else None

    def sample(self, stop: Stop) -> Sample:
        assert self.params is not None
        return Sample(
            np.array(self.tokens, dtype=np.int64),
            np.array(self.logprobs, dtype=np.float32),
            self.versions,
            stop,
            self.params.temperature or 1.0,
            None if self.choices is None else tuple(self.allowed),
        )

    def restart(self, version: int) -> None:
        self.versions, self.scores = Versions(version, version), []

    def _add(self, token: int, logprob: float, allowed: IntArray | None) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.allowed.append(allowed)
        if self.choices is not None:
            self.choices.advance(token)

    def _force(self) -> None:
        """A token that is the only one allowed is certain: it is taken without asking the model."""
        assert self.params is not None
        while self.choices is not None and not self.choices.complete and len(self.tokens) < self.params.max_tokens:
            allowed = self.choices.allowed()
            if len(allowed) > 1:
                return
            self._add(int(allowed[0]), 0.0, allowed)


class Outcome(NamedTuple):
    """What a step gave one request: `row` and `token` where one was drawn, `scores` for a score."""

    request: Request
    end: int  # of the tokens computed now
    row: Row | None = None
    token: int = -1
    logprob: float = 0.0
    scores: FloatArray | None = None


@dataclass(eq=False)
class Publication:
    weights: Weights
    version: int
    future: asyncio.Future[None]


class Engine:
    """Samples from a causal language model of transformers, in this process.

    The model is the engine's own: its attention is replaced and `publish` overwrites its weights. `stops` end a sample,
    `max_context` bounds prompt and sample together, `memory_bytes` the cache; a step computes at most `prefill_chunk`
    new prompt tokens and holds at most `max_batch` contexts.

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
    ) -> None:
        self.version = 0
        self.max_context = max_context
        self._model = model.eval().requires_grad_(False)
        self._stops = frozenset(stops)
        self._prefill_chunk, self._max_batch = prefill_chunk, max_batch
        shapes = Probe().run(self._model)
        first = next(self._model.parameters())
        self._device = first.device
        context_bytes = max_context * sum(shape.size(first.dtype) for shape in shapes)
        if memory_bytes < context_bytes:
            raise ConfigError(
                f"one context of {max_context} tokens takes {context_bytes / 2**20:.0f} MiB of cache, but the sampler "
                f"has {memory_bytes / 2**20:.0f}: raise its memory or lower max_context"
            )
        count = min(memory_bytes // context_bytes, SLOTS_PER_ROW * max_batch)
        self._slots = Slots(count, max_context)
        self._cache = KeyValues(shapes, count, max_context, first.dtype, self._device)
        self._parameters = dict(self._model.named_parameters(remove_duplicate=False))
        self._vocabulary = self._model.get_input_embeddings().num_embeddings
        self._logits = fused.build(self._model) or self._through_transformers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sojourn-engine")
        self._waiting: list[Request] = []
        self._active: list[Request] = []
        self._publications: list[Publication] = []
        self._pump: asyncio.Task[None] | None = None
        self._arrivals = 0
        self._closed = False
        self._totals = EngineStats()

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        """Raises `BudgetError` where prompt and `max_tokens` exceed `max_context`, `InfrastructureError` where the
        model fails."""
        tokens = self._checked(prompt)
        if params.max_tokens < 1:
            raise BudgetError(f"max_tokens = {params.max_tokens}: expected room for at least one token to sample")
        if len(tokens) + params.max_tokens > self.max_context:
            raise BudgetError(
                f"a prompt of {len(tokens)} tokens and {params.max_tokens} to sample exceed the {self.max_context} "
                "of a context: shorten the prompt, lower max_tokens or raise max_context"
            )
        choices = Choices(params.choices, tuple(self._stops)) if params.choices else None
        self._check_ids([token for choice in params.choices for token in choice])
        request = Request(tokens, asyncio.get_running_loop().create_future(), params, choices)
        request.restart(self.version)
        if (stop := request.stop(self._stops)) is not None:
            return request.sample(stop)
        return await self._submit(request)

    async def score(self, prompt: Prompt) -> FloatArray:
        """The log-probability of every token of the prompt but the first, given those before it: (P - 1,)."""
        tokens = self._checked(prompt)
        if len(tokens) > self.max_context:
            raise BudgetError(f"a prompt of {len(tokens)} tokens exceeds the {self.max_context} of a context")
        if len(tokens) == 1:
            return np.zeros(0, dtype=np.float32)
        return await self._submit(Request(tokens, asyncio.get_running_loop().create_future()))

    async def publish(self, weights: Weights, version: int) -> None:
        """Overwrites the named parameters between two steps, under a new version number.

        Cached contexts of other weights are dropped. A sample under way goes on with the new weights, over keys and
        values that the old ones left, and says so in its versions; a request without a sampled token starts again.
        Where it fails, some of the weights may have been replaced.
        """
        publication = Publication(weights, version, asyncio.get_running_loop().create_future())
        self._publications.append(publication)
        self._wake()
        await publication.future

    async def close(self) -> None:
        """Fails what is under way and ends the thread."""
        self._closed = True
        if self._pump is not None and not self._pump.done():
            self._pump.cancel()
            await asyncio.wait([self._pump])
        self._thread.shutdown()

    def stats(self) -> EngineStats:
        return self._count(waiting=len(self._waiting))

    # -- on the event loop: who takes part in a step

    def _checked(self, prompt: Prompt) -> IntArray:
        if prompt.images:
            raise ModelError(f"a prompt has {len(prompt.images)} images: expected text only: this engine reads none")
        tokens = np.asarray(prompt.tokens, dtype=np.int64)
        if not len(tokens):
            raise ModelError("an empty prompt: expected at least one token to go on from")
        self._check_ids(tokens)
        return tokens

    def _check_ids(self, tokens: IntArray | list[int]) -> None:
        if len(tokens) and not (np.min(tokens) >= 0 and np.max(tokens) < self._vocabulary):
            raise ModelError(
                f"token ids from {np.min(tokens)} to {np.max(tokens)}: expected 0 to {self._vocabulary - 1}: "
                "the tokenizer is not this model's"
            )

    async def _submit(self, request: Request) -> Any:
        self._waiting.append(request)
        self._arrivals += 1
        self._wake()
        return await request.future

    def _wake(self) -> None:
        if self._closed:
            raise InfrastructureError("the engine is closed: open another one")
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting or self._active or self._publications:
                await self._settle()
                if self._publications:
                    await self._apply(self._publications.pop(0))
                    continue
                try:
                    pieces, copies = self._admit()
                    if pieces:
                        outcomes = await loop.run_in_executor(self._thread, self._step, pieces, copies)
                        self._deliver(outcomes)
                except Exception as error:  # whatever a model raises: its requests fail, and the engine goes on
                    self._fail(self._active, error)
        except asyncio.CancelledError as error:
            self._fail(self._active + self._waiting + self._publications, error)
            self._waiting, self._publications = [], []
            raise

    async def _settle(self) -> None:
        """Lets everything run that can run now."""
        quiet, passes = 0, 0
        while quiet < QUIET and passes < RESTLESS:
            before = self._arrivals
            await asyncio.sleep(0)
            quiet, passes = (quiet + 1 if self._arrivals == before else 0), passes + 1

    def _admit(self) -> tuple[dict[Piece, Request], list[Claim]]:
        """The pieces of the next step, and the prefixes to copy before it."""
        for request in [r for r in self._active if r.future.done()]:
            self._release(request)
        claims, left = [], []
        waiting = [r for r in self._waiting if not r.future.done()]
        for number, request in enumerate(waiting):
            claim = None
            if len(self._active) < self._max_batch:
                claim = self._slots.claim(request.context, self.version, reuse=request.params is not None)
            if claim is None:
                left += waiting[number:]
                break
            if isinstance(claim, Wait):
                left.append(request)
                continue
            claims.append(claim)
            request.slot = claim.slot
            request.restart(self.version)
            self._active.append(request)
            self._totals = self._count(reused_tokens=min(claim.reused, len(request.prompt)))
        self._waiting = left
        return dict(self._pieces()), claims

    def _pieces(self) -> Iterator[tuple[Piece, Request]]:
        budget = self._prefill_chunk
        for request in self._active:
            begin, end = int(self._slots.filled[request.slot]), int(self._slots.known[request.slot])
            if end - begin > 1:
                end = min(end, begin + budget)
                budget -= end - begin
            if end > begin:
                yield Piece(request.slot, begin, end), request

    def _deliver(self, outcomes: list[Outcome]) -> None:
        """Takes a step's results over, and answers the requests that are complete."""
        self._totals = self._count(steps=1, rows=len(outcomes))
        for outcome in outcomes:
            request = outcome.request
            begin = int(self._slots.filled[request.slot])
            self._slots.filled[request.slot] = outcome.end
            self._totals = self._count(prefill_tokens=max(0, min(outcome.end, len(request.prompt)) - begin))
            if request.params is None:
                self._deliver_scores(request, outcome)
            elif outcome.row is not None:
                self._deliver_token(request, outcome)

    def _deliver_scores(self, request: Request, outcome: Outcome) -> None:
        assert outcome.scores is not None
        request.scores.append(outcome.scores)
        if outcome.end == len(request.prompt) - 1:
            self._answer(request, np.concatenate(request.scores))

    def _deliver_token(self, request: Request, outcome: Outcome) -> None:
        assert outcome.row is not None
        before = len(request.tokens)
        request.accept(outcome.token, outcome.logprob, outcome.row, self.version)
        self._totals = self._count(sampled_tokens=len(request.tokens) - before)
        stop = request.stop(self._stops)
        if stop is None:
            self._slots.append(request.slot, request.tokens[before:])
        else:
            self._answer(request, request.sample(stop))

    def _answer(self, request: Request, answer: Sample | FloatArray) -> None:
        if not request.future.done():
            request.future.set_result(answer)
        self._release(request)

    def _release(self, request: Request) -> None:
        self._active.remove(request)
        self._slots.release(request.slot, self.version)

    def _fail(self, failed: list[Any], cause: BaseException) -> None:
        """Answers with the failure; what the requests had computed is forgotten."""
        for one in list(failed):
            if not one.future.done():
                error = InfrastructureError(f"the engine's step failed ({type(cause).__name__}: {cause})")
                error.__cause__ = cause
                one.future.set_exception(error)
            if one in self._active:
                self._slots.forget(one.slot)
                self._release(one)

    async def _apply(self, publication: Publication) -> None:
        """Between steps: the new weights, and nothing that the old ones left."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._load, publication.weights)
            self.version = publication.version
            publication.future.set_result(None)
        except Exception as error:  # whatever the weights' source raises goes to whoever published them
            publication.future.set_exception(error)
        finally:
            self._slots.outdate()
        for request in self._active:
            if not request.drawn:
                self._slots.forget(request.slot)
                self._slots.version[request.slot] = self.version
                request.restart(self.version)

    def _count(self, *, waiting: int = 0, **more: float) -> EngineStats:
        values = {**vars(self._totals), "waiting": waiting}
        return EngineStats(**{name: value + more.get(name, 0) for name, value in values.items()})

    # -- in the engine's thread

    @torch.inference_mode()
    def _step(self, pieces: dict[Piece, Request], claims: list[Claim]) -> list[Outcome]:
        began = time.monotonic()
        for claim in claims:
            self._cache.open(claim.slot)
            if claim.donor is not None:
                self._cache.copy(claim.donor, claim.slot, claim.reused)
        plan = Plan(self._cache, list(pieces), self._device)
        tokens = np.concatenate([self._slots.tokens[p.slot, p.begin : p.end] for p in plan.pieces])
        wanted: list[tuple[Request, Piece, slice]] = []  # with the rows of logits that each needs
        keep: list[np.ndarray] = []
        row = count = 0
        for piece in plan.pieces:
            request, row = pieces[piece], row + piece.end - piece.begin
            whole = request.params is None
            kept = np.arange(row - (piece.end - piece.begin) if whole else row - 1, row)
            kept = kept if whole or piece.end == self._slots.known[piece.slot] else kept[:0]
            wanted.append((request, piece, slice(count, count := count + len(kept))))
            keep.append(kept)
        index = torch.from_numpy(np.concatenate(keep)).to(self._device)
        logits = self._logits(torch.from_numpy(tokens).to(self._device), plan, index)
        outcomes = self._read(logits, wanted)
        self._totals = self._count(busy_s=time.monotonic() - began)
        return outcomes

    def _read(self, logits: torch.Tensor, wanted: list[tuple[Request, Piece, slice]]) -> list[Outcome]:
        """Draws and scores from a step's logits."""
        drawing = [(r, rows.start, r.row()) for r, _, rows in wanted if r.params is not None and rows.stop > rows.start]
        drawn = {}
        if drawing:
            every = len(drawing) == len(logits)
            chosen = logits if every else logits[[at for _, at, _ in drawing]]
            result = sampling.draw(chosen, [row for _, _, row in drawing])
            drawn = {
                request: (row, token, logprob)
                for (request, _, row), token, logprob in zip(drawing, result.tokens, result.logprobs, strict=True)
            }
        outcomes = []
        for request, piece, rows in wanted:
            if request.params is None:
                targets = torch.from_numpy(request.prompt[piece.begin + 1 : piece.end + 1]).to(self._device)
                outcomes.append(Outcome(request, piece.end, scores=sampling.score(logits[rows], targets)))
            else:
                outcomes.append(Outcome(request, piece.end, *drawn.get(request, ())))
        return outcomes

    def _through_transformers(self, tokens: torch.Tensor, plan: Plan, keep: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after the kept tokens."""
        return self._model(
            input_ids=tokens[None],
            position_ids=plan.positions[None],
            use_cache=False,
            logits_to_keep=keep,
            sojourn_plan=plan,
        ).logits[0]

    @torch.no_grad()
    def _load(self, weights: Weights) -> None:
        for name, tensor in weights:
            parameter = self._parameters.get(name)
            if parameter is None or parameter.shape != tensor.shape:
                has = "no such parameter" if parameter is None else f"shape {tuple(parameter.shape)} there"
                raise ModelError(
                    f"published '{name}' of shape {tuple(tensor.shape)}, but the sampler's model has {has}: "
                    "trainer and sampler must be copies of one model"
                )
            parameter.copy_(tensor)
