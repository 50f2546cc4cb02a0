"""A server whose sessions are kept to learn from: people agree, say what they think of replies, and take it back."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sojourn.errors import cause
from sojourn.gateway.bodies import json_object, read_body
from sojourn.gateway.requests import Api, ChatRequest, Reply, ReplyStream, RequestError
from sojourn.gateway.server import CHAT
from sojourn.gateway.session import Session
from sojourn.live.store import LiveStore
from sojourn.secrets import masker
from sojourn.serving.served_releases import ServedReleases
from sojourn.serving.server import Address, Server, Service, say
from sojourn.types import Message

POLL_S = 1.0
PERSONAL = [  # what is masked before the model reads it: addresses of e-mail, numbers of cards, of accounts, of phones
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+\w"), "<email>"),
    (re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}\b"), "<iban>"),
    (re.compile(r"\b(?:\d[ -]?){13,19}\b"), "<card>"),
    (re.compile(r"(?<!\w)\+\d[\d ()/-]{7,}\d"), "<phone>"),
]


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Says what is kept of sessions: only those whose people agreed (`consent` is assumed where a service has asked
    before), until they are `days` old (0: for ever). One that is idle for `idle_s` has ended. With `mask`, keys, and
    addresses and numbers of persons, are masked before the model reads them."""

    consent: bool = False
    idle_s: float = 600.0
    days: float = 0.0
    mask: bool = True


@dataclass
class Guest:
    """Holds what the server knows of a session: the release that answers it, whether its person agreed, how many of its
    turns are kept, and when it was used last."""

    release: int
    agreed: bool
    kept: int = 0
    touched: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class MaskedApi:
    """Reads as another API does, and masks what is private in the messages: so what is kept is what was sampled from,
    and holds none of it."""

    api: Api

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        asked, mask = self.api.read(body), masker()
        return replace(asked, messages=tuple(_masked(message, mask) for message in asked.messages))

    def whole(self, request: ChatRequest, replies: Sequence[Reply]) -> Mapping[str, Any]:
        return self.api.whole(request, replies)

    def stream(self, request: ChatRequest) -> ReplyStream:
        return self.api.stream(request)

    def error(self, error: RequestError) -> Mapping[str, Any]:
        return self.api.error(error)


def _masked(message: Message, mask: Callable[[str], str]) -> Message:
    text = mask(message.text)
    for pattern, name in PERSONAL:
        text = pattern.sub(name, text)
    return replace(message, text=text)


