"""A person takes the agent's seat, in the terminal: to play an environment, or to watch its expert."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from sojourn.abilities import Closes, HasExpert, Opens
from sojourn.errors import ActionError, ConfigError
from sojourn.protocols import Env, EnvFamily
from sojourn.terminal.clean import clean
from sojourn.types import Message, Observation, Role, Step, Task, Tool

HELP = "say an action, or the number of a choice; :hint for the expert's, :quit to leave"
SHOWN = 20_000  # characters of one message


@dataclass(frozen=True)
class Played:
    """Holds how a person's play went. `done` is False where they left before the end."""

    turns: int
    reward: float
    success: bool
    done: bool


@dataclass
class Terminal:
    """The terminal as the place of one play."""

    env: Env
    console: Console
    stream: TextIO | None
    tools: tuple[Tool, ...] = ()  # as they were shown last

    def show(self, observation: Observation) -> None:
        for message in observation.system:
            self.say(message.text, "dim")
        shown, self.tools = self.tools, observation.tools or self.tools
        for tool in self.tools if observation.system or self.tools != shown else ():
            self.say(f"  {tool.name}({', '.join(tool.parameters.get('properties', {}))})  {tool.description}", "dim")
        if observation.agent != "agent":
            self.say(f"[{observation.agent}]", "bold")
        for message in observation.messages:
            self.say(message.text)
        for image in (image for message in observation.messages for image in message.images):
            self.say(f"(image {image})", "dim")
        for number, choice in enumerate(observation.choices, start=1):
            self.say(f"  {number}  {choice}", "cyan")

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(clean(text, SHOWN), style=style))

    async def ask(self, observation: Observation) -> str | None:
        """The action that the person chose, or None where they leave."""
        while True:
            line = await _in_thread(self._line)
            if line is None or line.strip() == ":quit":
                return None
            said = line.strip()
            if said == ":hint":
                self.say(await _hint(self.env) or "there is no expert here", "yellow")
            elif said in ("", ":help"):
                self.say(HELP, "dim")
            elif said.startswith(":"):
                self.say(f"there is no command {said}: {HELP}", "yellow")
            elif said not in observation.choices and said.isdecimal() and 0 < int(said) <= len(observation.choices):
                return observation.choices[int(said) - 1]
            else:
                return said

    def _line(self) -> str | None:
        """A line of the person's, or None at the end of the input."""
        try:
            line = self.console.input(Text("> ", style="bold green"), stream=self.stream)
        except EOFError:
            return None
        return None if self.stream is not None and line == "" else line


async def play_in_terminal(
    family: EnvFamily,
    task: Task,
    console: Console,
    *,
    expert: bool = False,
    pause_s: float = 0.0,
    max_turns: int = 1_000,
    stream: TextIO | None = None,
) -> Played:
    """Plays one task with a person in the agent's seat (in every seat, where there are several), or with the expert.

    The end of the input or `:quit` leaves; Ctrl-C cancels, and the world is closed. `stream` is read instead of the
    terminal; `pause_s` is waited before each action of the expert. The family is opened and closed where it needs it.
    """
    if isinstance(family, Opens):
        await family.open()
    try:
        env = family.make(task)
        try:
            return await _play(Terminal(env, console, stream), expert, pause_s, max_turns)
        finally:
            await env.close()
    finally:
        if isinstance(family, Closes):
            await family.close()


async def _play(table: Terminal, expert: bool, pause_s: float, max_turns: int) -> Played:
    watchable = isinstance(table.env, HasExpert)
    if expert and not watchable:
        raise ConfigError(f"{type(table.env).__name__} has no expert() to watch: play it yourself")
    observation: Observation | None = await table.env.start()
    rewards: list[float] = []
    success: bool | None = None
    turns = 0
    if not expert:
        table.say(HELP, "dim")
    while observation is not None and turns < max_turns:
        table.show(observation)
        step = None
        while step is None:  # a refused action is said again, as the world has not changed
            action = await (_watched(table, pause_s) if expert else table.ask(observation))
            if action is None:
                break
            step = await _step(table, observation, action, expert)
        if step is None:
            break
        turns += 1
        rewards.append(sum(step.rewards.values()))
        success = success if step.success is None else step.success
        observation = step.observation
    total = float(sum(rewards))
    played = Played(turns, total, total > 0 if success is None else success, observation is None)
    ending = ("success" if played.success else "no success") if played.done else "left before the end"
    table.say(f"{ending}, reward {total:g}, {turns} turns", "bold")
    return played


async def _step(table: Terminal, observation: Observation, action: str, expert: bool) -> Step | None:
    try:
        return await table.env.step(observation.agent, Message(Role.ASSISTANT, action))
    except ActionError as error:
        if expert:  # it would say the same again for ever
            raise
        table.say(str(error), "red")
        return None


async def _watched(table: Terminal, pause_s: float) -> str:
    await asyncio.sleep(pause_s)
    action = await _hint(table.env)
    table.say(f"> {action}", "bold green")
    return action


async def _hint(env: Env) -> str:
    if not isinstance(env, HasExpert):
        return ""
    action = env.expert()
    action = await action if inspect.isawaitable(action) else action
    if not isinstance(action, str):
        raise ConfigError(f"the world's expert() gave {action!r}: expected the next action as text")
    return action


async def _in_thread(call: Callable[[], str | None]) -> str | None:
    """The call's result, from a daemon thread: one that still waits for a line keeps no program from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            set_it(value)

    def run() -> None:
        try:
            line = call()
        except BaseException as error:  # handed to the task that waits
            outcome = (answer.set_exception, error)
        else:
            outcome = (answer.set_result, line)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="reads the terminal", daemon=True).start()
    return await answer
