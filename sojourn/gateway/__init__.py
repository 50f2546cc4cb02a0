"""HTTP APIs for agents that are programs of their own: what is sampled for them is recorded as exactly as our turns."""
