"""Says in vLLM's words what is to be sampled, and reads its answer as a `Sample`. Nothing here needs vLLM."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sojourn.backends.torch.sampler.request import Decode, Request
from sojourn.backends.torch.sampler.sampling import Choices
from sojourn.errors import InfrastructureError, ModelError
from sojourn.types import Sample, SamplingParams

WEIGHTS = "sojourn"  # the name under which vLLM knows the way that our weights take
CHOICES = "sojourn_choices"  # the key of choices among a request's extra arguments


class Drawn(NamedTuple):
    """A token as vLLM drew it, and the version of the weights by which it did."""

    token: int
    logprob: float
    version: int


class Span(NamedTuple):
    """The tokens from `start` to `stop` of a sample, which weights of one version drew."""

    version: int
    start: int
    stop: int


class Constraint:
    """Restricts a request inside vLLM to its choices. Where only one is left, there is nothing to draw any more: `end`,
    a token of none of them, then ends the request. `begun` tokens of the choices are part of vLLM's prompt."""

    def __init__(self, choices: Sequence[Sequence[int]], stops: Sequence[int], begun: Sequence[int], end: int) -> None:
        self._choices, self._end = Choices(choices, stops), end
        for token in begun:
            self.advance(token)

    def advance(self, token: int) -> None:
        if token != self._end:
            self._choices.advance(token)

    def allowed(self) -> list[int]:
        return [self._end] if self._choices.decided else self._choices.allowed().tolist()


def check(params: SamplingParams) -> None:
    """Raises where vLLM would sample otherwise than it is asked to."""
    if params.steering is not None:
        raise ModelError("steering: vLLM's engine adds nothing to hidden states: let our own engine sample")


def seed_of(seed: int, prompt_length: int) -> int:
    """Returns the seed of one request. All turns of an episode have the same seed, but prompts of other lengths."""
    digest = hashlib.blake2b(struct.pack("<Qq", seed % 2**64, prompt_length), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def arguments(request: Request, stops: Iterable[int]) -> dict[str, Any]:
    """Returns the arguments of vLLM's `SamplingParams` for a request none of whose tokens is drawn yet."""
    params = request.params
    assert params is not None
    given: dict[str, Any] = {
        "temperature": params.temperature,
        "seed": seed_of(params.seed, len(request.prompt)),
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": False,
        "ignore_eos": True,
        "skip_clone": True,
    }
    if params.temperature > 0:
        given |= {"top_p": params.top_p, "top_k": params.top_k, "min_p": params.min_p}
    if request.choices is None:
        return given | {"max_tokens": request.room, "stop_token_ids": sorted({*stops, *params.stop_tokens})}
    end = _unused(params.choices, stops)
    constraint = {
        "choices": [list(choice) for choice in params.choices],
        "stops": sorted(set(stops)),
        "begun": list(request.tokens),
        "end": end,
    }
    return given | {"max_tokens": request.room + 1, "stop_token_ids": [end], "extra_args": {CHOICES: constraint}}


def _unused(choices: Sequence[Sequence[int]], stops: Iterable[int]) -> int:
    """Returns the least token id that no choice has, and that ends none."""
    used = {*stops, *(token for choice in choices for token in choice)}
    return next(token for token in range(len(used) + 1) if token not in used)


def spans(labels: Iterable[tuple[str, int, int]], count: int) -> list[Span]:
    """Reads vLLM's spans of versions. Raises `InfrastructureError` unless they divide all `count` tokens among them."""
    found = [Span(int(label), start, stop) for label, start, stop in labels]
    starts, stops = [*(span.start for span in found), count], [0, *(span.stop for span in found)]
    if starts != stops:
        raise InfrastructureError(
            f"vLLM says that versions of the weights drew {[tuple(span) for span in found]} of {count} tokens: "
            "expected each token once"
        )
    return found


def drawn(tokens: Sequence[int], logprobs: Sequence[float], found: Sequence[Span]) -> list[Drawn]:
    versions = [span.version for span in found for _ in range(span.start, span.stop)]
    return [Drawn(*one) for one in zip(tokens, logprobs, versions, strict=True)]


def sample_of(request: Request, answer: Iterable[Drawn], stops: frozenset[int], decode: Decode | None) -> Sample | None:
    """Adds what vLLM drew to a request, and returns its sample; None where it is not complete. vLLM also draws the
    tokens that are the only ones allowed, which a request has already."""
    known = 0
    for one in answer:
        if known:
            known -= 1
            continue
        before = len(request.tokens)
        request.accept(one.token, one.logprob, request.row(), one.version)
        if (stop := request.stop(stops, decode)) is not None:
            return request.sample(stop)
        known = len(request.tokens) - before - 1
    return None


class StopStrings(NamedTuple):
    """Finds out whether a sample that grows has one of some strings in its text."""

    strings: Sequence[str]
    decode: Decode

    @classmethod
    def of(cls, strings: Sequence[str], decode: Decode | None) -> StopStrings | None:
        """Returns None where there is none to be found."""
        return cls(strings, decode) if strings and decode is not None else None

    def __call__(self, tokens: Sequence[int], new: int) -> bool:
        """Returns whether one is there, where it was asked before the newest `new` tokens came."""
        longest = max(len(string.encode()) for string in self.strings)
        text = self.decode(tokens[-longest - new :])  # each token decodes to at least one byte
        return any(string in text for string in self.strings)
