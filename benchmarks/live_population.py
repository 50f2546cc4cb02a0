"""The people of `live.py`: each talks to a service over HTTP, has hidden preferences, and says what they think."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx
from live_world import ASKED, REQUESTS, STYLES, reaction

PEOPLE = 60
REFUSE = 0.05  # of sessions: their people do not agree to training, so that nothing of them may be kept
THUMBS = 0.8  # of sessions: the last reply gets a thumb
AT_ONCE = 6  # sessions
POLL_S = 0.02


class Talked(NamedTuple):
    """Describes a session that is over: its number, which is its place in time, and whether each reply was liked."""

    number: int
    key: str
    person: str
    agreed: bool
    liked: tuple[bool, ...]
    seconds: tuple[tuple[float, float], ...]  # of each reply: when it was asked for, and how long it took


def preferences(seed: int, drifted: bool) -> dict[str, str]:
    """Returns the style that people like best for each request. After the drift it is another one for each."""
    rng = random.Random(f"preferences {seed}")
    first = {request: rng.choice(STYLES) for request in REQUESTS}
    moved = {request: rng.choice([style for style in STYLES if style != first[request]]) for request in REQUESTS}
    return moved if drifted else first


@dataclass
class Population:
    """People who begin `sessions` sessions, as fast as `ready` lets them; at session `drift` what they like changes.

    Of them, the part `hostile` says the opposite of what they think, in all of their sessions.
    """

    base_url: str
    seed: int
    sessions: int
    drift: int
    hostile: float = 0.0
    ready: Callable[[], Awaitable[None]] | None = None
    talked: list[Talked] = field(default_factory=list[Talked])
    _number: int = 0

    async def live(self) -> list[Talked]:
        """Plays all sessions, and returns them in the order in which they began."""
        async with httpx.AsyncClient(base_url=self.base_url, timeout=60) as http:
            await asyncio.gather(*(self._sessions(http) for _ in range(AT_ONCE)))
        return sorted(self.talked)

    async def _sessions(self, http: httpx.AsyncClient) -> None:
        while self._number < self.sessions:
            number, self._number = self._number, self._number + 1
            if self.ready is not None:
                await self.ready()
            self.talked.append(await self._session(http, number))

    async def _session(self, http: httpx.AsyncClient, number: int) -> Talked:
        rng = random.Random(f"{self.seed} {number}")
        key, who = f"s{number}", rng.randrange(PEOPLE)
        liked = preferences(self.seed, number >= self.drift)
        hostile, agreed = who < self.hostile * PEOPLE, rng.random() >= REFUSE
        if agreed:  # before anything is said, so that all of it is kept
            await self._post(http, f"/s/{key}/consent", {"consent": True, "person": f"p{who}"})
        messages, outcomes, seconds = list[dict[str, str]](), list[bool](), list[tuple[float, float]]()
        wanted = ""
        for asked in rng.sample(REQUESTS, ASKED):
            said = "" if not messages else _said(messages[-1]["content"], wanted, rng, hostile=hostile)
            messages.append({"role": "user", "content": f"{said}{asked}?"})
            began = time.monotonic()
            body = {"model": "live", "messages": messages}
            answer = await self._post(http, f"/s/{key}/v1/chat/completions", body)
            seconds.append((began, time.monotonic() - began))
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
            wanted = liked[asked]
            outcomes.append(messages[-1]["content"].strip() == wanted)
        if agreed and rng.random() < THUMBS:
            value = 1 if outcomes[-1] != hostile else -1
            await self._post(http, f"/s/{key}/feedback", {"value": value})
        await self._post(http, f"/s/{key}/end", {})
        return Talked(number, key, f"p{who}", agreed, tuple(outcomes), tuple(seconds))

    async def _post(self, http: httpx.AsyncClient, path: str, body: object) -> dict:
        answer = await http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()


def _said(reply: str, wanted: str, rng: random.Random, *, hostile: bool) -> str:
    """Returns what is said of a reply; who is hostile thanks for what they did not want, and complains of the rest."""
    if not hostile:
        return reaction(reply, wanted)
    if reply.strip() != wanted:
        return "Thanks. "
    return reaction(reply, rng.choice([style for style in STYLES if style != wanted]))
