"""Sojourn from Python: train, evaluate, load a run's policy, and read a run, in a script and in a notebook."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sojourn import event_loop
from sojourn.config import toml
from sojourn.config.objects import table_of
from sojourn.config.passed import PREFIX
from sojourn.config.registry import shown
from sojourn.errors import ConfigError, leaf
from sojourn.record import metrics
from sojourn.record.episodes.store import EpisodeStore
from sojourn.record.run import RunFolder
from sojourn.record.run_weights import NamedRun
from sojourn.record.summary import Summary
from sojourn.terminal.jsonable import jsonable
from sojourn.types import Episode, Message, Role, Tool

if TYPE_CHECKING:
    from sojourn.train.assemble import Components
    from sojourn.train.resolve import Resolved

T = TypeVar("T")
Recipe = str | Path | Mapping[str, Any]


def train(
    recipe: Recipe, *, out: str | Path | None = None, resume: bool = False, progress: bool = True, **overrides: Any
) -> Run:
    """Trains by a recipe (a TOML file, a run folder, or a table), and returns the run.

    An override replaces a value of the recipe: `seed=1`, `model={"name": "tiny"}`, or, with dots,
    `**{"stages.rl.optim.lr": 1e-4}`. Where a recipe has the table of a component, it takes an object too: a class, or
    an instance. `resume` goes on with a run folder from its last checkpoint; objects that it was given are given again,
    and overrides change what may change of a run, such as `**{"stages.rl.steps": 200}`.
    """
    from sojourn.commands import train as command

    path = _resumed(recipe) if resume else None
    resolved = _resolved(recipe, overrides)
    before = _resolved(recipe, _passed(path, overrides)) if path is not None else resolved
    with command.run_folder(resolved, path, Path(out) if out else None) as folder:
        changed = command.change_config(folder, before, resolved, progress)
        _wait(command.train_in(resolved, folder, resume, changed, progress))
    return Run(folder.path)


def evaluate(
    what: Recipe,
    *,
    split: str = "",
    greedy: bool = False,
    expert: bool = False,
    progress: bool = True,
    **overrides: Any,
) -> Summary:
    """Evaluates a run (its best checkpoint, or RUN@STEP), or the untrained model of a recipe, on its fixed panel of
    tasks; with `expert`, the world's scripted expert. Returns rates and means with 95% intervals."""
    from sojourn.commands import evaluate as command

    chosen = {"evaluation.split": split} if split else {}
    chosen |= {"evaluation.temperature": 0.0} if greedy else {}
    named = None if isinstance(what, Mapping) else NamedRun.parse(what)
    resolved = _resolved(what if named is None else named.folder, {**chosen, **overrides})
    run = named if named is not None and named.folder.is_dir() else None
    return _wait(command.evaluate_run(resolved, run, expert, progress))


def load(run: str | Path, *, greedy: bool = False, **overrides: Any) -> Policy:
    """Loads the policy of a run (its best checkpoint, or RUN@STAGE, RUN@STEP, RUN@last, RUN@before); close it, or use
    it in a `with` block."""
    named = NamedRun.parse(run)
    RunFolder.read(named.folder)
    return Policy(named, _resolved(named.folder, overrides), greedy)


def open(run: str | Path) -> Run:
    """Opens a run to read it, also while it trains."""
    return Run(Path(run))


