"""Several operators play the same tasks in lock-step, side by side: checkpoints, people, experts, chance, endpoints."""

STAGE_PREFIX = (
    "evaluation-"  # what the stage of an operator begins with, in a run folder: each is judged on the same tasks
)
OPERATORS_FILE = "arena.json"  # of such a folder: who played
