"""The records of a run: its folder, episodes, checkpoints, metrics and summaries of evaluations."""
