"""HTTP APIs for agents that are programs of their own: what they are sampled is recorded as exactly as our own turns."""
