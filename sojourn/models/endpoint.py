"""A client for models behind an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from sojourn.config.toml import refuse_secret
from sojourn.errors import ConfigError, InfrastructureError
from sojourn.models.asking import TooLongError
from sojourn.secrets import filled

if TYPE_CHECKING:
    import httpx

    from sojourn.models.spec import ServedModel

T = TypeVar("T")
MAX_ATTEMPTS = 3
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 8.0  # before the second attempt; it doubles from one attempt to the next
TRANSIENT = frozenset({408, 409, 429})  # statuses after which another attempt may succeed, beside those from 500 on
# what OpenAI and those who follow it, vLLM, llama.cpp and Anthropic say of messages that exceed a model's context
TOO_LONG = r"context_length_exceeded|maximum context length|exceeds? the (available )?context|prompt is too long"
MOST_TOKENS = 1 << 40  # that a server may report of one completion; what is more is no count
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # of an answer of another form
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})  # addresses of this machine, which a proxy cannot reach
_jitter = random.Random()  # a generator of its own: the global one may be seeded by a run


class Completion(NamedTuple):
    """The message of a model as its server sent it, and the numbers of sampled tokens and of the prompt's that the
    server reports; 0 where it reports none."""

    message: Mapping[str, Any]
    tokens: int = 0
    prompt_tokens: int = 0


class Request(NamedTuple, Generic[T]):
    """A request as it is sent, how its answer is read, and what the answer is called where it cannot be read.

    `read` raises one of `UNREADABLE` for an answer of another form.
    """

    url: str
    body: bytes
    read: Callable[[Any], T]
    answer: str


class Failure(NamedTuple):
    """Says why an attempt failed, whether another one may succeed, how long the server asks to wait before it, and
    whether what was asked is longer than the model's context."""

    reason: str
    transient: bool
    retry_after_s: float | None = None
    too_long: bool = False


@dataclass(frozen=True)
class Endpoint:
    """A model behind an OpenAI-compatible server of chat completions.

    `key` is the name of the environment variable that holds the API key; an empty name sends none. `timeout_s` bounds
    a whole completion, with its retries and the waits between them. `name` says in errors which model it is.

    A failed connection and the statuses 408, 409, 429 and 5xx are tried again, up to `MAX_ATTEMPTS` in all, after what
    `Retry-After` asks for or else after a wait that doubles. The proxies of the environment are used, except for
    addresses of loopback.
    """

    base_url: str
    model: str
    key: str = ""
    timeout_s: float = 60.0
    name: str = "the user's model"

    def __post_init__(self) -> None:
        if not _is_address(self.base_url):
            raise ConfigError(
                f'base_url = "{self.base_url}", but it must be the address of an OpenAI-compatible server, such as '
                '"http://127.0.0.1:8000/v1"'
            )
        if not self.model:
            raise ConfigError('model = "", but it must be the name of a model that the server has')
        if self.key:
            _check_key(self.key)
        refuse_secret("base_url", self.base_url)

    async def complete_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns the text of the model's reply; raises `InfrastructureError` where it has none."""
        text = (await self.complete(messages)).message.get("content")
        if not isinstance(text, str):
            raise InfrastructureError(f"{self._described} replied without text: {text!r:.80}")
        return text.strip()

    async def complete(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Completion:
        """Returns the model's reply, at temperature 0 unless `options` say otherwise; these go into the request.

        Raises `InfrastructureError` with one sentence where there is no reply, and `TooLongError` where the server says
        that the messages exceed the model's context. The sentence holds no key.
        """
        body = {"messages": list(messages), "temperature": 0, **options}
        return await self.post(f"{self.base_url.rstrip('/')}/chat/completions", body, _completion, "chat completion")

    async def post(self, url: str, body: Mapping[str, Any], read: Callable[[Any], T], answer: str) -> T:
        """Returns what `read` makes of the server's answer to a request of the model. `read` raises one of `UNREADABLE`
        where the answer is no `answer`. Failures are those of `complete`."""
        import httpx  # loads slowly, and most runs ask no endpoint

        request = Request(url, json.dumps({"model": self.model, **body}).encode(), read, answer)
        local = urlsplit(self.base_url).hostname in LOOPBACK
        try:
            async with (
                asyncio.timeout(self.timeout_s) as limit,
                httpx.AsyncClient(verify=_tls(), trust_env=not local, timeout=None) as client,
            ):
                return await self._retried(client, request, limit.when() or 0.0)
        except TimeoutError:
            raise InfrastructureError(f"{self._described} gave no answer within {self.timeout_s:g} s") from None

    @property
    def _described(self) -> str:
        return f"{self.name} at {self.base_url}"

    async def _retried(self, client: httpx.AsyncClient, request: Request[T], deadline: float) -> T:
        """Tries until there is an answer, up to `MAX_ATTEMPTS`; `deadline` is in the time of the event loop."""
        wait_s, attempt = FIRST_WAIT_S, 1
        while isinstance(result := await self._attempt(client, request), Failure):
            pause_s = wait_s * _jitter.uniform(0.5, 1.0) if result.retry_after_s is None else result.retry_after_s
            late = asyncio.get_running_loop().time() + pause_s >= deadline
            if not result.transient or attempt == MAX_ATTEMPTS or late:
                asked = f" and asks to wait {pause_s:g} s" if late and result.retry_after_s is not None else ""
                tries = f" (attempt {attempt})" if attempt > 1 else ""
                kind = TooLongError if result.too_long else InfrastructureError
                raise kind(f"{self._described}{tries} {result.reason}{asked}")
            await asyncio.sleep(pause_s)
            wait_s, attempt = min(2 * wait_s, MAX_WAIT_S), attempt + 1
        return result

    async def _attempt(self, client: httpx.AsyncClient, request: Request[T]) -> T | Failure:
        import httpx

        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {_key(self.key)}"
        try:
            response = await client.post(request.url, content=request.body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            transient = isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError))
            return Failure(f"gave no answer: {error or type(error).__name__}", transient)
        if response.status_code != 200:
            return self._refusal(response)
        try:
            return request.read(json.loads(response.content))
        except UNREADABLE as error:
            return Failure(f"gave no answer: its reply is no {request.answer} ({type(error).__name__}: {error})", False)

    def _refusal(self, response: httpx.Response) -> Failure:
        status = response.status_code
        remedy = ""
        if status in (401, 403):
            remedy = f": check the key in the environment variable {self.key}" if self.key else ": it may want a key"
        elif status == 404:
            remedy = f': check the address and the model "{self.model}"'
        reason = f"answered {status}, {_cause(response)!r}{remedy}"
        too_long = status in (400, 413) and re.search(TOO_LONG, response.text, re.IGNORECASE) is not None
        return Failure(reason, status in TRANSIENT or status >= 500, _retry_after_s(response.headers), too_long)


