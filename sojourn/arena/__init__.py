"""Plays the same tasks with several operators in lock-step: checkpoints, people, experts, endpoints, a random
policy."""

STAGE_PREFIX = "evaluation-"  # of the stage in which an operator's episodes are recorded
OPERATORS_FILE = "arena.json"  # names the operators of a match in its run folder