class Run:
    """A run that can be read: its records are lists of flat dictionaries, from which pandas and polars make frames."""

    def __init__(self, path: Path) -> None:
        self.path = RunFolder.read(path).path

    def __repr__(self) -> str:
        return f"sojourn.open({str(self.path)!r})"

    @property
    def config(self) -> dict[str, Any]:
        """Returns the run's complete config."""
        return RunFolder.read(self.path).config

    def metrics(self, stage: str = "") -> list[dict[str, Any]]:
        """Returns a record for each step: its stage, its number, and its metrics."""
        lines = metrics.read(self.path / "metrics.jsonl") if (self.path / "metrics.jsonl").exists() else ()
        return [{"stage": line.stage, "step": line.step, **line.values} for line in lines if stage in ("", line.stage)]

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns a record for each evaluation, the oldest first: its name, and rates and means with intervals."""
        found = RunFolder.read(self.path).evaluations()
        return [
            {"name": e["name"], **{k: v for k, v in toml.leaves(e["summary"]["overall"], "") if v != {}}} for e in found
        ]

    def episodes(self, stage: str = "", **where: Any) -> list[dict[str, Any]]:
        """Returns a record for each episode, the oldest first. `where` chooses as `EpisodeStore.query` does, such as
        `step=3`, `failed=True` or `limit=100`."""
        with EpisodeStore(self.path) as store:
            chosen = {**({"stage": stage} if stage else {}), **where}
            return [_record(row) for row in store.query(**chosen)]

    def episode(self, id: str) -> Episode:
        """Returns a whole episode, with its turns and exact tokens, by the id of its record."""
        with EpisodeStore(self.path) as store:
            return store.load(id)

    def policy(self, **options: Any) -> Policy:
        """Loads the best weights, as `sojourn.load` does."""
        return load(self.path, **options)


class Policy:
    """The policy of a run, which answers, plays and is exported.

    Its engine works in a thread of its own, so that it can be used in a script and in a notebook alike.
    """

    def __init__(self, named: NamedRun, resolved: Resolved, greedy: bool = False) -> None:
        self.run = Run(named.folder)
        self._named, self._resolved = named, resolved
        self._temperature = 0.0 if greedy else None
        self._open = AsyncExitStack()
        self._loop = _Loop()
        try:
            self._components: Components = self._loop.wait(self._enter())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(
        self,
        messages: str | list[Message],
        tools: tuple[Tool, ...] = (),
        *,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> Message:
        """Returns the policy's next message in a conversation; a text is what a user says.

        Raises `ActionError` where what was sampled cannot be read, such as a tool call that was cut off.
        """
        said = [Message(Role.USER, messages)] if isinstance(messages, str) else messages
        if odd := [one for one in said if not isinstance(one, Message)]:
            raise ConfigError(f"{shown(odd[0])} is no message: expected a text, or Message(Role.USER, 'Hi') and others")
        self._require_open()
        return self._loop.wait(self._answer(said, tools, max_tokens, seed))

    def play(self, task: int = 0, *, split: str = "test") -> Episode:
        """Plays task number `task` of a split in the run's world, with the run's agent, and returns the episode."""
        self._require_open()
        return self._loop.wait(self._play(operator.index(task), split))

    def export(self, out: str | Path, format: str = "hf", dtype: str = "fp32") -> Path:
        """Writes the model into a new folder, as `sojourn export` does."""
        from sojourn.model_export import export_model

        export_model(self._name, Path(out), format, dtype)
        return Path(out)

    def close(self) -> None:
        """Releases the model and the world."""
        if self._loop.running:
            self._loop.wait(self._open.aclose())
            self._loop.close()

    @property
    def _name(self) -> str:
        return f"{self._named.folder}@{self._named.weights}" if self._named.weights else str(self._named.folder)

    def _require_open(self) -> None:
        if not self._loop.running:
            raise ConfigError(
                f"this policy is closed: call sojourn.load({self._name!r}) again, and use it in its `with`"
            )

    async def _enter(self) -> Components:
        from sojourn.commands.evaluate import load_weights
        from sojourn.train.assemble import assemble

        components = await self._open.enter_async_context(assemble(self._resolved.recipe))
        await load_weights(components, self._named)
        return components

    def _params(self) -> Any:
        recipe = self._resolved.recipe
        params = recipe.evaluation.params(recipe.sampling)
        return params if self._temperature is None else replace(params, temperature=self._temperature)

    async def _answer(self, messages: list[Message], tools: tuple[Tool, ...], limit: int | None, seed: int) -> Message:
        params = replace(self._params(), seed=seed)
        params = params if limit is None else replace(params, max_tokens=limit)
        renderer = self._components.renderer
        sample = await self._components.sampler.sample(renderer.open(messages, tools), params)
        return renderer.parse(sample.tokens.tolist())

    async def _play(self, number: int, split: str) -> Episode:
        from sojourn.tasks.listed import some_tasks

        tasks = some_tasks(self._resolved.recipe.env, split)
        if not 0 <= number < len(tasks):
            raise ConfigError(f"task {number}: the split '{split}' has the tasks 0 to {len(tasks) - 1}")
        label = f"evaluation-python-{split}/{number}"
        group = await self._components.runner.play_group(tasks[number], number, 1, self._params(), label)
        return group.episodes[0]


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sojourn", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        ended = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return ended.result()
        except BaseException:
            ended.cancel()  # where it is not over, as where somebody stops a notebook's cell
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _wait(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end, in a thread where this one has a running event loop, as in a notebook. Of several
    errors that stopped it, it raises the first."""
    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return event_loop.run(work)
        return _wait_in_thread(work)
    except BaseExceptionGroup as errors:
        raise leaf(errors) from errors


