"""Worlds for Sojourn, and adapters of other ecosystems' environments; `pyproject.toml` registers each by its name."""
