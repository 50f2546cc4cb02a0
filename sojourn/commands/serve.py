"""`sojourn serve`: serves a model to programs that speak OpenAI's or Anthropic's API."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sojourn.commands.arguments import print_slowdowns
from sojourn.commands.serving_options import (
    BodyMegabytes,
    Concurrency,
    Grace,
    Host,
    MaxTokens,
    ModelValues,
    Names,
    Port,
    Seed,
    Sessions,
    Temperature,
    Timeout,
    Token,
    TopP,
    Turns,
    What,
)
from sojourn.config.fields import TEMPERATURE
from sojourn.errors import ConfigError, MissingExtraError
from sojourn.terminal.clean import one_line

if TYPE_CHECKING:
    from sojourn.types import SamplingParams


def serve(
    what: What,
    overrides: ModelValues = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = "",
    name: Names = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = 0,
    seed: Seed = None,
    concurrency: Concurrency = 1024,
    sessions: Sessions = 10_000,
    turns: Turns = 100_000,
    body_mb: BodyMegabytes = 64.0,
    timeout: Timeout = 60.0,
    grace: Grace = 30.0,
) -> None:
    """Serve a model on this machine to any program that speaks OpenAI's API (chat completions, responses) or
    Anthropic's (messages)."""
    try:
        from sojourn.gateway.bodies import Limits
        from sojourn.serving.server import Address, Server, Service
    except ImportError as error:
        raise MissingExtraError(f"sojourn serve needs more packages ({error}): pip install 'sojourn[serve]'") from error
    from sojourn import event_loop
    from sojourn.serving.opening import find, open_model

    address = Address.of(host, port, token)
    found = find(what, overrides or (), report=lambda sentence: print(f"note: {one_line(sentence, 500)}"))
    params = _sampled(found.params, temperature, top_p, max_tokens)
    print_slowdowns(found.recipe)
    bound = address.bind()
    with bound:
        print(f"sojourn serve: loading {found.description}", flush=True)
        served = open_model(found)
        service = Service(
            names=tuple(name or [found.name]),
            params=params,
            limits=Limits(body_bytes=int(body_mb * 1e6), body_seconds=timeout, at_once=concurrency),
            sessions=sessions,
            turns=turns,
            seed=seed,
            grace_s=grace,
        )
        print(f"contexts of {served.max_context:,} tokens, on {served.engine.device}; Ctrl-C ends it", flush=True)
        event_loop.run(Server(served, service, address).run(bound, _tell))


def _tell(line: str) -> None:
    print(line, flush=True)


def _sampled(params: SamplingParams, temperature: float | None, top_p: float | None, max_tokens: int) -> SamplingParams:
    """Returns how to sample where a request does not say."""
    if top_p == 0:
        raise ConfigError("--top-p 0: no token would be left: expected a number above 0, up to 1")
    if temperature is not None and not TEMPERATURE.holds(temperature):
        raise ConfigError(f"--temperature {temperature:g}: expected {TEMPERATURE.expected(float)}")
    given = {"temperature": temperature, "top_p": top_p}
    chosen = {key: value for key, value in given.items() if value is not None}
    return replace(params, max_tokens=max_tokens or 2**31, **chosen)