def endpoint_of(name: str, served: ServedModel) -> Endpoint:
    """Returns the client of the model `models.NAME`. Raises `ConfigError` for an address or a key that cannot be used;
    nothing is asked."""
    return Endpoint(served.base_url, served.model, served.key, served.timeout_s, f"the model models.{name}")


def _is_address(url: str) -> bool:
    """Returns whether a text is an address of http or https with a host, and a port that there can be."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half of an IPv6 address, or a port above 65535
        return False


def _check_key(key: str) -> None:
    """Refuses the name of an environment variable that is not set, or whose value cannot be sent in a header."""
    if not os.environ.get(key):
        setting = f'key = "{key}"' if re.fullmatch(r"[A-Z][A-Z0-9_]*", key) else "key"
        raise ConfigError(
            f"{setting} is no environment variable that is set: give the name of the one that holds the key, such as "
            "OPENAI_API_KEY, never the key itself"
        )
    if not re.fullmatch(r"[!-~]+", _key(key)):
        raise ConfigError(f'key = "{key}": its value has characters that no key has, such as a space: export it anew')


def _key(key: str) -> str:
    """Returns the value of the environment variable, and has it masked from now on in all that is recorded."""
    return filled(f"${{{key}}}").strip()


@cache
def _tls() -> ssl.SSLContext:
    """Returns the TLS settings of this machine; they are shared, as reading the certificates takes long."""
    return ssl.create_default_context()


def _completion(data: Any) -> Completion:
    message, usage = data["choices"][0]["message"], data.get("usage")
    if not isinstance(message, dict):
        raise TypeError(f"its message is {message!r:.80}")
    counts = [usage.get(f"{kind}_tokens") if isinstance(usage, dict) else None for kind in ("completion", "prompt")]
    return Completion(
        message, *(count if isinstance(count, int) and 0 < count <= MOST_TOKENS else 0 for count in counts)
    )


def _cause(response: httpx.Response) -> str:
    """Returns what a server says of an error: the message that OpenAI's format has for it, or the text's beginning."""
    try:
        cause = json.loads(response.content)["error"]
        cause = cause["message"] if isinstance(cause, dict) else cause
    except (ValueError, LookupError, TypeError, RecursionError):
        cause = response.text
    return " ".join(str(cause)[:1_000].split())[:200]


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Returns how long a server asks to wait: `Retry-After` is a number of seconds or a date (RFC 9110, 10.2.3)."""
    text = headers.get("retry-after", "")
    if re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
