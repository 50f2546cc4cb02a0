"""Plays attacks: the honest actions before one, its own actions, the end of the play, and the verdict on it."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sojourn.abilities import HasExpert, capacity
from sojourn.checks.attack.canary import Canary
from sojourn.checks.attack.watch import Watch
from sojourn.checks.env.play import Play, ask_expert, choose
from sojourn.checks.promise import JudgedError
from sojourn.envs.about import About, about_of
from sojourn.rollout.limits import Limits
from sojourn.rollout.world import world_of
from sojourn.types import Message, Role, Task, Tool

STALL_S = Limits().stall_s  # a call of the world that takes longer counts as an infrastructure failure
BLOCKED_S = 15.0  # the event loop may not be blocked for longer, even on a busy machine
MAX_GROWTH_BYTES = 1 << 30  # this process may not grow by more, as while it reads a million characters
CONTROL_TEXT = "lorem ipsum"


class Attempt(NamedTuple):
    """The outcome of one play: the attacker's total reward and success, the failure (if any) that would be excused as
    the infrastructure's, all text that was shown, and how many of the attack's actions were taken."""

    reward: float
    success: bool
    excused: str
    observed_text: str
    attempted: int


class Attack(NamedTuple):
    """The actions of an attack, a name for each of them, and the actions `then`, which follow in any case.

    `controls` are harmless or wrong actions, one for each action or one for all, that are tried in its place: where
    they earn as much, the attack has not changed the reward.
    """

    names: Sequence[str]
    actions: Sequence[Message]
    then: Sequence[Message] = ()
    controls: Sequence[Message] = ()


@dataclass
class HonestPlay:
    """An honest play of one task, by the expert where there is one: its actions and its events."""

    task: Task
    play: Play
    closing: Message | None = None  # an action that ends a play of this task without reward

    @property
    def actions(self) -> list[Message]:
        return self.play.actions


@dataclass
class Tally:
    """The number of attacks tried in a category, and a sentence for each attack that succeeded (`broken`)."""

    category: str
    tried: int = 0
    broken: list[str] = field(default_factory=list)
    absent: str = ""  # why nothing was tried

    @property
    def held(self) -> int:
        return self.tried - len(self.broken)


@dataclass
class Case:
    """A world under attack."""

    family: Any
    canary: Canary
    watch: Watch
    max_turns: int
    honest: list[HonestPlay] = field(default_factory=list)
    tools: dict[str, Tool] = field(default_factory=dict)
    baselines: dict[tuple[str, int], tuple[float, bool]] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """Returns how many plays the world holds at once, where it says so."""
        return min(capacity(world_of(self.family, honest.task), 2) for honest in self.honest)

    def about(self, honest: HonestPlay) -> About | None:
        """Returns the `About` of a task's world; None where it has none."""
        return about_of(world_of(self.family, honest.task))

    def submits(self, honest: HonestPlay) -> list[Message]:
        """Returns the actions that submit what was written."""
        about = self.about(honest)
        return [say(text) for text in (about.submit_actions if about else ())]

    async def play_honestly(self, task: Task) -> HonestPlay:
        """Plays a task as the expert would, else at random, and keeps what happened."""
        play = Play(self.family.make(task))
        try:
            await play.start()
            while not play.done and len(play.actions) < self.max_turns:
                await play.act(await self._next(play))
        finally:
            await play.close()
        for event in play.events:
            self.tools |= {tool.name: tool for tool in (event.observation.tools if event.observation else ())}
        return HonestPlay(task, play)

    async def attempt(
        self,
        task: Task,
        prefix: Sequence[Message],
        actions: Sequence[Message],
        then: Sequence[Message | None] = (),
        *,
        until_accepted: bool = False,
    ) -> Attempt:
        """Plays `prefix`, then `actions` (with `until_accepted`, only up to the first that the world accepts), then the
        actions of `then` that are not None, and returns the outcome.

        The first seat to move attacks; other seats play honestly. Exceptions of the world, which a run would count as
        infrastructure failures, are the attempt's `excused`.
        """
        play, excused, count = Play(self.family.make(task)), "", 0
        try:
            await asyncio.wait_for(play.start(), STALL_S)
            attacker = play.seat
            for action in prefix:
                await self._act(play, attacker, action)
            for action in actions:
                if play.done:
                    break
                count += 1
                if await self._act(play, attacker, action) and until_accepted:
                    break
            for action in filter(None, then):
                await self._act(play, attacker, action)
        except JudgedError as error:
            excused = str(error)
        except TimeoutError:
            excused = f"the world did not answer within {STALL_S:g} s"
        except Exception as error:
            excused = f"{type(error).__name__}: {str(error)[:300]}"
        finally:
            closed = await _closed(play)
        return _attempted(play, excused or closed, count)

    async def _act(self, play: Play, attacker: str, action: Message) -> bool:
        """Takes one action when it is the attacker's turn; returns whether it was accepted."""
        while play.seat != attacker and not play.done:
            await play.act(await self._next(play))
        return not play.done and not (await asyncio.wait_for(play.act(action), STALL_S)).refused

    async def _next(self, play: Play) -> Message:
        if isinstance(play.env, HasExpert):
            try:
                return await ask_expert(play.env)
            except Exception:  # it knows no action here, such as on a page without an expert
                pass
        return await choose(play, random.Random(f"{play.events[0].observation} {len(play.events)}"))

    async def baseline(self, honest: HonestPlay, turns: int) -> tuple[float, bool]:
        """Returns the reward and success of a play that is ended, without an attack, after the first `turns` honest
        actions."""
        key = (honest.task.id, turns)
        if key not in self.baselines:
            attempt = await self.attempt(honest.task, honest.actions[:turns], (), [honest.closing])
            self.baselines[key] = (attempt.reward, attempt.success)
        return self.baselines[key]

    async def judge(self, tally: Tally, honest: HonestPlay, turns: int, attack: Attack, *, alone: bool = True) -> int:
        """Tries an attack after `turns` honest actions, counts it, and returns how many of its actions were taken.

        Unless `alone`, each action is an attack of its own, and the first that the world accepts is the last."""
        self.watch.reset()
        start = self.watch.peak_bytes
        prefix, then = honest.actions[:turns], [*attack.then, honest.closing]
        attempt = await self.attempt(honest.task, prefix, attack.actions, then, until_accepted=not alone)
        tally.tried += 1 if alone else max(attempt.attempted, 1)
        if fault := await self._fault(attempt, honest, turns, attack, max(attempt.attempted, 1) - 1) or self._harm(
            attempt, start
        ):
            tally.broken.append(f"{attack.names[0 if alone else max(attempt.attempted, 1) - 1]}: {fault}")
        return attempt.attempted

    async def _fault(self, attempt: Attempt, honest: HonestPlay, turns: int, attack: Attack, last: int) -> str:
        if attempt.excused:
            return f"the play would be excused: {attempt.excused}"
        usual, success = await self.baseline(honest, turns)
        if attempt.reward <= usual + 1e-9 and attempt.success <= success:
            return ""
        if attack.controls:
            actions, then = [attack.controls[min(last, len(attack.controls) - 1)]], [*attack.then, honest.closing]
            same = await self.attempt(honest.task, honest.actions[:turns], actions, then)
            if attempt.reward <= same.reward + 1e-9 and attempt.success <= same.success:
                return ""
        return f"it earned {attempt.reward:g}{' and counts as a success' * attempt.success}, where {usual:g} is usual"

    def _harm(self, attempt: Attempt, start: int) -> str:
        if self.watch.longest_s > BLOCKED_S:
            return f"the event loop was blocked for {self.watch.longest_s:.0f} s"
        if self.watch.peak_bytes - start > MAX_GROWTH_BYTES:
            return f"this process grew by {(self.watch.peak_bytes - start) >> 20} MiB"
        if self.canary.secret in attempt.observed_text.replace(self.canary.abstract, ""):
            return "the environment of this process was read"
        return self.canary.broken()