class LiveServer(Server):
    """Serves the releases of a run, and keeps the sessions of those who agree."""

    def __init__(
        self, releases: ServedReleases, store: LiveStore, keeping: Keeping, service: Service, address: Address
    ) -> None:
        assert releases.serving is not None
        self.releases, self.store, self.keeping = releases, store, keeping
        self.people: dict[str, Guest] = {}  # by session
        super().__init__(releases.opened[releases.serving], service, address)

    def apis(self) -> Mapping[str, Api]:
        found = super().apis()
        return {path: MaskedApi(api) for path, api in found.items()} if self.keeping.mask else found

    def new_session(self, key: str) -> Session:
        number = self.releases.choose(key)
        guest = self.people[key] = Guest(number, self.keeping.consent)
        session = Session(key, self.context(self.releases.opened[number], key), sampling="recipe")

        def observe(reply: Reply) -> None:
            self.measures.reply(reply)
            guest.touched = time.monotonic()
            if guest.agreed:
                self._keep(session, guest)

        session.observe = observe
        return session

    def _keep(self, session: Session, guest: Guest, person: str = "") -> None:
        """Keeps the turns of a session that are not kept yet."""
        self.store.open(session.key, person or session.key, guest.release, consent=True)
        for number in range(guest.kept, len(session.turns)):
            self.store.add_turn(session.key, number, session.turns[number])
        guest.kept = len(session.turns)

    def routes(self) -> list[Route]:
        return [
            Route("/s/{session}/consent", self._answered(self._consent), methods=["POST"]),
            Route("/s/{session}/feedback", self._answered(self._feedback), methods=["POST"]),
            Route("/s/{session}/end", self._answered(self._end), methods=["POST"]),
            Route("/s/{session}", self._answered(self._forget), methods=["DELETE"]),
            Route("/releases", self._answered(self._releases), methods=["GET"]),
        ]

    def _answered(self, answer: Callable[[Request], Awaitable[Mapping[str, Any]]]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            try:
                self.gateway.require_token(request)
                return JSONResponse(dict(await answer(request)))
            except RequestError as error:
                return JSONResponse(dict(CHAT.error(error)), error.status)

        return handle

    async def _body(self, request: Request) -> Mapping[str, Any]:
        return json_object(await read_body(request, self.service.limits))

    async def _consent(self, request: Request) -> Mapping[str, Any]:
        """Takes whether the session may be trained on (`consent`), and whose it is (`person`)."""
        body = await self._body(request)
        agreed, person = body.get("consent"), body.get("person", "")
        if not isinstance(agreed, bool) or not isinstance(person, str):
            raise RequestError('expected {"consent": true or false}, and "person" as a text', param="consent")
        key = request.path_params["session"]
        session = self.sessions.get(key)
        guest = self.people[key]
        guest.agreed = agreed
        if agreed:
            self._keep(session, guest, person)
        else:
            self.store.agree(key, False)
        return {"consent": agreed}

    async def _feedback(self, request: Request) -> Mapping[str, Any]:
        """Takes what a person says of a reply: `value` in [-1, 1] (null takes it back), the number of the `turn` (the
        last one, if left out), and an `id`, by which a repeated request counts once."""
        body, key = await self._body(request), request.path_params["session"]
        value, turn, id = body.get("value"), body.get("turn"), body.get("id")
        known = self.store.session(key)
        if known is None:
            raise RequestError(
                "nothing is kept of this session: its person agrees first", status=409, code="no_consent"
            )
        count = self.store.count(key)
        turn = count - 1 if turn is None else turn
        if not isinstance(turn, int) or isinstance(turn, bool) or not 0 <= turn < count:
            raise RequestError(f"turn = {turn!r:.40}: expected a number below {count}", param="turn")
        if value is not None and not _is_value(value):
            raise RequestError(f"value = {value!r:.40}: expected a number from -1 to 1, or null", param="value")
        counts = self.store.add_feedback(key, str(id or f"turn-{turn}"), turn, value)
        return {"counts": counts, "turn": turn}

    async def _end(self, request: Request) -> Mapping[str, Any]:
        key = request.path_params["session"]
        self.store.end(key)
        self._close(key)
        return {"ended": True}

    async def _forget(self, request: Request) -> Mapping[str, Any]:
        """Removes a session from all that is kept of it here."""
        key = request.path_params["session"]
        self._close(key)
        return {"removed": self.store.forget(key=key)}

    async def _releases(self, request: Request) -> Mapping[str, Any]:
        events = [event._asdict() for event in self.store.events()]
        return {"serving": self.releases.serving, "tried": self.releases.tried, "events": events}

    def _close(self, key: str) -> None:
        self.sessions.close(key)
        self.people.pop(key, None)

    async def run(self, bound: socket.socket, tell: Callable[[str], None]) -> None:
        watching = asyncio.create_task(self.watch())
        try:
            await super().run(bound, tell)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await self.releases.close()

    def _gone(self) -> list[str]:
        """Returns the sessions of which the server remembers nothing any more, or in which nothing is asked."""
        before = time.monotonic() - self.keeping.idle_s
        return [key for key, guest in self.people.items() if guest.touched < before or key not in self.sessions]

    async def look(self) -> None:
        """Ends what is idle, removes what is old, and tries and changes releases."""
        for key in {*self.store.end_idle(self.keeping.idle_s), *self._gone()}:
            self._close(key)
        if self.keeping.days:
            self.store.expire(self.keeping.days * 86_400)
        await self.releases.poll({guest.release for guest in self.people.values()})

    async def watch(self) -> None:
        """Looks after sessions and releases until it is cancelled."""
        with suppress(asyncio.CancelledError):
            while True:
                try:
                    await self.look()
                except Exception as error:  # it serves on; a full disk may be freed
                    say(f"looking after sessions and releases failed: {cause(error)}")
                await asyncio.sleep(POLL_S)


def _is_value(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1 <= value <= 1
