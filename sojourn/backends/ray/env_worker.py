"""The actor in which plays of a world run: `Env` as calls that name a play by its number, and their answers.

An answer is pickled here, and holds an error of the world as it was raised, since Ray would wrap it in one of its own.
With each answer come the state key, new images and the abilities of its play, which are asked for without waiting.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ray.cloudpickle.cloudpickle import dumps

from sojourn.abilities import HasBlobs, HasNativeActions, HasWorlds, blobs_of, play_abilities
from sojourn.backends.ray.cluster import code_digest, require_same_code
from sojourn.backends.ray.reports import Report
from sojourn.envs.expert import expert_action
from sojourn.errors import ActionError, BudgetError, ConfigError, InfrastructureError, LostPlayError, WorldError, cause
from sojourn.event_loop import contained
from sojourn.protocols import Env, EnvFamily
from sojourn.rollout.world import open_world, worlds_of
from sojourn.secrets import masked
from sojourn.types import Message, Observation, Step, Task

LOST = (
    "the worker process that held this play ended (it was killed, ran out of memory, or its machine is gone), so that "
    "the play is lost"
)
KINDS = (ActionError, BudgetError, ConfigError, WorldError, LostPlayError)  # whose errors are told apart elsewhere
NATIVE, BLOBS = "native_action", "blobs"  # abilities of a play, beside `PLAY_ABILITIES`


class Expert(NamedTuple):
    """Holds what an expert would say, and the message that does it where agents act by structured calls alone."""

    text: str
    native: Message | None


class Answer(NamedTuple):
    """Holds what a call gave, or its error; and what its play can do by then, its state key (or the error of asking for
    it), and the images that it has shown since the last answer."""

    value: Any = None
    error: BaseException | None = None
    abilities: frozenset[str] = frozenset()
    key: str | BaseException | None = None
    blobs: Mapping[str, bytes] = {}

    def get(self) -> Any:
        """Returns the value, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(eq=False)
class HeldPlay:
    env: Env
    sent: set[str] = field(default_factory=set[str])  # digests of the images that the driver has


class EnvWorker:
    """Holds a family of environments, given pickled, and its plays. Plays in one worker run concurrently, as they do in
    one process. `paths` are the driver's: from where the code of the world may be imported, if it is there."""

    def __init__(self, family: bytes, paths: Sequence[str]) -> None:
        self._pickled, self._paths = family, paths
        self._family: EnvFamily | None = None
        self._open = AsyncExitStack()
        self._plays: dict[int, HeldPlay] = {}
        self._running: dict[int, set[asyncio.Task[Answer]]] = {}  # calls, by the plays that they are of
        self._closed_unseen: set[int] = set()  # plays that were closed before they were here: Ray may reorder calls

    async def ready(self, code: str) -> bytes:
        """Opens the world, unless that is done, and closes plays that another user of this worker left. `code` is the
        digest of the driver's code."""
        return _pickled(await self._outcome(self._ready(code)))

    async def live(self, seconds: float) -> None:
        """Returns after some time, and so fails when this process ends before, and is late where it is stuck."""
        await asyncio.sleep(seconds)

    async def report(self) -> Report:
        """Returns where this process is, and its memory."""
        world = "" if self._family is None else ", ".join(type(world).__name__ for world in worlds_of(self._family))
        return await Report.with_children({"world": world})

    async def abilities(self, path: Sequence[int], task: Task) -> bytes:
        """Answers what plays of a task can do; one is made for it, and closed."""
        return _pickled(await self._outcome(self._abilities(path, task)))

    async def start(self, number: int, path: Sequence[int], task: Task) -> bytes:
        """Makes a play and starts it; `path` leads to its world, by the numbers of worlds within the family."""
        return await self._answer([number], self._start(number, path, task))

    async def step(self, number: int, agent: str, action: Message) -> bytes:
        return await self._answer([number], self._step(number, agent, action))

    async def fork(self, number: int, copy: int) -> bytes:
        """Forks a play; the answer is that of the copy."""
        return await self._answer([copy, number], self._fork(number, copy))

    async def expert(self, number: int) -> bytes:
        return await self._answer([number], self._expert(number))

    async def native_action(self, number: int, text: str) -> bytes:
        return await self._answer([number], self._native_action(number, text))

    async def close(self, number: int) -> bytes:
        """Cancels what a play still does, and closes it. A play that is not here yet will not begin."""
        return _pickled(await self._outcome(self._close(number)))

    async def end(self) -> bytes:
        """Closes all plays that are left, and the world; the answer is how many plays were left."""
        return _pickled(await self._outcome(self._end()))

    async def _answer(self, numbers: list[int], call: Coroutine[Any, Any, Any]) -> bytes:
        """Returns the answer of a call, which ends early where one of these plays is closed; the first is shown."""
        task = asyncio.create_task(self._outcome(call))
        for number in numbers:
            self._running.setdefault(number, set()).add(task)
        await asyncio.wait({task})
        for number in numbers:
            self._running[number].discard(task)
            if not self._running[number]:
                del self._running[number]
        answer = Answer(error=asyncio.CancelledError()) if task.cancelled() else task.result()
        return _pickled(_showing(answer, self._plays.get(numbers[0])))

    async def _outcome(self, call: Coroutine[Any, Any, Any]) -> Answer:
        """Returns a SystemExit as a value, too: one that leaves a task would end the worker."""
        try:
            return Answer(await contained(call))
        except (ActionError, BudgetError) as error:
            return Answer(error=error)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            error.add_note(masked("".join(["on the worker:\n", *traceback.format_exception(error)])))
            return Answer(error=error)

    def _play(self, number: int) -> HeldPlay:
        if number not in self._plays:  # it was in a worker that ended, in whose place this one is
            raise LostPlayError(LOST)
        return self._plays[number]

    def _world(self, path: Sequence[int]) -> EnvFamily:
        if self._family is None:
            raise LostPlayError(LOST)
        world = self._family
        for number in path:
            assert isinstance(world, HasWorlds)
            world = world.worlds[number]
        return world

    async def _ready(self, code: str) -> None:
        require_same_code({f"environment worker on {socket.gethostname()}": code_digest()}, code)
        await self._close_all()
        if self._family is not None:
            return
        sys.path += [path for path in self._paths if path not in sys.path]
        try:
            family: EnvFamily = pickle.loads(self._pickled)
        except Exception as error:
            raise ConfigError(f"the world cannot be made in a worker process: {cause(error)}") from error
        await self._open.enter_async_context(open_world(family))
        self._family = family

    async def _abilities(self, path: Sequence[int], task: Task) -> frozenset[str]:
        env = self._world(path).make(task)
        found = _abilities_of(env)
        with suppress(Exception):  # closing the play itself will tell
            await env.close()
        return found

    async def _start(self, number: int, path: Sequence[int], task: Task) -> Observation:
        self._require_wanted(number)
        play = self._plays[number] = HeldPlay(self._world(path).make(task))
        return await play.env.start()

    async def _step(self, number: int, agent: str, action: Message) -> Step:
        return await self._play(number).env.step(agent, action)

    async def _fork(self, number: int, copy: int) -> None:
        self._require_wanted(copy)
        play: Any = self._play(number)
        self._plays[copy] = HeldPlay(await play.env.fork(), set(play.sent))

    async def _expert(self, number: int) -> Expert:
        env: Any = self._play(number).env
        text = await expert_action(env)
        return Expert(text, env.native_action(text) if isinstance(env, HasNativeActions) else None)

    async def _native_action(self, number: int, text: str) -> Message:
        env: Any = self._play(number).env
        return env.native_action(text)

    def _require_wanted(self, number: int) -> None:
        if number in self._closed_unseen:
            self._closed_unseen.remove(number)
            raise InfrastructureError("this play was closed before it began")

    async def _close(self, number: int) -> None:
        if running := set(self._running.get(number, ())):
            for call in running:
                call.cancel()
            await asyncio.wait(running)
        elif number not in self._plays:
            self._closed_unseen.add(number)
        if (play := self._plays.pop(number, None)) is not None:
            await play.env.close()

    async def _close_all(self) -> int:
        left = [*self._plays]
        await asyncio.gather(*(self.close(number) for number in left))
        self._closed_unseen.clear()  # another user counts plays anew
        return len(left)

    async def _end(self) -> int:
        left = await self._close_all()
        await self._open.aclose()
        self._family = None
        return left


