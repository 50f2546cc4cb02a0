"""Runs, steps and episodes for people in a terminal: nothing is wider than it, nor reaches it raw."""
