"""Rollout: play one episode, run many at once, and hand the loop its groups."""
