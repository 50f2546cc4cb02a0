"""`sojourn serve`: serves a model to programs that speak OpenAI's or Anthropic's API."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.commands.arguments import print_slowdowns
from sojourn.errors import ConfigError, MissingExtraError
from sojourn.terminal.clean import one_line

if TYPE_CHECKING:
    from sojourn.types import SamplingParams


def serve(
    what: Annotated[
        str,
        typer.Argument(
            help="A run folder, whose best checkpoint is served (or another one: runs/x@120, runs/x@last, "
            "runs/x@warmup, runs/x@before); or a recipe, whose model is served untrained; or a model: a folder of "
            "weights, a .gguf file, smollm2, tiny, owner/name of the hub."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Values of the tables model, backend and renderer, such as backend.max_context=8192, "
            "model.dtype=bf16, backend.memory_gb=8 (the prefix cache) or backend.max_batch=128."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Any address but loopback asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")] = 8000,
    token: Annotated[
        str,
        typer.Option(
            help="The environment variable that holds the token, which clients send as their API key. (default: none "
            "on loopback, else a new one, which is printed)"
        ),
    ] = "",
    name: Annotated[
        list[str] | None,
        typer.Option(help="A name of the model for /v1/models; repeat it for several. Requests may name any."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="For requests without one. (default: that of the run's evaluations, or 1)"),
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="For requests without one. (default: as the temperature)")
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(min=0, help="The most tokens of a reply, whatever a request asks for; 0: what a context holds."),
    ] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Decides all samples of requests without a seed. (default: a new one)")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="The requests that are answered at once; others are told to come again (503).")
    ] = 1024,
    sessions: Annotated[int, typer.Option(min=1, help="The sessions that are remembered.")] = 10_000,
    turns: Annotated[int, typer.Option(min=1, help="The replies that are remembered, of all sessions.")] = 100_000,
    body_mb: Annotated[float, typer.Option(min=0.001, help="The most megabytes of a request.")] = 64.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="The seconds in which a request must have come.")] = 60.0,
    grace: Annotated[
        float, typer.Option(min=0, help="The seconds that running requests have when the server is told to end.")
    ] = 30.0,
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
    given = {"temperature": temperature, "top_p": top_p}
    chosen = {key: value for key, value in given.items() if value is not None}
    return replace(params, max_tokens=max_tokens or 2**31, **chosen)
