"""Options of the commands that serve a model."""

from __future__ import annotations

from typing import Annotated

import typer

What = Annotated[
    str,
    typer.Argument(
        help="A run folder, whose best checkpoint is served (or another one: runs/x@120, runs/x@last, "
        "runs/x@warmup, runs/x@before); or a recipe, whose model is served untrained; or a model: a folder of "
        "weights, a .gguf file, smollm2, tiny, owner/name of the hub."
    ),
]
ModelValues = Annotated[
    list[str] | None,
    typer.Argument(
        help="Values of the tables model, backend and renderer, such as backend.max_context=8192, "
        "model.dtype=bf16, backend.memory_gb=8 (the prefix cache) or backend.max_batch=128."
    ),
]
Host = Annotated[str, typer.Option(help="The address to listen on. Any address but loopback asks for a token.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")]
Token = Annotated[
    str,
    typer.Option(
        help="The environment variable that holds the token, which clients send as their API key. (default: none "
        "on loopback, else a new one, which is printed)"
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(help="A name of the model for /v1/models; repeat it for several. Requests may name any."),
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0, help="For requests without one. (default: that of the run's evaluations, or 1)"),
]
TopP = Annotated[
    float | None, typer.Option(min=0, max=1, help="For requests without one. (default: as the temperature)")
]
MaxTokens = Annotated[
    int,
    typer.Option(min=0, help="The most tokens of a reply, whatever a request asks for; 0: what a context holds."),
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Decides all samples of requests without a seed. (default: a new one)")
]
Concurrency = Annotated[
    int, typer.Option(min=1, help="The requests that are answered at once; others are told to come again (503).")
]
Sessions = Annotated[int, typer.Option(min=1, help="The sessions that are remembered.")]
Turns = Annotated[int, typer.Option(min=1, help="The replies that are remembered, of all sessions.")]
BodyMegabytes = Annotated[float, typer.Option(min=0.001, help="The most megabytes of a request.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="The seconds in which a request must have come.")]
Grace = Annotated[
    float, typer.Option(min=0, help="The seconds that running requests have when the server is told to end.")
]
