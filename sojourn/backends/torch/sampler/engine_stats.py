"""Counts what an engine does."""

from __future__ import annotations

from dataclasses import dataclass

COUNTED = (
    "sampled_tokens", "prefill_tokens", "reused_tokens", "steps", "rows", "requests", "queued_s", "step_pages",
)  # fmt: skip


@dataclass(frozen=True)
class EngineStats:
    """The totals of an engine so far, and the number of requests that wait now."""

    sampled_tokens: int = 0
    prefill_tokens: int = 0  # prompt tokens that went through the model
    reused_tokens: int = 0  # prompt tokens that were in the cache
    steps: int = 0
    rows: int = 0  # contexts, summed over steps
    waiting: int = 0
    requests: int = 0  # admitted ones
    queued_s: float = 0.0  # from the call to the admission, summed over requests
    evicted_pages: int = 0
    held_pages: int = 0  # in use or kept for later, now
    step_pages: int = 0  # those, summed over steps
    pages: int = 0

    @property
    def mean_batch(self) -> float:
        """Returns the mean number of contexts in a step."""
        return self.rows / max(self.steps, 1)

    @property
    def reuse(self) -> float:
        """Returns the fraction of prompt tokens that came from the cache."""
        return self.reused_tokens / max(self.reused_tokens + self.prefill_tokens, 1)

    def metrics(self, before: EngineStats) -> dict[str, float]:
        """Returns the metrics of what was done since `before`, for a run's record."""
        since = self._since(before)
        return {
            "sampler_batch": since.mean_batch,
            "sampler_reuse": since.reuse,
            "sampler_prefill_tokens": since.prefill_tokens,
            "sampler_queued_s": since.queued_s / max(since.requests, 1),
            "sampler_evicted_pages": self.evicted_pages - before.evicted_pages,
            "sampler_held": self.held_pages / max(self.pages, 1),
        }

    def numbers(self, before: EngineStats, over_s: float) -> dict[str, float]:
        """Returns what `PartLoad` has of an engine: what was done since `before`, that is in `over_s` seconds."""
        since = self._since(before)
        return {
            "sampled_tokens_per_s": since.sampled_tokens / over_s,
            "prefix_reuse_share": since.reuse,
            "cache_share": since.step_pages / max(since.steps * self.pages, 1),
            "queued_mean_s": since.queued_s / max(since.requests, 1),
            "waiting": self.waiting,
        }

    def _since(self, before: EngineStats) -> EngineStats:
        return EngineStats(**{name: getattr(self, name) - getattr(before, name) for name in COUNTED})
