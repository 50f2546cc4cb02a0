"""A server on the loopback interface that answers as vLLM's does, with what transformers computes of a real model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sojourn.backends.torch.models import loading
from tests.envs.loopback import Raw, answered


@dataclass
class VLLM:
    """The model of a server: the routes, checks and fields of vLLM's that a teacher needs."""

    model: Any
    tokenizer: Any
    max_model_len: int = 4096
    max_logprobs: int = 20

    @classmethod
    def of(cls, name: str, seed: int = 0, **limits: int) -> VLLM:
        loaded = loading.load(name, "fp32", seed)
        return cls(loaded.model, loaded.tokenizer, **limits)

    def __call__(self, path: str, body: Mapping[str, Any]) -> Raw:
        if path == "/detokenize":
            return _json({"prompt": self.tokenizer.decode(body["tokens"])})
        if path == "/tokenize":
            tokens = self.tokenizer.encode(body["prompt"])
            return _json({"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens})
        if path == "/v1/completions":
            return self.complete(body["prompt"], body["prompt_logprobs"], body["max_tokens"])
        return _error(404, "Not Found")

    def complete(self, prompt: list[int], top: int, max_tokens: int) -> Raw:
        if top > self.max_logprobs:
            return _error(
                400, f"Requested prompt logprobs of {top}, which is greater than max allowed: {self.max_logprobs}"
            )
        if max_tokens < 1 or len(prompt) + max_tokens > self.max_model_len:
            return _error(400, f"This model's maximum context length is {self.max_model_len} tokens.")
        with torch.no_grad():
            logprobs = self.model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        places = [None, *(self.place(row, token, top) for row, token in zip(logprobs, prompt[1:], strict=False))]
        choice = {"index": 0, "text": "a", "finish_reason": "length", "prompt_logprobs": places}
        return _json({"object": "text_completion", "choices": [choice], "usage": {"prompt_tokens": len(prompt)}})

    def place(self, logprobs: torch.Tensor, token: int, top: int) -> dict[str, Any]:
        """The token of the prompt, then the likeliest ones; it is one of them, or beside them."""
        named = dict.fromkeys([token, *logprobs.topk(top).indices.tolist()])
        return {
            str(one): {
                "logprob": logprobs[one].item(),
                "rank": int((logprobs >= logprobs[one]).sum()),
                "decoded_token": self.tokenizer.decode([one]),
            }
            for one in named
        }


@contextmanager
def serving(server: VLLM) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the base URL, and the list of the requests so far."""
    with answered(server) as found:
        yield found


def _json(data: Mapping[str, Any]) -> Raw:
    return Raw(200, json.dumps(data))


def _error(status: int, message: str) -> Raw:
    return Raw(status, json.dumps({"error": {"message": message, "type": "BadRequestError", "code": status}}))
