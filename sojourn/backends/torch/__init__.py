"""The torch backend: models, rollout engine and trainer in one process, on a CPU or a GPU."""
