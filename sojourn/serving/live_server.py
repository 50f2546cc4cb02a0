"""A server whose sessions are kept to learn from: people agree, say what they think of replies, and take it back."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sojourn.config.lookup import nearest
from sojourn.errors import cause
from sojourn.gateway.bodies import json_object, read_body
from sojourn.gateway.reading import Field
from sojourn.gateway.requests import Api, Reply, RequestError
from sojourn.gateway.server import CHAT, answering
from sojourn.gateway.session import Session
from sojourn.live.facts import Traffic, digest_of
from sojourn.live.store import LiveStore
from sojourn.serving.private import MaskedApi, as_text, masked_message, masks_private, without_private
from sojourn.serving.served_releases import ServedReleases
from sojourn.serving.server import Address, Server, Service, say
from sojourn.serving.watched import Seen

POLL_S = 1.0
MOST_UNKEPT = 10_000  # sessions of which it is known that their last reply is not kept
UNNAMED = ""  # the key of all requests that name no session: they may be of many people, so nothing of them is kept


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
    """Holds what the server knows of a session: the release that answers it, whether its person agreed, whether there
    was one of its name before, so that nothing of it is kept, how many of its turns are kept, and when it was used
    last. It is in use while `session` samples a reply."""

    release: int
    agreed: bool
    again: bool
    kept: int = 0
    session: Session | None = None
    opened: float = field(default_factory=time.time)
    touched: float = field(default_factory=time.monotonic)

    def idle(self, seconds: float) -> bool:
        """Returns whether nothing was asked for so long, and nothing is sampled."""
        return self.touched < time.monotonic() - seconds and not self.sampling

    @property
    def sampling(self) -> bool:
        return self.session is not None and self.session.running > 0


class LiveServer(Server):
    """Serves the releases of a run, and keeps the sessions of those who agree.

    `remove` is called now and then, in another thread: it removes from the run's records what people took back, where
    nothing trains that would do it.
    """

    def __init__(
        self,
        releases: ServedReleases,
        store: LiveStore,
        keeping: Keeping,
        service: Service,
        address: Address,
        remove: Callable[[], object] = lambda: None,
    ) -> None:
        assert releases.serving is not None
        self.releases, self.store, self.keeping, self.remove = releases, store, keeping, remove
        self.mask = masks_private()
        self.people: dict[str, Guest] = {}  # by session
        self.taken_back: set[str] = set()  # the digests of sessions whose clients may go on with all that they said
        self.tell: Callable[[str], None] = lambda line: None
        self.told = len(store.events())  # of which a line was told, or that were before
        self.failures: dict[str, str] = {}  # of what is done now and then, as they were told
        self.traffic: Counter[Traffic] = Counter()  # which the store has not counted yet
        super().__init__(releases.opened[releases.serving], service, address)
        self.unkept: OrderedDict[str, None] = OrderedDict()  # sessions that ended before their last reply was told
        self.app.named, self.app.ended = self._named, self._ended

    def apis(self) -> Mapping[str, Api]:
        found = super().apis()
        return {path: MaskedApi(api, self.mask) for path, api in found.items()} if self.keeping.mask else found

    def _named(self, key: str) -> None:
        """Takes note that a session is used."""
        if (guest := self.people.get(key)) is not None:
            guest.touched = time.monotonic()

    def _ended(self, seen: Seen) -> None:
        guest = self.people.get(seen.session)
        release = -1 if guest is None else guest.release
        self.traffic[Traffic(int(time.time() // 60), release, seen.api, str(seen.status))] += 1

    def _count_traffic(self) -> None:
        if self.traffic:
            self.store.add_traffic(self.traffic)
            self.traffic.clear()

    def clean(self) -> Callable[[bytes], str]:
        return without_private(self.mask) if self.keeping.mask else as_text

    def new_session(self, key: str) -> Session:
        number, again = self.releases.choose(key), self.store.session(key) is not None
        if again:
            self.store.end(key)  # what is known of it here is forgotten, so nothing can go on from it
        self.unkept.pop(key, None)
        agreed = self.keeping.consent and key != UNNAMED and digest_of(key) not in self.taken_back
        guest = self.people[key] = Guest(number, agreed, again)
        session = Session(key, self.context(self.releases.opened[number], key), sampling="recipe")

        def observe(reply: Reply) -> None:
            self.measures.reply(reply)
            guest.touched = time.monotonic()
            if guest.agreed and not guest.again:
                self._keep(session, guest)
            elif self.people.get(key) is not guest:
                self.unkept[key] = None
                while len(self.unkept) > MOST_UNKEPT:
                    self.unkept.popitem(last=False)

        guest.session, session.observe = session, observe
        if self.keeping.mask:
            session.read_back = partial(masked_message, mask=self.mask)
        return session

    def _keep(self, session: Session, guest: Guest) -> None:
        """Keeps the turns of a session that are not kept yet."""
        self.store.open(session.key, session.key, guest.release, consent=True, opened=guest.opened)
        for number in range(guest.kept, len(session.turns)):
            self.store.add_turn(session.key, number, session.turns[number])
        guest.kept = len(session.turns)

    def routes(self) -> list[Route]:
        return [
            Route("/s/{session}/consent", answering(CHAT, self._consent), methods=["POST"]),
            Route("/s/{session}/feedback", answering(CHAT, self._feedback), methods=["POST"]),
            Route("/s/{session}/end", answering(CHAT, self._end), methods=["POST"]),
            Route("/s/{session}", answering(CHAT, self._forget), methods=["DELETE"]),
            Route("/people/{person:path}", answering(CHAT, self._forget_person), methods=["DELETE"]),
            Route("/releases", answering(CHAT, self._releases), methods=["GET"]),
        ]

    async def _body(self, request: Request, required: str, *optional: str) -> Mapping[str, Any]:
        """Returns the body of a request, which has a required key, and of all others only optional ones."""
        body = Field(json_object(await read_body(request, self.service.limits)), "the body").json()
        for key in body:
            if key not in (required, *optional):
                raise RequestError(f"unknown key '{key:.40}': {nearest(key, (required, *optional))}", param=key)
        if required not in body:
            raise RequestError(f"the body has no '{required}': nothing is changed by it", param=required)
        return body

    async def _consent(self, api: Api, request: Request) -> Response:
        """Takes whether the session may be trained on (`consent`), and whose it is (`person`)."""
        key, body = self.gateway.key_of(request), await self._body(request, "consent", "person")
        agreed, person = body["consent"], body.get("person", "")
        if not isinstance(agreed, bool) or not isinstance(person, str):
            raise RequestError('expected {"consent": true or false}, and "person" as a text', param="consent")
        session = self.sessions.get(key)
        guest = self.people[key]
        if agreed:
            self._require_new(guest)
            self._keep(session, guest)
        elif self.keeping.consent:  # else the same name would be taken to agree after a pause
            self.store.open(key, key, guest.release, consent=False, opened=guest.opened)
        guest.agreed = agreed
        self.store.agree(key, agreed, person)
        return JSONResponse({"consent": agreed})

    @staticmethod
    def _require_new(guest: Guest | None) -> None:
        if guest is not None and guest.again:
            raise RequestError(
                "there was a session of this name before, so nothing is kept of this one: expected a name of its own",
                status=409, code="used_name",
            )  # fmt: skip

    async def _feedback(self, api: Api, request: Request) -> Response:
        """Takes what a person says of a reply: `value` in [-1, 1] (null takes it back), the number of the `turn` (the
        last one, if left out), and an `id`, by which a repeated request counts once."""
        key, body = self.gateway.key_of(request), await self._body(request, "value", "turn", "id")
        value, turn, id, guest = body["value"], body.get("turn"), body.get("id"), self.people.get(key)
        if value is not None:  # what was said can be taken back as long as it is kept
            self._require_new(guest)
        known = self.store.session(key)
        if known is None or not (known.consent or value is None):
            raise RequestError(
                "nothing is kept of this session: its person agrees first", status=409, code="no_consent"
            )
        count = self.store.count(key)
        if turn is None and (key in self.unkept or (guest is not None and guest.again)):
            raise RequestError(
                "the session ended before its last reply was told, so that reply is not kept: name the turn that is "
                "meant", status=409, code="not_kept", param="turn",
            )  # fmt: skip
        turn = count - 1 if turn is None else turn
        if not isinstance(turn, int) or isinstance(turn, bool) or not 0 <= turn < count:
            raise RequestError(f"turn = {turn!r:.40}: expected a number below {count}", param="turn")
        if value is not None and not _is_value(value):
            raise RequestError(f"value = {value!r:.40}: expected a number from -1 to 1, or null", param="value")
        if not isinstance(id, (str, int, NoneType)) or isinstance(id, bool):
            raise RequestError(f"id = {id!r:.40}: expected a text or a whole number", param="id")
        name = f"turn-{turn}" if id in (None, "") else str(id)
        counts = self.store.add_feedback(key, name, turn, value)
        return JSONResponse({"counts": counts, "turn": turn})

    async def _end(self, api: Api, request: Request) -> Response:
        key = self.gateway.key_of(request)
        self.store.end(key)
        self._close(key)
        return JSONResponse({"ended": True})

    async def _forget(self, api: Api, request: Request) -> Response:
        """Removes a session from all that is kept of it here."""
        key = self.gateway.key_of(request)
        self._take_back(key)
        return JSONResponse({"removed": self.store.forget(key=key)})

    async def _forget_person(self, api: Api, request: Request) -> Response:
        """Removes all sessions of a person."""
        self.gateway.key_of(request)
        removed = self.store.forget(person=request.path_params["person"])
        for key in removed:
            self._take_back(key)
        return JSONResponse({"removed": removed})

    async def _releases(self, api: Api, request: Request) -> Response:
        self.gateway.key_of(request)
        events = [event._asdict() for event in self.store.events()]
        return JSONResponse({"serving": self.releases.serving, "tried": self.releases.tried, "events": events})

    def _take_back(self, key: str) -> None:
        self._close(key)
        if self.keeping.consent:
            self.taken_back.add(digest_of(key))

    def _close(self, key: str) -> None:
        """Forgets a session; a reply that is still sampled for it is kept nowhere."""
        self.sessions.close(key)
        if (guest := self.people.pop(key, None)) is not None:
            guest.agreed = False

    async def run(self, bound: socket.socket, tell: Callable[[str], None]) -> None:
        self.tell = tell
        watching = asyncio.create_task(self.watch())
        try:
            await super().run(bound, tell)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await self.releases.close()
            self._count_traffic()

    def _gone(self) -> list[str]:
        """Returns the sessions of which the server remembers nothing any more, or in which nothing is asked."""
        idle_s = self.keeping.idle_s
        return [key for key, guest in self.people.items()
                if guest.idle(idle_s) or (key not in self.sessions and not guest.sampling)]  # fmt: skip

    async def look(self) -> None:
        """Ends what is idle, removes what is old, and tries and changes releases."""
        with self._going_on("ending idle sessions"):
            gone = self._gone()
            for key in {*self.store.end_idle(self.keeping.idle_s, self.people.keys() - gone), *gone}:
                self._close(key)
        with self._going_on("counting requests"):
            self._count_traffic()
        with self._going_on("removing old sessions"):
            if self.keeping.days:
                self.store.expire(self.keeping.days * 86_400)
            self.store.without_copies()
        with self._going_on("removing sessions from the records of training"):
            await asyncio.to_thread(self.remove)
        with self._going_on("trying and changing releases"):
            await self.releases.poll({guest.release for guest in self.people.values()})
        assert self.releases.serving is not None
        self.served = self.releases.opened[self.releases.serving]
        with self._going_on("telling what was decided"):
            self._tell_events()

    @contextmanager
    def _going_on(self, duty: str) -> Iterator[None]:
        """Says once why a duty fails, which is tried again: a full disk may be freed, and the other duties go on."""
        try:
            yield
        except Exception as error:
            failure = cause(error)
            if self.failures.get(duty) != failure:
                say(f"{duty} failed: {failure}; it serves on, and tries that again")
            self.failures[duty] = failure
        else:
            self.failures.pop(duty, None)

    def _tell_events(self) -> None:
        """Tells what was decided since it was told last, also by the training."""
        for event in self.store.events(self.told):
            self.told += 1
            self.tell(f"{event.kind}{'' if event.release is None else f' (release {event.release})'}: {event.reason}")

    async def watch(self) -> None:
        """Looks after sessions and releases until it is cancelled."""
        with suppress(asyncio.CancelledError):
            while True:
                await self.look()
                await asyncio.sleep(POLL_S)


def _is_value(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1 <= value <= 1
