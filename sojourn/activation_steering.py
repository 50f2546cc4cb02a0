"""What a sampler adds to a model's hidden states."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Steering:
    """Says what is added to the residual stream while tokens are drawn (activation steering): `vector`, numbers of fp32
    in the machine's byte order, to the output of the decoder layer number `layer` (0: the first).

    It is added at the positions whose output draws a token: the last of the prompt, and those of the sample. The rest
    of the prompt is computed without it, also where it was sampled with it in an earlier turn.
    """

    layer: int
    vector: bytes = field(repr=False)
