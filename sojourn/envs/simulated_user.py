"""Simulates users by a language model."""

from __future__ import annotations

from typing import Any

from sojourn.models.endpoint import Endpoint

STOP = "###STOP###"
USER_PROMPT = """You play a customer who talks with a service agent. Write only what the customer says next, one or two
sentences. Do not give away everything at once: answer what you are asked. Do not invent anything that is not below; say
that you do not know it. Answer yes or no when you are asked to confirm. When you have what you came for, or know that
you will not get it, write {stop}.

What you want and know:
{instructions}"""


class SimulatedUser:
    """A user whom a model plays from instructions; it sees the conversation alone. A deep copy is an independent user
    in the same conversation."""

    def __init__(self, endpoint: Endpoint, instructions: str, opening: str = "") -> None:
        self.endpoint = endpoint
        self.messages = [{"role": "system", "content": USER_PROMPT.format(stop=STOP, instructions=instructions)}]
        self.opening = opening
        if opening:
            self.messages.append({"role": "assistant", "content": opening})

    def __deepcopy__(self, memo: dict[int, Any]) -> SimulatedUser:
        copy = SimulatedUser(self.endpoint, "")
        copy.messages, copy.opening = list(self.messages), self.opening
        return copy

    async def open(self) -> str:
        """Returns the first words of the user, who says them once."""
        if not self.opening:
            self.opening = await self.reply("Hello, how can I help you?")
        return self.opening

    async def reply(self, text: str) -> str:
        """Returns what the user answers to the agent's text."""
        answer = await self.endpoint.complete_text([*self.messages, {"role": "user", "content": text}])
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        return answer
