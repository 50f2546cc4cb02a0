"""Plays that fork: where they do, and how the branches are played."""
