"""Reads a run's TOML and builds typed components from it: strict keys, and the origin of every value."""
