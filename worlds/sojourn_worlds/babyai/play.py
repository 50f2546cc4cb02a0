"""One episode of a mission."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np

from sojourn.errors import ActionError, InfrastructureError
from sojourn.types import Message, Observation, Role, Step
from sojourn_worlds.babyai.expert import plan
from sojourn_worlds.babyai.rules import ACTIONS, refusal
from sojourn_worlds.babyai.words import describe

SYSTEM_PROMPT = (
    "Mission: {mission}. You see what is in front of you: 2 forward 1 left means two steps ahead, one to the left. "
    "To go to a thing, stand next to it and face it. You pick up, drop and toggle (open, close) 1 forward. "
    "Say one action: {actions}."
)


class BabyAIPlay:
    """The environment. `world` is an environment of the package after its reset, which belongs to this episode
    alone."""

    def __init__(self, world: Any, key: str, discount: bool, choices: bool) -> None:
        self.world = world
        self.key = key
        self.discount = discount
        self.choices = choices
        self.done = False
        self.seen = np.zeros((world.width, world.height), dtype=bool)
        self.planned: list[int] = []
        self.view = self._look()

    async def start(self) -> Observation:
        text = SYSTEM_PROMPT.format(mission=self.world.mission, actions=", ".join(ACTIONS))
        return self._observe((Message(Role.SYSTEM, text),))

    async def step(self, agent: str, action: Message) -> Step:
        if self.done:
            raise InfrastructureError("babyai was given an action after its end: play each world once")
        number = self._parse(action.text)
        self.planned = self.planned[1:] if self.planned[:1] == [number] else []
        _, reward, ended, truncated, _ = self.world.step(number)
        self.view = self._look()
        if ended or truncated:
            self.done = True
            won = bool(ended and reward > 0)
            paid = float(reward) if self.discount else float(won)
            return Step(None, {agent: paid}, done=True, success=won)
        return Step(self._observe(), {agent: 0.0})

    async def close(self) -> None:
        pass

    async def fork(self) -> BabyAIPlay:
        twin = BabyAIPlay(copy.deepcopy(self.world), self.key, self.discount, self.choices)
        twin.done, twin.seen, twin.planned = self.done, self.seen.copy(), list(self.planned)
        return twin

    def state_key(self) -> str:
        world = self.world
        carried = world.carrying.encode() if world.carrying else ()
        state = f"{world.agent_pos} {world.agent_dir} {carried} {_progress(world.instrs)}"
        digest = hashlib.sha256(world.grid.encode().tobytes() + state.encode())
        return f"{self.key}/{digest.hexdigest()[:16]}"

    def expert(self) -> str:
        if not self.planned:
            self.planned = plan(self.world, self.seen)
        return ACTIONS[self.planned[0]]

    def _parse(self, text: str) -> int:
        command = " ".join(text[:200].lower().split())
        if command not in ACTIONS or len(text) > 200:
            raise ActionError(f'"{command[:30]}" is no action, say one of {", ".join(ACTIONS)}.')
        number = ACTIONS.index(command)
        if reason := refusal(self.world, number):
            raise ActionError(reason)
        return number

    def _look(self) -> str:
        """Returns the view in words, and records which cells have been seen."""
        grid, visible = self.world.gen_obs_grid()
        size = self.world.agent_view_size
        ahead, right = self.world.dir_vec, self.world.right_vec
        corner = self.world.agent_pos + ahead * (size - 1) - right * (size // 2)
        for i, j in np.argwhere(visible):
            x, y = corner - ahead * j + right * i
            if 0 <= x < self.world.width and 0 <= y < self.world.height:
                self.seen[x, y] = True
        return describe(grid, visible, self.world.carrying)

    def _observe(self, system: tuple[Message, ...] = ()) -> Observation:
        possible = tuple(name for number, name in enumerate(ACTIONS) if not refusal(self.world, number))
        choices = possible if self.choices else ()
        return Observation((Message(Role.USER, self.view),), system=system, choices=choices)


def _progress(instruction: Any) -> str:
    if not hasattr(instruction, "instr_a"):
        return ""
    done = [str(getattr(instruction, f"{part}_done")) for part in "ab"]
    return f"({done[0]} {_progress(instruction.instr_a)} {done[1]} {_progress(instruction.instr_b)})"
