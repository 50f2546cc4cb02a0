"""MiniWoB++ tasks in one shared Chromium; nothing heavy is imported before `MiniWoB.open`."""

from sojourn_worlds.miniwob.family import MiniWoB

__all__ = ["MiniWoB"]
