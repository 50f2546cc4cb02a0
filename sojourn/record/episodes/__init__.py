"""Stores episodes: a full record of each, in a file per step, and an index of rows to query."""