def _abilities_of(env: object) -> frozenset[str]:
    others = {NATIVE: HasNativeActions, BLOBS: HasBlobs}
    return play_abilities(env) | {name for name, ability in others.items() if isinstance(env, ability)}


def _showing(answer: Answer, play: HeldPlay | None) -> Answer:
    """Returns the answer with what its play, if it is still there, shows now."""
    if play is None:
        return answer
    env: Any = play.env
    try:
        abilities = _abilities_of(env)
        new = {digest: image for digest, image in blobs_of(env).items() if digest not in play.sent}
    except Exception as error:
        return Answer(error=answer.error or error)
    play.sent |= new.keys()
    key = None
    if "state_key" in abilities:
        try:
            key = env.state_key()
        except (Exception, SystemExit) as error:  # for whoever asks for it
            key = error
    return answer._replace(abilities=abilities, key=key, blobs=new)


def _pickled(answer: Answer) -> bytes:
    """Pickles an answer; one that cannot be pickled, or not be read again, becomes an error that says so."""
    try:
        data: bytes = dumps(answer)
        if answer.error is not None:
            pickle.loads(data)
        return data
    except Exception as error:
        if answer.error is None:
            said = f"what the world gives cannot be sent to another process ({cause(error)}): expected plain values"
            return dumps(Answer(error=WorldError(said)))
        kind = next((kind for kind in KINDS if isinstance(answer.error, kind)), InfrastructureError)
        told = kind(cause(answer.error))
        told.__notes__ = [*getattr(answer.error, "__notes__", ())]
        return dumps(Answer(error=told))


def pickled_family(family: EnvFamily) -> bytes:
    """Returns a family as workers are given it."""
    try:
        return dumps(family)
    except Exception as error:
        raise ConfigError(
            f"the world {_unsendable(family)} cannot be sent to worker processes ({cause(error)}): let it make locks, "
            "threads and connections in open(), or leave backend.envs out"
        ) from error


def import_paths() -> list[str]:
    """Returns from where this process imports code; workers do, too, where they have the folders."""
    return [os.path.abspath(path) for path in sys.path]


def _unsendable(family: EnvFamily) -> str:
    """Returns the name of the world that cannot be pickled."""
    for world in worlds_of(family):
        try:
            dumps(world)
        except Exception:
            return type(world).__name__
    return type(family).__name__
