"""Measures what the gateway costs a turn, beside the model: processor time of the process that serves, less sampling.

    python benchmarks/gateway.py            # writes results/gateway.json
    python benchmarks/gateway.py --turns 8 --episodes 20

A sampler gives a reply of 40 tokens at once, so that all that is measured is ours: reading HTTP and JSON, finding the
conversation, rendering and reading the chat format, recording, and writing the reply. The client is another process
(`httpx`, a connection for each episode), whose time does not count. Beside it is what Sojourn's own agent takes for the
same turns, as far as it has the same work: rendering, reading, recording. Medians over episodes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine import RESULTS, write

from sojourn.agents.plain import Plain
from sojourn.agents.programs.seat import Bounds, ProgramSeat
from sojourn.agents.programs.site import Exit, Site
from sojourn.backends.torch.models import tiny
from sojourn.protocols import AgentContext
from sojourn.render.chatml import ChatML
from sojourn.types import FloatArray, Message, Observation, Prompt, Role, Sample, SamplingParams, Stop, Versions

TEXT = "You see a long corridor with three doors and a window at its end. " * 4
CLIENT = """
import sys, httpx
base, turns = sys.argv[1], int(sys.argv[2])
messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": sys.argv[3]}]
with httpx.Client(timeout=60) as http:
    for _ in range(turns):
        answer = http.post(f"{base}/v1/chat/completions", json={"model": "m", "messages": messages})
        messages.append(answer.json()["choices"][0]["message"])
        messages.append({"role": "user", "content": sys.argv[3]})
"""


class AtOnce:
    """Gives the same reply at once."""

    def __init__(self, tokens: Sequence[int]) -> None:
        array = np.array(tokens)
        self.sample_ = Sample(array, np.zeros(len(array), dtype=np.float32), Versions(0, 0), Stop.END)

    async def sample(self, prompt: Prompt, params: SamplingParams) -> Sample:
        return self.sample_

    async def score(self, prompt: Prompt) -> FloatArray:
        raise NotImplementedError

    async def close(self) -> None:
        """Does nothing: nothing is open."""


def context() -> AgentContext:
    renderer = ChatML().bind(tiny.build_tokenizer())
    reply = renderer.encode_reply(Message(Role.ASSISTANT, "I walk to the second door and open it slowly. " * 2))
    return AgentContext(name="agent", renderer=renderer, sampler=AtOnce(reply), params=SamplingParams(128),
                        max_context=100_000)  # fmt: skip


def observed(first: bool) -> Observation:
    system = (Message(Role.SYSTEM, "Act."),) if first else ()
    return Observation((Message(Role.USER, TEXT),), system)


async def own(turns: int) -> float:
    """Returns the milliseconds of processor time that a turn of Sojourn's own agent takes."""
    seat = Plain().seat(context())
    began = time.process_time()
    for number in range(turns):
        await seat.act(observed(not number))
    return 1000 * (time.process_time() - began) / turns


async def served(turns: int) -> float:
    """Returns the milliseconds of processor time that a turn of a program takes here."""

    async def run(site: Site) -> Exit:
        words = [sys.executable, "-c", CLIENT, site.job.url, str(turns), TEXT]
        process = await asyncio.create_subprocess_exec(*words)
        return Exit(await process.wait())

    seat = ProgramSeat(context(), run, Bounds(seconds=600.0, replies=turns, last_action="done"))
    await seat.act(observed(True))  # the server starts, and so does the program, which is not what is measured
    taken = list(seat.running.session.turns) if seat.running is not None else []
    await seat.close()
    if len(taken) != turns:
        raise RuntimeError(f"the program took {len(taken)} turns of {turns}")
    given = context()  # its tokenizer is made here, as for the plain agent
    began = time.process_time()
    seat = ProgramSeat(given, run, Bounds(seconds=600.0, replies=turns, last_action="done"))
    await seat.act(observed(True))
    spent = time.process_time() - began
    await seat.close()
    return 1000 * spent / turns


async def measured(turns: int, episodes: int) -> dict[str, Any]:
    mine = [await own(turns) for _ in range(episodes)]
    theirs = [await served(turns) for _ in range(episodes)]
    of_own, of_gateway = statistics.median(mine), statistics.median(theirs)
    return {
        "turns": turns,
        "plain_ms": round(of_own, 3),
        "gateway_ms": round(of_gateway, 3),
        "difference_ms": round(of_gateway - of_own, 3),
    }


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="what the gateway costs a turn, without sampling")
    parser.add_argument("--turns", type=lambda text: [int(n) for n in text.split(",")], default=[4, 16, 64])
    parser.add_argument("--episodes", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=RESULTS)
    options = parser.parse_args(given)
    found = [asyncio.run(measured(turns, options.episodes)) for turns in options.turns]
    for one in found:
        print(f"{one['turns']:4} turns: plain {one['plain_ms']:.2f} ms a turn, gateway {one['gateway_ms']:.2f} ms")
    print(write("gateway", {"episodes": options.episodes, "lengths": found}, folder=options.folder))


if __name__ == "__main__":
    main(sys.argv[1:])
