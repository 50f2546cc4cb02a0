"""What worlds and agents offer where the agent drives a browser by the Chrome DevTools Protocol (CDP)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sojourn.ability import Ability


@runtime_checkable
class BrowserOnly(Ability, Protocol):
    """A world that says whether its plays are acted in by their browsers alone. Then each of them `OffersBrowser`."""

    @property
    def browser_only(self) -> bool: ...


@runtime_checkable
class OffersBrowser(Ability, Protocol):
    """A play with a browser of its own, which the agent drives.

    `cdp_socket` is the path of a Unix socket where the browser answers as at its debugging port, once the play has
    started. `browsed` waits until what was done there has ended the episode, or until the browser has ended. After
    that, and once the agent has ended, one `step` with an empty text judges what was done: it ends the episode, or
    raises where the browser failed by itself.
    """

    @property
    def cdp_socket(self) -> str: ...
    async def browsed(self) -> None: ...


@runtime_checkable
class DrivesBrowsers(Ability, Protocol):
    """An agent that says whether its seats can drive a browser."""

    @property
    def drives_browsers(self) -> bool: ...


@runtime_checkable
class TakesBrowser(Ability, Protocol):
    """A seat that is given a play with a browser, before its first turn."""

    def take_browser(self, play: OffersBrowser) -> None: ...


def browser_only(world: object) -> bool:
    """Returns whether the plays of a world are acted in by their browsers alone; mostly not."""
    return isinstance(world, BrowserOnly) and world.browser_only


def drives_browsers(agent: object) -> bool:
    """Returns whether the seats of an agent can drive a browser; mostly not."""
    return isinstance(agent, DrivesBrowsers) and agent.drives_browsers


def give_browser(play: object, seat: object) -> None:
    """Gives a play with a browser to a seat that takes it."""
    if isinstance(play, OffersBrowser) and isinstance(seat, TakesBrowser):
        seat.take_browser(play)
