"""Proposers, which make tasks for a curriculum that plays more than the tasks of its split."""
