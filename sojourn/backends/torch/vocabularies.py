"""Refuses models whose tokens are not the policy's, or which read too few of them, and servers that cannot score
these."""

from __future__ import annotations

from typing import Any

import numpy as np

from sojourn.errors import InfrastructureError, ModelError
from sojourn.models.prompt_scorer import PromptScorer
from sojourn.models.spec import Model


def require_same(name: str, model: Model, own: Any, policys: Any) -> None:
    """Refuses a model whose tokens are not those of the policy, as it could not score what the policy samples."""
    vocabularies = [None if tokenizer is None else tokenizer.get_vocab() for tokenizer in (own, policys)]
    if None in vocabularies or vocabularies[0] != vocabularies[1]:
        sizes = " and ".join("no tokenizer" if one is None else f"{len(one)} tokens" for one in vocabularies)
        raise ModelError(
            f"models.{name} = '{model.name}' has not the policy's vocabulary (they have {sizes}), whose tokens it is "
            "to score: use a model of the same family"
        )


def require_context(name: str, model: Model, known: int, longest: int) -> None:
    """Refuses a model that reads at most `known` tokens where contexts have up to `longest`."""
    if known < longest:
        raise ModelError(
            f"models.{name} = '{model.name}' reads at most {known} tokens: set backend.max_context to that at most, or "
            "use another model"
        )


async def require_served(name: str, scorer: PromptScorer, policys: Any) -> None:
    """Refuses a server whose tokenizer makes another text of all of the policy's tokens, in the order of their ids.
    Spaces are not compared, as versions of transformers differ in which of them they remove."""
    if policys is None:
        raise ModelError(f"models.{name}: the policy has no tokenizer with which the server's could be compared")
    every = list(range(len(policys)))
    theirs, own = (text.replace(" ", "") for text in (await scorer.detokenize(every), policys.decode(every)))
    if theirs != own:
        same = next(
            (n for n, (a, b) in enumerate(zip(theirs, own, strict=False)) if a != b), min(map(len, (theirs, own)))
        )
        raise ModelError(
            f"models.{name} = '{scorer.endpoint.model}' has not the policy's vocabulary, whose tokens it is to score: "
            f"of all {len(every)} in a row its server makes {theirs[same : same + 20]!r} where the policy's tokenizer "
            f"makes {own[same : same + 20]!r}: use a model of the same family"
        )


async def require_top_k(name: str, scorer: PromptScorer) -> None:
    """Refuses a server that gives no log-probabilities of a prompt, or those of fewer tokens than it is asked for."""
    try:
        [scores] = await scorer.score([np.zeros(2, dtype=np.int64)], [np.ones(1, dtype=np.int64)])
    except InfrastructureError as error:
        raise ModelError(
            f"{error}: start the server with --max-logprobs {scorer.top_k} or more, or lower "
            f"models.{name}.endpoint.top_k"
        ) from None
    if (given := np.count_nonzero(scores.likeliest >= 0)) < scorer.top_k:
        raise ModelError(
            f"models.{name}: its server was asked for the {scorer.top_k} likeliest tokens, but gives {given}: set "
            f"models.{name}.endpoint.top_k below {given}"
        )
