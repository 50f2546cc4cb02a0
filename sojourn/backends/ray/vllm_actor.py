"""The actor that samples with vLLM, in place of our engine; what it is asked and answers is the same."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from sojourn.backends.ray import vllm_mapping as mapping
from sojourn.backends.ray.cluster import code_digest, prepare_actor
from sojourn.backends.ray.installed_vllm import require_vllm
from sojourn.backends.ray.reports import Report
from sojourn.backends.ray.sampler_actor import OpenedSampler, SamplerReport, require_version
from sojourn.backends.ray.vllm_start import SETTINGS, ModelFacts, engine_arguments, facts_of, folder_of
from sojourn.errors import InfrastructureError, ModelError
from sojourn.threads import run_to_end
from sojourn.types import FloatArray, Prompt, Sample, SamplingParams

if TYPE_CHECKING:
    from sojourn.backends.ray.packed_weights import PackedWeights
    from sojourn.backends.ray.stored_weights import StoredWeights
    from sojourn.backends.torch.backend import Torch
    from sojourn.backends.torch.sampler.engine_stats import EngineStats
    from sojourn.backends.torch.sampler.request import Request
    from sojourn.models.spec import Model

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Asked:
    """A request that vLLM computes."""

    begun: bool = False  # whether any token was drawn
    dropped: bool = False  # it is to be asked again, as the weights are others now


class VLLMActor:
    """Samples with vLLM's engine, which has processes of its own.

    Requests wait in here while new weights are loaded. What becomes of those that vLLM computes meanwhile is said by
    `backend.in_flight`: "recompute" (the default here) computes their cached keys and values anew, "keep" goes on with
    the old ones, "drain" lets them end first. With the former two, those without any token are asked again. Where the
    engine dies, or may hold parts of other weights, this process ends, and Ray starts it anew.
    """

    def __init__(self, backend: Torch, model: Model, seed: int, stops: tuple[int, ...], gpus: float) -> None:
        self.version = 0
        self._backend, self._model, self._seed, self._gpus = backend, model, seed, gpus
        self._stops, self._in_flight = frozenset(stops), backend.in_flight or "recompute"
        self._llm: Any = None
        self._facts = ModelFacts(0, 0, None)
        self._counts = Counts()
        self._asked: dict[str, Asked] = {}
        self._numbers, self._caches = count(), 0
        self._loading, self._ready = asyncio.Lock(), asyncio.Event()

    async def open(self) -> OpenedSampler:
        """Loads the model, unless that is done."""
        if self._llm is None:
            require_vllm(self._gpus)
            prepare_actor(self._backend.threads)
            for name, value in SETTINGS.items():
                os.environ.setdefault(name, value)
            with folder_of(self._model, self._seed) as folder:
                self._facts = facts_of(self._model, folder, self._backend.max_context)
                self._llm = self._started(folder)
            await self._llm.update_weight_version("0")
            self._ready.set()
        return OpenedSampler(self._facts.max_context, code_digest())

    async def sample(self, prompt: Prompt, params: SamplingParams, version: int) -> Sample:
        from sojourn.backends.torch.sampler.limits import checked_choices, checked_tokens, require_samplable
        from sojourn.backends.torch.sampler.request import Request

        self._require(version)
        tokens = checked_tokens(prompt, self._facts.vocab_size)
        require_samplable(tokens, params, self._facts.max_context)
        mapping.check(params)
        if params.stop_strings and self._facts.decode is None:
            raise ModelError(f"stop_strings {params.stop_strings}: the model has no tokenizer: use stop_tokens")
        while True:
            choices = checked_choices(params, self._stops, self._facts.vocab_size)
            await self._ready.wait()
            request = Request(tokens, asyncio.get_running_loop().create_future(), params, choices)
            request.restart(self.version)
            if (stop := request.stop(self._stops, self._facts.decode)) is not None:
                return request.sample(stop)
            drawn = await self._drawn(request)
            if drawn is None:
                continue
            sample = mapping.sample_of(request, drawn, self._stops, self._facts.decode)
            if sample is None:
                raise InfrastructureError(f"vLLM gave {len(drawn)} tokens, which are no whole sample: ask again")
            return sample

    async def score(self, prompt: Prompt, version: int) -> FloatArray:
        from sojourn.backends.torch.sampler.limits import checked_tokens, require_scorable

        self._require(version)
        tokens = checked_tokens(prompt, self._facts.vocab_size)
        require_scorable(tokens, self._facts.max_context)
        if len(tokens) == 1:
            return np.zeros(0, dtype=np.float32)
        given = {"max_tokens": 1, "prompt_logprobs": 0, "flat_logprobs": True, "detokenize": False, "ignore_eos": True}
        while True:
            await self._ready.wait()
            asked = Asked()
            [output] = [one async for one in self._outputs(asked, tokens.tolist(), given, whole=True)]
            if not asked.dropped:
                return _finite(output.prompt_logprobs.logprobs)

    async def load(self, weights: PackedWeights | StoredWeights, version: int) -> None:
        """Replaces the weights."""
        await self.open()
        packed = weights.packed()
        async with self._loading, in_memory(packed.data) as path:
            self._ready.clear()
            try:
                await self._replace({"path": path, "tensors": [list(one) for one in packed.tensors]}, version)
            except Exception as error:  # the engine may hold parts of other weights
                _end(f"weights of version {version} could not be loaded", error)
            finally:
                self._ready.set()

    async def forget(self) -> None:
        self._caches += 1

    async def stats(self) -> EngineStats:
        return self._counts.stats()

    async def report(self) -> SamplerReport | None:
        """Returns nothing where there is no engine, as the process was started anew."""
        if self._llm is None:
            return None
        facts = {"device": f"{self._gpus:g} GPUs" if self._gpus else "cpu", "engine": "vllm"}
        return SamplerReport(self._counts.stats(), await Report.with_children(facts))

    # -- inside

    def _started(self, folder: Path) -> Any:
        """Starts vLLM's engine, and loads the model in it. Raises `InfrastructureError` where that fails."""
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        given = engine_arguments(self._backend, self._model, folder, self._facts.max_context, self._gpus, self._seed)
        counts: Any = self._counts.start
        try:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**given), stat_loggers=[counts])
        except Exception as error:  # whatever vLLM raises
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise InfrastructureError(
                f"vLLM did not start with model '{self._model.name}' ({reason}): see what it says in Ray's log folder "
                "on that node, by default /tmp/ray/session_latest/logs, or set backend.samplers.engine = 'sojourn'"
            ) from None

    def _require(self, version: int) -> None:
        require_version(None if self._llm is None else self.version, version)

    async def _drawn(self, request: Request) -> list[mapping.Drawn] | None:
        """Returns what vLLM draws; None where the request is to be asked again."""
        params, decode = request.params, self._facts.decode
        assert params is not None
        given, prompt = mapping.arguments(request, self._stops), request.context_tokens.tolist()
        ended = None if request.choices else mapping.StopStrings.of(params.stop_strings, decode)
        watched = ended is not None or self._in_flight != "drain"
        asked, tokens, logprobs, labels = Asked(), [], [], None
        async for output in self._outputs(asked, prompt, given, whole=not watched):
            [one] = output.outputs
            if new := len(one.token_ids):
                tokens += one.token_ids
                logprobs += one.logprobs.logprobs[-new:]
                asked.begun = True
            if ended is not None and not output.finished and ended(tokens, new):
                await self._llm.abort(output.request_id)
            labels = one.weight_versions
        if asked.dropped:
            return None
        found = mapping.spans([(one.version, one.start, one.end) for one in labels or ()], len(tokens))
        return mapping.drawn(tokens, _finite(logprobs).tolist(), found)

    async def _outputs(
        self, asked: Asked, prompt: list[int], given: Mapping[str, Any], *, whole: bool
    ) -> AsyncIterator[Any]:
        """Yields vLLM's answers to a request: one after the other, or one when it is complete."""
        from vllm import SamplingParams as Params
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        kind = RequestOutputKind.FINAL_ONLY if whole else RequestOutputKind.DELTA
        name = str(next(self._numbers))
        salted = {"prompt_token_ids": prompt, "cache_salt": f"{self.version}.{self._caches}"}
        self._asked[name] = asked
        try:
            async for output in self._llm.generate(salted, Params(**given, output_kind=kind), name):
                yield output
        except EngineDeadError as error:
            _end("vLLM's engine is dead", error)
        finally:
            del self._asked[name]

    async def _replace(self, place: Mapping[str, Any], version: int) -> None:
        """Lets vLLM load weights from where they lie."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        llm, drain = self._llm, self._in_flight == "drain"
        await llm.pause_generation(mode="wait" if drain else "keep", clear_cache=self._in_flight != "keep")
        await self._drop()
        await llm.start_weight_update()
        await llm.update_weights(WeightTransferUpdateRequest(update_info=dict(place)))
        await llm.finish_weight_update(str(version))
        await llm.resume_generation()
        self.version = version

    async def _drop(self) -> None:
        """Drops the requests without any token: their prompts may be read in part."""
        dropped = {name: asked for name, asked in self._asked.items() if not asked.begun}
        for asked in dropped.values():
            asked.dropped = True
        if dropped:
            await self._llm.abort(list(dropped))


@dataclass(eq=False)
class Counts:
    """Counts what vLLM does, as its logger of statistics."""

    totals: dict[str, float] = field(default_factory=dict[str, float])
    waiting: int = 0
    usage: float = 0.0
    pages: int = 0

    def start(self, config: Any, engine: int = 0) -> Counts:
        self.pages = config.cache_config.num_gpu_blocks or 0
        return self

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            self.waiting, self.usage = scheduler_stats.num_waiting_reqs, scheduler_stats.kv_cache_usage
        if iteration_stats is None:
            return
        prompts, finished = iteration_stats.prompt_token_stats, iteration_stats.finished_requests
        more = {
            "steps": 1,
            "rows": iteration_stats.num_generation_tokens,
            "step_pages": round(self.usage * self.pages),
            "sampled_tokens": iteration_stats.num_generation_tokens,
            "prefill_tokens": prompts.computed,
            "reused_tokens": prompts.cached_tokens,
            "requests": len(finished),
            "queued_s": sum(one.queued_time for one in finished),
        }
        for name, number in more.items():
            self.totals[name] = self.totals.get(name, 0) + number

    def stats(self) -> EngineStats:
        from sojourn.backends.torch.sampler.engine_stats import EngineStats

        held: Any = {"waiting": self.waiting, "pages": self.pages, "held_pages": round(self.usage * self.pages)}
        return EngineStats(**self.totals, **held)

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...

    def record_sleep_state(self, *_: Any) -> None: ...


@asynccontextmanager
async def in_memory(data: NDArray[np.uint8]) -> AsyncIterator[str]:
    """Gives the path of a file in memory with these bytes, which other processes of this machine can open. It ends with
    this process, however that ends."""
    number = os.memfd_create("sojourn-weights")
    try:
        await run_to_end(_write, number, data)
        yield f"/proc/{os.getpid()}/fd/{number}"
    finally:
        os.close(number)


def _write(number: int, data: NDArray[np.uint8]) -> None:
    left = data.data
    while len(left):
        left = left[os.write(number, left) :]


def _finite(logprobs: Any) -> FloatArray:
    from sojourn.backends.torch.sampler.sampling import DIVERGED

    found = np.array(logprobs, dtype=np.float32)
    if not np.isfinite(found).all():
        raise InfrastructureError(DIVERGED)
    return found


def _end(why: str, error: BaseException) -> NoReturn:
    """Ends this process: what would be left of it must answer nothing."""
    log.error("%s (%s: %s)", why, type(error).__name__, error)
    os._exit(1)
