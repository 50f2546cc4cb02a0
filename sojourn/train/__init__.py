"""The training loop, the stages of a run around it, and the assembly of a run from its recipe."""
