"""A real OpenEnv server, run by an interpreter that has `openenv`: the port is its argument.

A word is to be found letter by letter; the letters come from the seed.
"""

import random
import sys
import time

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field


class Guess(Action):
    """Names a digit that may be in the number."""

    digit: int = Field(ge=0, le=9)
    note: str = ""


class Shown(Observation):
    shown: str
    left: int


class Digits(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, length=2, **more):
        rng = random.Random(seed)
        self.number = "".join(rng.choice("0123456789") for _ in range(length))
        self.named, self.left = set(), 10
        return self.see(0.0)

    def step(self, action, timeout_s=None, **more):
        if action.note == "crash":
            raise RuntimeError("the drum is stuck")
        if action.note == "sleep":
            time.sleep(30)
        self.named.add(str(action.digit))
        self.left -= 1
        return self.see(float(set(self.number) <= self.named))

    def see(self, reward):
        shown = "".join(d if d in self.named else "_" for d in self.number)
        return Shown(shown=shown, left=self.left, reward=reward, done=reward > 0 or self.left == 0)

    @property
    def state(self):
        return State(episode_id="x", step_count=10 - self.left)


uvicorn.run(
    create_fastapi_app(Digits, Guess, Shown, max_concurrent_envs=8),
    host="127.0.0.1",
    port=int(sys.argv[1]),
    log_level="error",
)