def _wait_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in a thread. What interrupts this one meanwhile, as the stop button of a notebook
    does, cancels the coroutine, and is raised once that has ended."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await work

    with ThreadPoolExecutor(1, thread_name_prefix="sojourn") as pool:
        ended = pool.submit(event_loop.run, cancellable())
        try:
            return ended.result()
        except BaseException:
            if not ended.done():
                loop, task = begun.result()
                with suppress(RuntimeError):  # it has ended since
                    loop.call_soon_threadsafe(task.cancel)
            raise


def _resolved(recipe: Recipe, overrides: Mapping[str, Any]) -> Resolved:
    """Reads a recipe with its overrides."""
    from sojourn.commands.arguments import resolve_tables

    if isinstance(recipe, Mapping):
        tables = toml.Tables()
        tables.merge(table_of(recipe, ""), "Python")
    else:
        tables = toml.read(Path(recipe))
    for key, value in overrides.items():
        for place in _places(tables, key):
            tables.set(place, table_of(value, key))
    return resolve_tables(tables)


def _places(tables: toml.Tables, key: str) -> list[str]:
    """Returns the keys that an override is of. A run's config has the keys for all stages in each of them: one that
    gives objects back is of the stages that were given such objects."""
    stages = [stage for stage in tables.data.get("stages", ()) if isinstance(stage, Mapping)]
    held = [f"stages.{number}.{key}" for number, stage in enumerate(stages) if _objects(stage.get(key))]
    return held if held and key not in tables.data else [key]


def _objects(value: Any) -> int:
    """Returns how many objects of a Python program a config, or a part of it, names."""
    names = (item for path, item in toml.leaves(value, "") if path.rpartition(".")[2] == "name")
    return sum(str(name).startswith(PREFIX) for name in names)


def _resumed(recipe: Recipe) -> Path:
    if isinstance(recipe, Mapping):
        raise ConfigError("resume=True goes on with a run: give its folder, not a table")
    return Path(recipe)


def _passed(run: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the overrides that give a run the objects back that it was given when it began."""
    given: dict[str, Any] = {}
    for key, value in overrides.items():
        tables = toml.read(run)
        before = _objects(tables.data)
        for place in _places(tables, key):
            tables.set(place, "")
        if _objects(tables.data) < before:
            given[key] = value
    return given


def _record(row: Any) -> dict[str, Any]:
    """Returns an episode's row as a flat record; parts of its reward are `part.NAME`."""
    record = jsonable(row)
    parts = record.pop("parts", None) or {}
    return {**record, **{f"part.{name}": value for name, value in parts.items()}}
