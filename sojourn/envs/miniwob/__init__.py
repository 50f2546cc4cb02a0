"""MiniWoB++ tasks in one shared Chromium; nothing heavy is imported before `MiniWoB.open`."""

from sojourn.envs.miniwob.family import MiniWoB

__all__ = ["MiniWoB"]
