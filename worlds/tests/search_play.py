"""A whole play of the world `search` by its expert."""

from __future__ import annotations

from people_at_play import say


async def follow(play):
    """Returns what the expert says and the world answers, to the end."""
    await play.start()
    steps = []
    while not play.done:
        action = play.expert()
        steps.append((action, await play.step("agent", say(action))))
    return steps
