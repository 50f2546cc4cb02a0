"""An agent that is a program of its own, which talks to the model over HTTP."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated

from sojourn.agents.programs.presets import PRESETS, PresetName, Started
from sojourn.agents.programs.process import TASK_FILE, InFolder, InSandbox, fault_of
from sojourn.agents.programs.seat import Bounds, ProgramSeat
from sojourn.config.fields import TEXT, Range, Text
from sojourn.errors import MissingExtraError
from sojourn.protocols import AgentContext

READ = Text(r"/[^\0]*", "the absolute path of a folder")


@dataclass(frozen=True, kw_only=True)
class Program:
    """Starts the `command` of a program for each episode, whose requests to the model become the turns that are
    trained. It needs no change but its base URL.

    The program finds the model at `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL`, the task in `SOJOURN_TASK` and in a file,
    task.txt, whose path is in `SOJOURN_TASK_FILE`, and the world as a server of tools (MCP) at `SOJOURN_MCP_URL`, or
    over plain HTTP below `SOJOURN_URL`. In `command`, `variables` (of its environment) and `files` (texts by their
    paths in its folder), these stand for their values: {base_url}, {url}, {mcp_url}, {key}, {model}, {task},
    {task_file}, {folder}, and {socket}, a Unix socket of the gateway.

    No argument and no variable can hold a task of more than 128 KiB, or one with a character of code 0: such an episode
    is a failure of the infrastructure, unless {task_file} is among these, for a program that reads the file; then
    `SOJOURN_TASK` is not set.

    Where the world is acted in by a browser, the program drives it by the Chrome DevTools Protocol (CDP), at the
    address `SOJOURN_CDP_URL`, {cdp_url}; without a sandbox, at the Unix socket {cdp_socket}.

    The episode ends when the world says so, or when the program ends; then, `last_action` is performed first, if there
    is one: a text, in which {reply} is the model's last reply, and {output} what the program printed. Replies are
    sampled as the recipe says. The program has at most `replies` of them, and `seconds`. One that ends before the
    first reply, or has none in its time, is a failure of the infrastructure; one that fails later has the info
    `program_failed`.

    A `preset` starts a known agent of the command line on the task, and gives it the model and the world's tools:
    Claude Code ("claude"), Codex ("codex"), mini-swe-agent ("mini"), opencode ("opencode") or pi ("pi"), whose programs
    have these names. Then `command` may name the path of that program, and further arguments; `variables` and `files`
    replace the preset's of the same names.

    With `sandbox`, it has no network but the gateway, and sees /usr, the folders `read`, and an empty folder /task; it
    may have `memory_bytes`, `disk_bytes` in /task, and `processes` at once. Without, it may do all that whoever trains
    may do, as a command that starts a container must.
    """

    command: tuple[Annotated[str, TEXT], ...] = ()
    preset: PresetName = ""
    variables: Mapping[str, Annotated[str, TEXT]] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    last_action: str = ""
    replies: Annotated[int, Range(1)] = 64
    seconds: Annotated[float, Range(above=0)] = 600.0
    sandbox: bool = True
    read: tuple[Annotated[str, READ], ...] = ()
    memory_bytes: Annotated[int, Range(2**26)] = 2**31
    disk_bytes: Annotated[int, Range(2**16)] = 2**28
    processes: Annotated[int, Range(4)] = 256

    def __post_init__(self) -> None:
        if (not self.command and not self.preset) or (self.command and not self.command[0].strip()):
            raise ValueError("command = []: expected a program and its arguments, or a preset")
        if self.read and not self.sandbox:
            raise ValueError("read says what a sandbox shows, but sandbox = false: leave one of them out")
        for name, value in self.variables.items():
            if not name or "=" in name or "\0" in name:
                raise ValueError(f"variables has the name {name!r}: expected that of a variable, such as HOME")
            if fault := fault_of(f"{name}={value}"):
                raise ValueError(f"variables.{name} {fault}: expected a shorter text: put it into a file of `files`")
        _check_paths(self.started.files)

    @property
    def started(self) -> Started:
        """Returns how the program is started: as the user says, or as the preset does with what the user adds."""
        own = Started(self.command, self.variables, self.files)
        return PRESETS[self.preset].started(*own) if self.preset else own

    @property
    def program(self) -> str:
        return f"the program {self.started.command[0]!r}"

    @property
    def drives_browsers(self) -> bool:
        """Returns whether the program is told where the browser of a world is: in a sandbox, or as it asks for it."""
        return self.sandbox or self.mentions("{cdp_socket}")

    def mentions(self, placeholder: str) -> bool:
        """Returns whether the command, the variables or the files have a placeholder."""
        return self.started.mentions(placeholder)

    def require_installed(self) -> None:
        """Raises `MissingExtraError` where the program of a preset is not on this machine, or not in its sandbox."""
        if not self.preset:
            return
        name = self.started.command[0]
        path = shutil.which(name)
        if path is None:
            raise MissingExtraError(
                f"agent.preset = {self.preset!r} needs the program {name!r}: install it "
                f"({PRESETS[self.preset].install}), or set agent.command to its path"
            )
        shown = ("/usr", *self.read)
        hidden = [one for one in (os.path.abspath(path), os.path.realpath(path))
                  if not any(Path(one).is_relative_to(os.path.abspath(folder)) for folder in shown)]  # fmt: skip
        if self.sandbox and hidden:
            raise MissingExtraError(
                f"agent.preset = {self.preset!r} starts {hidden[0]}, but its sandbox shows {', '.join(shown)} alone: "
                "add the folder of its installation to agent.read, or set agent.sandbox = false"
            )

    def seat(self, context: AgentContext) -> ProgramSeat:
        started = self.started
        if self.preset and (path := shutil.which(started.command[0])):
            started = started._replace(command=(os.path.abspath(path), *started.command[1:]))
        run = InFolder(started=started)
        if self.sandbox:
            run = InSandbox(
                started=started, read=self.read, memory_bytes=self.memory_bytes, disk_bytes=self.disk_bytes,
                processes=self.processes,
            )  # fmt: skip
        bounds = Bounds(seconds=self.seconds, replies=self.replies, last_action=self.last_action)
        return ProgramSeat(context, run, bounds)


def _check_paths(files: Mapping[str, str]) -> None:
    """Raises `ValueError` where the path of a file does not lead below a folder, or leads below another file."""
    for path in files:
        one = PurePosixPath(path)
        if str(one) != path or path == "." or one.is_absolute() or ".." in one.parts or "\0" in path:
            raise ValueError(f"files has the path {path!r}: expected one below the program's folder, such as agent.py")
        if above := [str(parent) for parent in one.parents if str(parent) in (*files, TASK_FILE)]:
            raise ValueError(f"files has the path {path!r}, but {above[0]!r} is a file: expected a folder: rename one")
