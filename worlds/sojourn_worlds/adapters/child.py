"""The other end of a `bridge`: a foreign interpreter that plays environments, and ends with us whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sojourn.envs.variables import check_variables, fill_variables, inherited_variables
from sojourn.errors import ActionError, ConfigError, InfrastructureError
from sojourn_worlds.adapters import guard

BRIDGE = Path(__file__).with_name("bridge.py")
LONGEST_LINE_BYTES = 2**27
GRACE_S = 6.0  # to close in its own time
STARTED = -1  # the number of the reply that nobody asked for, the first


@dataclass(frozen=True)
class Interpreter:
    """Says how to start a bridge: `kind` names the bridged file, `packages` what pip is to install for it."""

    kind: str
    python: str
    packages: str
    paths: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_variables(self.kind, {"environment": self.environment})
        if shutil.which(self.python) is None:
            raise ConfigError(
                f'{self.kind}: python = "{self.python}" is no interpreter: make one (python3 -m venv '
                f".venvs/{self.kind} && .venvs/{self.kind}/bin/pip install {self.packages}), and name it"
            )

    @property
    def command(self) -> list[str]:
        """Returns the command of a guarded bridge, which dies with us."""
        bridge = [self.python, str(BRIDGE), self.kind]
        return [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), "", *bridge]

    @property
    def surroundings(self) -> dict[str, str]:
        """Returns its environment variables: ours that hold no keys, its own programs first, and those of the
        config."""
        own = inherited_variables()
        own["PATH"] = os.pathsep.join([os.path.dirname(os.path.abspath(self.python)), own.get("PATH", os.defpath)])
        own["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in self.paths)
        return {**own, **fill_variables(self.environment)}

    def understood(self, reply: Mapping[str, Any], do: str) -> Any:
        if "missing" in reply:
            raise ConfigError(
                f"{self.kind}: {self.python} lacks a package ({reply['missing']}): "
                f"{self.python} -m pip install {self.packages}"
            )
        if "refused" in reply:
            raise ActionError(reply["refused"])
        if "failed" in reply:
            raise InfrastructureError(f"{self.kind}: {do} failed ({reply['failed']})")
        return reply["result"]

    def ask_once(self, do: str, timeout_s: float, **arguments: Any) -> Any:
        """Asks one question of a bridge that is started for it alone, and waits without an event loop."""
        request = json.dumps({"id": 0, "play": 0, "do": do, "with": arguments}) + "\n"
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.surroundings,
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            late = threading.Timer(timeout_s, process.terminate)
            late.start()
            try:
                for asked in ("", request):
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.write(asked)
                        process.stdin.flush()
                    if not (line := process.stdout.readline()):
                        raise InfrastructureError(
                            f"{self.kind}: {self.python} ended in {do}, or took over {timeout_s:g} s{_last(errors)}"
                        )
                    result = self.understood(json.loads(line), do)
            finally:
                late.cancel()
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        return result


class Child:
    """A running bridge: `ask` calls a method of one of its episodes."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.process: asyncio.subprocess.Process | None = None
        self.reader: asyncio.Task[None] | None = None
        self.asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self.errors: Any = None
        self.numbers = itertools.count()

    @property
    def alive(self) -> bool:
        return self.reader is not None and not self.reader.done()

    async def open(self, timeout_s: float) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by close)
        self.process = await asyncio.create_subprocess_exec(
            *self.interpreter.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=self.interpreter.surroundings,
            limit=LONGEST_LINE_BYTES,
            start_new_session=True,
        )
        waits = self._awaited(STARTED)
        self.reader = asyncio.create_task(self._read(self.process), name=f"reads {self.interpreter.kind}")
        await self._reply(waits, STARTED, "start", timeout_s)

    async def ask(self, play: int, do: str, timeout_s: float, **arguments: Any) -> Any:
        """Returns the method's result; raises `ActionError` where it refuses, `InfrastructureError` where it fails."""
        process = self.process
        if process is None or process.stdin is None or not self.alive:
            raise InfrastructureError(
                f"{self.interpreter.kind}: {self.interpreter.python} has ended{self._stderr_tail()}"
            )
        number = next(self.numbers)
        waits = self._awaited(number)
        with contextlib.suppress(ConnectionError):  # the reply that does not come says it better
            process.stdin.write(json.dumps({"id": number, "play": play, "do": do, "with": arguments}).encode() + b"\n")
            await process.stdin.drain()
        return await self._reply(waits, number, do, timeout_s)

    async def close(self) -> None:
        """Lets it close by itself, ends it where it does not, and waits until it is gone."""
        process, self.process = self.process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                async with asyncio.timeout(GRACE_S):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()  # the guard takes all it has started along
            await process.wait()
        if self.reader is not None:
            await asyncio.wait({self.reader})
        if self.errors is not None:
            self.errors.close()

    def _awaited(self, number: int) -> asyncio.Future[Mapping[str, Any]]:
        self.asked[number] = asyncio.get_running_loop().create_future()
        return self.asked[number]

    async def _reply(self, waits: asyncio.Future[Mapping[str, Any]], number: int, do: str, timeout_s: float) -> Any:
        kind = self.interpreter.kind
        try:
            async with asyncio.timeout(timeout_s):
                reply = await waits
        except TimeoutError:
            raise InfrastructureError(
                f"{kind}: {do} took longer than {timeout_s:g} s{self._stderr_tail()}: raise timeout_s if it needs more"
            ) from None
        finally:
            del self.asked[number]
        if not reply:
            raise InfrastructureError(f"{kind}: {self.interpreter.python} ended in {do}{self._stderr_tail()}")
        return self.interpreter.understood(reply, do)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hands replies to the callers that wait; those who still wait at the end get an empty one."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                reply = json.loads(line)
                waits = self.asked.get(reply["id"])
                if waits is not None and not waits.done():
                    waits.set_result(reply)
        finally:
            for waits in self.asked.values():
                if not waits.done():
                    waits.set_result({})

    def _stderr_tail(self) -> str:
        """Returns the last line of its standard error."""
        if self.errors is None or self.errors.closed:
            return ""
        return _last(self.errors)


def _last(errors: Any) -> str:
    errors.seek(0)
    lines = [line for line in errors.read()[-4_000:].splitlines() if line.strip()]
    return f" ({lines[-1].strip()[:300]})" if lines else ""
