"""`sojourn live`: serves a model to people, and trains it on what they say of its replies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn.commands.arguments import Overrides, print_too_few_plays
from sojourn.commands.served_runs import learns_from_service
from sojourn.commands.serving_options import Host, Port, Token
from sojourn.errors import ConfigError, InfrastructureError, MissingExtraError, RecordError

if TYPE_CHECKING:
    from sojourn.live.service_lock import ServiceLock
    from sojourn.serving.live_server import Keeping
    from sojourn.serving.served_releases import ServedReleases
    from sojourn.serving.server import Address
    from sojourn.serving.trainer_process import TrainerProcess
    from sojourn.train.recipe import Recipe

LOG = "training.log"  # in the folder of the service's store
POLL_S = 0.2
SHOWN = 1_000  # characters of the training's output, where it failed


def live(
    recipe: Annotated[Path, typer.Argument(help="A recipe with groups = {name = 'live'} and a table named release.")],
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder. (default: one named by the recipe in record.folder)")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the service and the training of this run folder.")
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = "",
    consent: Annotated[
        bool,
        typer.Option(
            "--consent-given",
            help="Everybody who uses this service has agreed that sessions are kept and trained on; else each session "
            "is asked for (POST /s/NAME/consent).",
        ),
    ] = False,
    idle: Annotated[float, typer.Option(min=0.1, help="The seconds after which a session has ended.")] = 600.0,
    days: Annotated[float, typer.Option(min=0, help="Sessions are deleted when they are so old; 0: never.")] = 0.0,
    mask: Annotated[
        bool, typer.Option(help="Mask keys, addresses and numbers of people before the model reads them.")
    ] = True,
) -> None:
    """Serve a model to people as `sojourn serve` does, and train it on their sessions; better weights replace it."""
    try:
        from sojourn.serving.live_server import Keeping
        from sojourn.serving.server import Address
    except ImportError as error:
        raise MissingExtraError(f"sojourn live needs more packages ({error}): pip install 'sojourn[serve]'") from error
    from sojourn import event_loop
    from sojourn.train import resolve as recipes

    if resume and not (recipe / "config.toml").is_file():
        raise ConfigError(f"--resume {recipe}: this is no run folder: expected the one that the service began with")
    loaded = recipes.load(recipe, overrides or ()).recipe
    _require_live(loaded, recipe)
    run = recipe if resume else out or Path(loaded.record.folder) / loaded.name
    if not resume and run.exists():
        raise ConfigError(f"--out {run}: there is such a folder: name a new one, or go on with --resume {run}")
    words = [str(recipe), *(overrides or ()), *(["--resume"] if resume else ["--out", str(run)])]
    keeping = Keeping(consent=consent, idle_s=idle, days=days, mask=mask)
    address = Address.of(host, port, token)
    print_too_few_plays(loaded)
    event_loop.run(_serve_and_train(loaded, run, words, keeping, address))


def _require_live(recipe: Recipe, path: Path) -> None:
    if not learns_from_service(recipe):
        raise ConfigError(
            f"{path}: no stage learns from the service: expected one with groups = {{name = 'live'}}, "
            "alone or mixed with others"
        )
    if recipe.release is None:
        raise ConfigError(f"{path}: nothing says which weights may serve: add a table [release]")
    if not recipe.evaluation.every:
        raise ConfigError(
            f"{path}: evaluation.every = 0: weights are offered after evaluations: expected a number of steps"
        )


async def _serve_and_train(recipe: Recipe, run: Path, words: list[str], keeping: Keeping, address: Address) -> None:
    from sojourn.live.service_lock import ServiceLock
    from sojourn.live.store import LiveStore
    from sojourn.serving.live_server import LiveServer
    from sojourn.serving.opening import open_model, release_of
    from sojourn.serving.served_releases import ServedReleases
    from sojourn.serving.server import Service
    from sojourn.serving.trainer_process import TrainerProcess

    assert recipe.release is not None
    lock = ServiceLock(run / "live")
    with address.bind() as bound, closing(lock):
        lock.take()
        log = run.parent / f"{run.name}-{LOG}"
        log.parent.mkdir(parents=True, exist_ok=True)
        trainer = await TrainerProcess.start(words, log)
        watching = asyncio.create_task(_tell_end(trainer, run, log))
        try:
            store = LiveStore(run / "live")
            releases = ServedReleases(
                recipe.release, store, lambda one: open_model(release_of(run, one.folder, f"release {one.number}"))
            )
            print(f"sojourn live: the first weights are evaluated, then they serve (see {log})", flush=True)
            await _first(releases, trainer, run, log, lock)
            service = Service(names=(recipe.name,), params=recipe.sampling.params(), seed=recipe.seed)
            server = LiveServer(releases, store, keeping, service, address, _remover(trainer, run))
            await server.run(bound, _teller(run))
            store.close()
        finally:
            watching.cancel()
            code = await trainer.end()
    if code not in (0, 130, -2):
        raise InfrastructureError(f"the training ended with exit code {code}: {_tail(log)}")


async def _first(releases: ServedReleases, trainer: TrainerProcess, run: Path, log: Path, lock: ServiceLock) -> None:
    """Waits until the training offers the first weights."""
    while True:
        lock.take()  # as soon as the training has made the folder
        if (run / "live").is_dir() and await releases.begin():
            return
        if trainer.code is not None:
            raise RecordError(f"the training ended before it offered weights: {_tail(log)}")
        await asyncio.sleep(POLL_S)


async def _tell_end(trainer: TrainerProcess, run: Path, log: Path) -> None:
    """Says that the training has ended, while the service goes on."""
    if code := await trainer.process.wait():
        remedy = f"end the service, mend that, and go on with --resume {run}"
        told = f"the training ended with exit code {code}: {_tail(log)}; it serves on, and learns no more: {remedy}"
    else:
        told = "the training has ended: it serves on, and learns no more"
    print(f"sojourn live: {told}", file=sys.stderr, flush=True)


def _remover(trainer: TrainerProcess, run: Path) -> Callable[[], None]:
    from sojourn.live.removal import carry_out_alone

    def remove() -> None:
        if trainer.code is not None:  # while it runs, it does so itself
            carry_out_alone(run)

    return remove


def _teller(run: Path) -> Callable[[str], None]:
    def tell(line: str) -> None:
        print(line, flush=True)

    tell(f"run folder:          {run}")
    return tell


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-SHOWN:]