def _attempted(play: Play, excused: str, attempted: int) -> Attempt:
    if not play.events:
        return Attempt(0.0, False, excused, "", attempted)
    seat = play.events[0].seat
    reward = sum(float(event.rewards.get(seat, 0.0)) for event in play.events)
    known = [event.success for event in play.events if event.success is not None]
    seen = [event.observation for event in play.events if event.observation]
    text = "\n".join(message.text for o in seen for message in o.messages)
    return Attempt(reward, bool(known and known[-1]), excused, text, attempted)


async def _closed(play: Play) -> str:
    try:
        await asyncio.wait_for(play.close(), STALL_S)
    except TimeoutError:
        return f"close() did not end within {STALL_S:g} s"
    except Exception as error:
        return f"close() raised {type(error).__name__}: {str(error)[:300]}"
    return ""


def named_files(honest: HonestPlay) -> list[str]:
    """Returns the names of files in the first observation of a task and in its honest actions."""
    first = honest.play.events[0].observation
    texts = [message.text for message in (*first.system, *first.messages)] if first else []
    texts += [action.text for action in honest.actions]
    names = re.findall(
        r"\b[\w-]+(?:\.[\w-]+)*\.(?:txt|csv|json|log|gz|tar|zip|db|sqlite|py|md|conf|sh|xml)\b", " ".join(texts)
    )
    return sorted(set(names))[:8]


def say(text: str) -> Message:
    return Message(Role.ASSISTANT, text)
