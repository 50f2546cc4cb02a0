"""What transformers says of a few tokens by a model, so that a model which we compute otherwise is refused.

The layers of most models are given another attention, and some are computed by kernels: a model that does something
beside it (another scale of its logits, attention sinks, chunks) would be trained or sampled wrongly without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from sojourn.backends.torch.models.deferred import is_placeholder
from sojourn.backends.torch.models.loading import max_context
from sojourn.errors import ModelError
from sojourn.types import FloatArray, IntArray

LENGTH, SHARED = 24, 8  # tokens of each sequence, and those at the beginning that both have
LONGEST_WINDOW = 128  # tokens: sequences are longer than a window, or a chunk of attention, of at most this length
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.5}  # nats in the mean over the tokens, by the weights' type


class KnownScores(NamedTuple):
    """Two sequences of random tokens that begin alike, and the log-probabilities that transformers gives to those after
    the first. Others may differ from them by the `tolerance`, in the mean."""

    tokens: IntArray  # (2, L)
    logprobs: FloatArray  # (2, L - 1)
    tolerance: float

    @classmethod
    def of(cls, model: Any, limit: int | None = None) -> KnownScores | None:
        """Asks a model whose attention is its own still; None where its weights are unread, or it reads too few tokens:
        at most `limit`, or what its configuration says."""
        text = model.config.get_text_config()
        windows = [getattr(text, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
        size = LENGTH + max(window if window <= LONGEST_WINDOW else 0 for window in windows)
        size = min(size, max_context(model.config) if limit is None else limit)
        if size <= SHARED or any(p.is_meta or is_placeholder(p) for p in model.parameters()):
            return None
        vocabulary = model.get_input_embeddings().num_embeddings
        random = np.random.default_rng(0).integers(vocabulary // 4, max(vocabulary // 2, 1), (2, size))
        random[1, :SHARED] = random[0, :SHARED]  # tokens in the midst of a vocabulary have no special meaning
        tokens = torch.from_numpy(random).to(next(model.parameters()).device)
        with torch.no_grad():
            logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
        logprobs = logits[:, :-1].float().log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        return cls(random, logprobs.cpu().numpy(), TOLERANCES.get(model.dtype, TOLERANCES[torch.bfloat16]))

    def require(self, compute: Callable[[IntArray], FloatArray], model: Any, who: str) -> None:
        """Raises `ModelError` where `compute`, of the tokens (2, L), gives other log-probabilities (2, L - 1)."""
        kind = f"a model of the kind '{model.config.model_type}' ({type(model).__name__})"
        try:
            found = compute(self.tokens)
        except Exception as error:  # whatever the code of such a model raises
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise ModelError(
                f"{who} cannot compute {kind}: {type(error).__name__}: {reason}: use a model of another kind"
            ) from error
        gap = float(np.abs(found - self.logprobs).mean())
        if not gap <= self.tolerance:
            raise ModelError(
                f"{who} computes {kind} otherwise than transformers does: the log-probabilities of "
                f"{self.logprobs.size} tokens differ by {gap:.3g} in the mean, expected at most {self.tolerance:g}: "
                "use a model of another kind"
            )
