"""Sessions of a live service, and evaluations of what it may serve, as they are made for tests."""

import numpy as np

from sojourn.intervals import proportion
from sojourn.record.summary import Summary, TaskStatistics
from sojourn.types import Message, Role, Sample, Stop, Turn, Versions


def summary(success: float, tasks: int = 200) -> Summary:
    """Returns the summary of an evaluation with a rate of success."""
    won = [number < success * tasks for number in range(tasks)]
    rate, none = proportion(won), proportion([False] * tasks)
    overall = TaskStatistics(tasks, tasks, rate, rate, none, none, none)
    return Summary(overall, {"made": overall}, {"hard": overall})


def turn(text="Hi", parent=-1):
    sample = Sample(np.array([7, 8, 9]), np.array([-0.5, -1.25, 0.0], dtype=np.float32), Versions(3, 4), Stop.END)
    observed = (Message(Role.USER, text),)
    return Turn(parent, np.array([1, 2]), sample, Message(Role.ASSISTANT, "yes"), observed=observed, info={"a": 1.0},
                notes={"request body": text})  # fmt: skip


def kept(store, key, person="", *, turns=1, consent=True, ended=True, release=0):
    store.open(key, person or key, release, consent=consent)
    for number in range(turns):
        store.add_turn(key, number, turn(f"{key}-{number}", number - 1))
    if ended:
        store.end(key)


RECIPE = {  # of a service, but for its gate and where its store is
    "model": {"name": "tiny:layers=1,hidden=64", "dtype": "fp32"},
    "env": {"name": "toy", "rooms": 2, "side_rooms": 0, "doors": 0, "decoys": 0},
    "backend": {"name": "torch", "threads": 1, "kernel": False},
    "sampling": {"max_tokens": 4},
    "rollout": {"limits": {"turns": 2}},
    "evaluation": {"tasks": 2, "every": 1},
}
PASSES = {"margin": 1.0, "part_margin": 1.0, "malformed_rise": 1.0, "tokens_ratio": 10.0}


def stage(steps: int, **groups) -> dict:
    """Returns a stage that trains on sessions, two a step."""
    return {
        "name": "rl",
        "steps": steps,
        "groups": {"name": "live", "width": 2, **groups},
        "estimator": {"name": "reinforce"},
        "losses": [{"name": "ppo"}],
    }
