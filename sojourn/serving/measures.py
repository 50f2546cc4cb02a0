"""What a server of a model measures: requests, tokens, times, contexts, and what its engine says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sojourn.ability import Ability
from sojourn.backends.torch.sampler.engine_stats import EngineStats
from sojourn.gateway.placement import Cause
from sojourn.gateway.requests import ChatRequest, Reply
from sojourn.serving import exposition
from sojourn.serving.exposition import Histogram, Metric

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
LONGEST_NAME, MOST_NAMES = 64, 1000  # of fields that clients send: they may send anything


@runtime_checkable
class HasStats(Ability, Protocol):
    """A sampler that counts what it does."""

    def stats(self) -> EngineStats: ...


@dataclass
class Measures:
    """Counts what a server does, by API. Tokens are counted once for each reply that is sampled, whether its client
    still waits for it or not."""

    requests: Metric = field(default_factory=lambda: Metric(
        "sojourn_requests_total", "Requests that have ended, by API and HTTP status (499: the client left).",
        ("api", "status"),
    ))  # fmt: skip
    running: Metric = field(default_factory=lambda: Metric(
        "sojourn_requests_running", "Requests that are being answered.", kind="gauge"))  # fmt: skip
    seconds: Histogram = field(default_factory=lambda: Histogram(
        "sojourn_request_seconds", "Time from a request to the end of its answer.", BOUNDS_S, ("api",)))  # fmt: skip
    first_token: Histogram = field(default_factory=lambda: Histogram(
        "sojourn_first_token_seconds", "Time from a streamed request to the first piece of its reply.", BOUNDS_S,
        ("api",),
    ))  # fmt: skip
    prompt: Metric = field(default_factory=lambda: Metric(
        "sojourn_prompt_tokens_total", "Tokens of the prompts of all replies, cached ones included."))  # fmt: skip
    sampled: Metric = field(default_factory=lambda: Metric("sojourn_sampled_tokens_total", "Tokens of all replies."))
    contexts: Metric = field(default_factory=lambda: Metric(
        "sojourn_contexts_total", "Replies that opened a context instead of extending one, by cause.", ("cause",),
    ))  # fmt: skip
    unused: Metric = field(default_factory=lambda: Metric(
        "sojourn_unused_fields_total", "Fields of requests that changed nothing, by API and name.", ("api", "field"),
    ))  # fmt: skip
    sessions: Metric = field(default_factory=lambda: Metric(
        "sojourn_sessions_open", "Sessions that are remembered.", kind="gauge"))  # fmt: skip

    def asked(self, api: str, request: ChatRequest) -> None:
        """Counts the fields of a request that change nothing, by the beginnings of their names."""
        for name in request.unused:
            labels = (api, name[:LONGEST_NAME])
            if labels in self.unused.values or len(self.unused.values) < MOST_NAMES:
                self.unused.add(*labels)

    def reply(self, reply: Reply) -> None:
        """Counts a reply when it is recorded."""
        self.prompt.add(by=reply.prompt_tokens)
        self.sampled.add(by=len(reply.sample.tokens))
        if reply.turn.parent < 0:
            causes = (cause for cause in Cause if f"window_{cause}" in reply.turn.info)
            self.contexts.add(next(causes, Cause.FIRST))

    def text(self, sampler: object) -> str:
        """Returns all figures in Prometheus' text format, with those that the sampler has of itself."""
        own = [self.requests, self.running, self.seconds, self.first_token, self.prompt, self.sampled, self.contexts,
               self.unused, self.sessions]  # fmt: skip
        stats = sampler.stats() if isinstance(sampler, HasStats) else None
        return exposition.text([*own, *(_of_engine(stats) if stats is not None else ())])


def _of_engine(stats: EngineStats) -> list[Metric]:
    counters = {
        "cached_prompt_tokens_total": ("Prompt tokens that were found in the prefix cache.", stats.reused_tokens),
        "computed_prompt_tokens_total": ("Prompt tokens that went through the model.", stats.prefill_tokens),
        "engine_requests_total": ("Requests that the engine has begun.", stats.requests),
        "engine_queued_seconds_total": ("Time that these waited for the engine to begin them.", stats.queued_s),
        "engine_steps_total": ("Steps of the engine, each one pass of the model.", stats.steps),
        "engine_step_contexts_total": ("Contexts in these steps.", stats.rows),
    }
    gauges = {
        "engine_waiting": ("Requests that wait for the engine to begin them.", stats.waiting),
        "cache_used_ratio": ("Fraction of the prefix cache that holds something.",
                             stats.held_pages / max(stats.pages, 1)),
    }  # fmt: skip
    return [
        Metric(f"sojourn_{name}", help, kind=kind, values={(): value})
        for kind, found in (("counter", counters), ("gauge", gauges))
        for name, (help, value) in found.items()
    ]
