"""MiniWoB++: small web tasks in one shared Chromium. Nothing heavy is imported before `MiniWoB.open`."""

from sojourn_worlds.miniwob.family import MiniWoB

__all__ = ["MiniWoB"]
