"""Starts a screen in a sandbox of its own, and talks with it in lines of JSON.

Bubblewrap gives it a file system of its own (programs alone are seen, read-only), no network, an own list of processes,
and the life of its parent: when that ends, by whatever signal, all that runs in it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sojourn.envs.about import require_module, require_program
from sojourn.errors import ConfigError, InfrastructureError

PROGRAMS = {"bwrap": "bubblewrap", "Xvfb": "xvfb", "openbox": "openbox", "mousepad": "mousepad"}
HERE = Path(__file__).resolve().parent
SEEN = (  # read-only, where they are there
    *("/etc/fonts", "/etc/X11", "/etc/xdg", "/etc/ld.so.cache", "/etc/alternatives", "/etc/machine-id", "/etc/passwd"),
    *("/etc/gtk-3.0", "/var/cache/fontconfig", "/var/lib/dbus"),
)
HOME = "/home/user"
WIDTH, HEIGHT = 800, 600
ENDING_S = 30.0
LONGEST_ANSWER = 16 * 2**20  # bytes


def check(kinds: tuple[str, ...]) -> None:
    """Raises one sentence with the remedy where something that is needed is not installed."""
    require_module("Xlib", "sojourn-worlds[desktop]", "desktop")
    for program, package in PROGRAMS.items():
        if program != "mousepad" or "edit" in kinds:
            require_program(program, package, "desktop")
    if any(kind != "edit" for kind in kinds):
        try:
            import _tkinter  # noqa: F401
        except ImportError:
            raise ConfigError(
                "desktop needs a Python with tkinter for its own applications: install it (Debian: apt-get install "
                'python3-tk), or set kinds = ["edit"]'
            ) from None


def command() -> list[str]:
    """Returns the command that runs whatever follows it in a sandbox."""
    library = Path(require_module("Xlib", "sojourn-worlds[desktop]", "desktop").__file__ or "").resolve().parent.parent
    words = [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        "--ro-bind",
        "/usr",
        "/usr",
    ]
    for name in ("bin", "sbin", "lib", "lib64"):
        here = Path("/", name)
        if here.is_symlink():
            words += ["--symlink", os.readlink(here), str(here)]
        elif here.exists():
            words += ["--ro-bind", str(here), str(here)]
    for path in SEEN:
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home", "--dir", HOME]
    for path in dict.fromkeys((sys.base_prefix, str(library), str(HERE))):
        words += ["--ro-bind", path, path]
    variables = {
        **{"HOME": HOME, "PATH": "/usr/local/bin:/usr/bin:/bin", "DISPLAY": ":0", "PYTHONPATH": str(library)},
        **{"LANG": "C.UTF-8", "TZ": "UTC", "GSETTINGS_BACKEND": "memory", "NO_AT_BRIDGE": "1", "GTK_A11Y": "none"},
        **{"DBUS_SESSION_BUS_ADDRESS": "disabled:", "USER": "user", "LOGNAME": "user"},
    }
    for name, value in variables.items():
        words += ["--setenv", name, value]
    return [*words, "--uid", "1000", "--gid", "1000", "--chdir", HOME]


def python(script: str) -> list[str]:
    """Returns the command that runs a script of this folder in the sandbox, without the packages of the environment."""
    return [str(Path(sys.executable).resolve()), "-s", "-S", "-B", str(HERE / script)]


def panel_command(spec: Mapping[str, Any]) -> list[str]:
    return [*python("panel.py"), json.dumps(spec)]


class Screens:
    """Starts the next screen while others are played on, so that a play or a fork begins on one that is there; for as
    long as anybody keeps it."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._kept = 0
        self._next: asyncio.Task[Sandbox] | None = None

    def keep(self) -> None:
        self._kept += 1

    async def let_go(self) -> None:
        self._kept -= 1
        if self._kept == 0 and (ahead := await self._taken()) is not None:
            await ahead.close()

    async def take(self) -> Sandbox:
        """Returns a screen that was started; it is the caller's to close."""
        screen = await self._taken()
        if screen is not None and not screen.alive:
            await screen.close()
            screen = None
        if self._kept and self._next is None:
            self._next = asyncio.create_task(self._started())
        return screen or await self._started()

    async def _taken(self) -> Sandbox | None:
        """Returns the screen that was started ahead; None where there is none, or it failed to start."""
        ahead, self._next = self._next, None
        if ahead is None:
            return None
        try:
            return await asyncio.shield(ahead)
        except InfrastructureError:
            return None
        except asyncio.CancelledError:
            self._next = self._next or ahead
            raise

    async def _started(self) -> Sandbox:
        screen = Sandbox(self.timeout_s)
        try:
            await screen.start()
        except BaseException:  # cancellation included: nobody else knows it
            await screen.close()
            raise
        return screen


class Sandbox:
    """One screen, from `start` to `close`."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._broken = False
        self._up = False

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *(*command(), *python("screen.py"), str(WIDTH), str(HEIGHT)),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=LONGEST_ANSWER,
                env={"PATH": os.environ.get("PATH", os.defpath)},  # whatever bwrap has is read inside, in /proc/1
            )
        )
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._process = await starting  # asyncio would kill it: see `_end`
            raise

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def ask(self, do: str, *, picture: bool, **given: Any) -> Mapping[str, Any]:
        """Returns what the screen shows after a request; after a failed or cancelled one the sandbox can do no more."""
        process = self._process
        if process is None or self._broken or process.stdin is None or process.stdout is None:
            raise InfrastructureError("this desktop is closed: make a new one")
        self._broken = True
        try:
            async with asyncio.timeout(self.timeout_s):
                process.stdin.write(json.dumps({"do": do, "with": given, "picture": picture}).encode() + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
                if not answer:
                    raise InfrastructureError(f"the desktop ended: {await self._last_words(process)}")
        except TimeoutError as error:
            raise InfrastructureError(f"the desktop gave no answer within {self.timeout_s} s") from error
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"the desktop cannot be reached: {error}") from error
        self._broken, self._up = False, True
        return json.loads(answer)

    async def _last_words(self, process: asyncio.subprocess.Process) -> str:
        output = await process.stderr.read() if process.stderr else b""
        return (output.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.shield(self._end(process))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Ends the screen by closing its input. Kills bubblewrap only where it has answered before, since it leaves a
        part of the sandbox behind when it is killed during its set-up."""
        if self._up and process.returncode is None:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(ENDING_S):
                await process.communicate()  # the screen ends with its input
        except TimeoutError:
            process.kill()
            await process.communicate()
