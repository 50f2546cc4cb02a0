"""The Ray backend: samplers, trainer ranks and environment workers as actors of a Ray cluster."""
