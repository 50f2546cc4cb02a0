"""One episode of a game."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sojourn.errors import ActionError, InfrastructureError
from sojourn.threads import run_to_end
from sojourn.types import Message, Observation, Role, Step
from sojourn_worlds.java import Lease, Shared
from sojourn_worlds.textworld_express.expert import plan
from sojourn_worlds.textworld_express.game import Game

HOUSE = (
    "look around, inventory, move north, open door to north, close door to north, open X, close X, take X, put X in Y"
)
ACTIONS = {
    "cookingworld": f"{HOUSE}, read X, chop X, slice X, dice X, cook X in Y, prepare meal, eat meal",
    "twc": HOUSE,
    "coin": HOUSE,
    "mapreader": "look around, inventory, task, move north, take X, put X in Y, read X",
    "arithmetic": "look around, inventory, take X, put X in Y, read X",
    "sorting": "look around, inventory, take X, put X in Y",
    "simonsays": "what Simon says",
    "peckingorder": "look around, inventory, take X, read X",
}


class ExpressPlay:
    def __init__(self, game: Game, shared: Shared, key: str, choices: bool) -> None:
        self.game = game
        self.shared = shared
        self.key = key
        self.choices = choices
        self.lease = Lease(shared)
        self.server: Any = None
        self.state: Mapping[str, Any] = {}
        self.actions_taken: list[str] = []
        self.best = 0.0  # score so far
        self.done = False
        self.planned: list[str] = []
        self.hopeless = False  # the expert found nothing to do

    async def start(self) -> Observation:
        await asyncio.to_thread(self._enter)
        task = " ".join(self.server.getTaskDescription().split())
        system = f"{task}\nSay one action, such as: {ACTIONS[self.game.name]}."
        return self._observe((Message(Role.SYSTEM, system),))

    def _enter(self) -> None:
        machine = self.lease.take()
        self.server = machine.new()
        with self.game.alone():
            self.state = self.game.replay(self.server, self.actions_taken)

    async def step(self, agent: str, action: Message) -> Step:
        if self.done or self.server is None:
            raise InfrastructureError("textworld_express was given an action before its start or after its end")
        action_text = " ".join(action.text[:200].lower().split())
        possible = {known.lower(): known for known in self.state["validActions"]}
        if len(action.text) > 200 or action_text not in possible:
            raise ActionError(f'"{action_text[:40]}" is not possible here.')
        action_text = possible[action_text]
        self.state = self.game.step(self.server, self.actions_taken, action_text)
        self.actions_taken.append(action_text)
        self.planned = self.planned[1:] if self.planned[:1] == [action_text] else []
        won, lost = bool(self.state["tasksuccess"]), bool(self.state["taskfailure"])
        score = 1.0 if won else min(1.0, float(self.state["score"]))
        gain = max(0.0, score - self.best)
        self.best = max(self.best, score)
        reward = gain if self.game.partial else float(won)
        self.done = won or lost or len(self.actions_taken) >= self.game.turns
        if self.done:
            return Step(None, {agent: reward}, done=True, success=won)
        return Step(self._observe(), {agent: reward})

    async def close(self) -> None:
        self.server = None
        await run_to_end(self.lease.give_back)

    async def fork(self) -> ExpressPlay:
        """Plays the same actions again."""
        twin = ExpressPlay(self.game, self.shared, self.key, self.choices)
        twin.actions_taken, twin.best, twin.done, twin.planned = (
            list(self.actions_taken),
            self.best,
            self.done,
            list(self.planned),
        )
        try:
            await asyncio.to_thread(twin._enter)
        except BaseException:
            await twin.close()
            raise
        return twin

    def state_key(self) -> str:
        state = self.state
        seen = [state.get(name) for name in ("look", "inventory", "score", "observation")]
        if seen[0]:  # games with rooms show all there is; Simon's shows what he says
            seen.pop()
        content = json.dumps([seen, sorted(state.get("validActions", []))])
        return f"{self.key}/{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    async def expert(self) -> str:
        """Returns the next action of the package's gold path; from other states, of a way back to it."""
        if not self.planned and not self.hopeless:
            self.planned = await asyncio.to_thread(plan, self.game, self.lease.take(), self.actions_taken)
            self.hopeless = not self.planned
        return self.planned[0] if self.planned else min(self.state["validActions"])

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        lines = (" ".join(line.split()) for line in self.state["observation"].splitlines())
        choices = tuple(sorted(self.state["validActions"])) if self.choices else ()
        return Observation((Message(Role.USER, "\n".join(filter(None, lines))),), system=system, choices=choices)
