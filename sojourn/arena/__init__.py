"""Several operators play the same tasks in lock-step, side by side: checkpoints, people, experts, chance, endpoints."""

STAGE = "arena-"  # what the stages of its operators begin with, in a run folder
FACTS = "arena.json"  # of such a folder: who played
