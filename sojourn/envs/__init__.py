"""Worlds: one file or folder each, with its tasks, its dynamics and its own reward."""
