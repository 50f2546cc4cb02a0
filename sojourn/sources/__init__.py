"""Group sources: where the groups of a training step come from."""
