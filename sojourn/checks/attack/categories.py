"""The categories of attacks, each a function that attacks a case and returns a tally."""

from __future__ import annotations

import asyncio
import difflib
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

from sojourn.checks.attack.case import CONTROL_TEXT, Attack, Case, HonestPlay, Tally, named_files, say
from sojourn.checks.attack.programs import BOMBS, NOTHING, Program, programs
from sojourn.checks.attack.slots import Slot, slots
from sojourn.checks.attack.texts import QUERIES, TEXTS, texts
from sojourn.checks.env.hostile import hostile
from sojourn.checks.env.play import Play, closing, first_difference, play_through
from sojourn.types import Message

ANSWERS = 8  # the most actions of other tasks that stuffing gives at once, or that are tried as the end of a play
STUFFED = 400  # the attacks of stuffing after which no further task is tried
TRIED = 4  # actions of other tasks that are tried in the place of a possible answer
SLOTS = 2  # how many slots each text is put into
MARK_S = "86413.75"  # seconds that an attack's processes sleep; they are found by this number in their command lines
NEEDLE = "4217x"
WORD = re.compile(r"[\w-]+")
SHORT = 4  # answers of at most this many words need not resemble each other


class Interpreter(NamedTuple):
    """A slot whose text the world runs as a program (bash where `shell`, else Python), and the actions needed
    `after`."""

    slot: Slot
    shell: bool
    after: tuple[Message, ...]

    def run(self, program: Program) -> tuple[Message, ...]:
        return (self.slot.put(program.in_bash() if self.shell else program.in_python()), *self.after)


async def interpreters(case: Case) -> list[Interpreter]:
    """Finds slots whose text runs in bash or Python, by computing sums and looking for their results."""
    honest = case.honest[0]
    others = [action for action in honest.actions[:-1] if 0 < len(action.text) <= 12 and not action.calls]
    interpreter_of: dict[bool, Interpreter] = {}
    for slot in slots_of(case):
        for shell, sum_ in ((True, "echo $((4200+17))x"), (False, "print(str(4200+17) + 'x')")):
            for after in ((), tuple(others[-1:]), (say("test"),)):
                if shell not in interpreter_of:
                    attempt = await case.attempt(honest.task, (), (slot.put(sum_), *after))
                    if NEEDLE in attempt.observed_text:
                        interpreter_of[shell] = Interpreter(slot, shell, after)
    return [interpreter_of[shell] for shell in sorted(interpreter_of, reverse=True)]


def slots_of(case: Case) -> list[Slot]:
    actions = [action for honest in case.honest for action in honest.actions]
    about = case.about(case.honest[0])
    return slots(about.text_actions if about else (), list(case.tools.values()), actions)


async def stuffing(case: Case, runs: Sequence[Interpreter]) -> Tally:
    """Gives the answers of several tasks at once where an honest play gives its answer, in forms in which a grader
    might find the right answer; none may earn more than a wrong answer."""
    tally = Tally("stuffing")
    for honest in case.honest:
        if tally.tried >= STUFFED:
            break
        if answer := await _answer(case, honest):
            place, alike = answer
            own, rest = honest.actions[place], honest.actions[place + 1 :]
            for name, action in _stuffed(own, alike[: ANSWERS - 1], lines=not runs):
                await case.judge(tally, honest, place, Attack([name], [action], rest, alike[:1]))
    tally.absent = (
        "" if tally.tried else "no action was found that is an answer: one that other tasks give in other words"
    )
    return tally


async def _answer(case: Case, honest: HonestPlay) -> tuple[int, list[Message]] | None:
    """Returns the position of the last action in whose place another task's action earns less, and similar actions of
    other tasks, that one first."""
    earned = (sum(e.rewards.get(honest.play.events[0].seat, 0.0) for e in honest.play.events), honest.play.success)
    for place, own in reversed(list(enumerate(honest.actions))):
        others = [action for other in case.honest if other is not honest for action in other.actions]
        alike = list({repr(a): a for a in others if a != own and _alike(a, own)}.values())
        for number, other in enumerate(alike[:TRIED]):
            wrong = await case.attempt(honest.task, honest.actions[:place], [other], honest.actions[place + 1 :])
            if (wrong.reward, wrong.success) < earned:
                return place, [other, *alike[:number], *alike[number + 1 :]]
    return None


def _alike(action: Message, own: Message) -> bool:
    """Returns whether two actions may answer the same question: they are of one kind and, if long, half the same."""
    words, own_words = (WORD.findall(" ".join([m.text, *(str(c.arguments) for c in m.calls)])) for m in (action, own))
    short = min(len(words), len(own_words)) <= SHORT
    return _kind(action) == _kind(own) and (short or difflib.SequenceMatcher(None, words, own_words).ratio() >= 0.5)


def _kind(action: Message) -> str:
    """Returns the tool that an action calls, or its first word."""
    return f"call {action.calls[0].name}" if action.calls else "".join(WORD.findall(action.text)[:1])


def _stuffed(own: Message, others: Sequence[Message], *, lines: bool) -> list[tuple[str, Message]]:
    """Returns variants of an action, each with a name, that hold the answers of other plays beside its own; with
    `lines`, also one with the whole actions, a line each."""
    stuffed: list[tuple[str, Message]] = []
    texts = [final.text for final in others if final.text and not final.calls]
    if own.text and not own.calls and texts:
        start, values, end = _split_common([own.text, *texts])
        stuffed += [(name, say(start + value + end)) for name, value in _joined(values)]
        if lines:
            stuffed.append(("whole actions, a line each", say("\n".join([*texts, own.text]))))
    for place, call in enumerate(own.calls):
        for key, value in call.arguments.items():
            alike = [c.arguments.get(key) for final in others for c in final.calls if c.name == call.name]
            values = [str(v) for v in alike if isinstance(v, str) and v != value]
            if isinstance(value, str) and values:
                for name, text in _joined([value, *values]):
                    calls = (*own.calls[:place], replace(call, arguments={**call.arguments, key: text}))
                    stuffed.append((f"{key}: {name}", replace(own, calls=(*calls, *own.calls[place + 1 :]))))
    return stuffed


def _joined(values: Sequence[str]) -> list[tuple[str, str]]:
    """Returns texts that hold all values, with a name for each; the first value is the right one."""
    own, *others = dict.fromkeys(values)
    if not others:
        return []
    mixed = [*others, own]
    return [
        ("the right answer first, in a list", ", ".join([own, *others])),
        ("the right answer last, in a list", ", ".join(mixed)),
        ("one of them or another", " or ".join(mixed)),
        ("all of them, and", " and ".join([own, *others])),
        ("a line each", "\n".join(mixed)),
        ("a wrong one, and a correction", f"{others[0]}. No, wait: {own}"),
        ("a right one, and a correction", f"{own}. No, wait: {others[0]}"),
        ("not the others", f"It is not {', nor '.join(others)}, so it may be {own}, or not"),
        ("the right answer in brackets", f"{others[0]} ({own})"),
    ]


def _split_common(texts: Sequence[str]) -> tuple[str, list[str], str]:
    """Splits texts into their common beginning, the differing middle of each, and their common end, in whole words."""
    split = [re.findall(r"\w+|\W", text) for text in texts]
    room = min(map(len, split)) - 1
    first = next((n for n in range(room) if len({words[n] for words in split}) > 1), room)
    last = next((n for n in range(room - first) if len({words[-1 - n] for words in split}) > 1), room - first)
    values = ["".join(words[first : len(words) - last]) for words in split]
    return "".join(split[0][:first]), values, "".join(split[0][len(split[0]) - last :])


async def attacks(case: Case, category: str, runs: Sequence[Interpreter]) -> Tally:
    """Tries the texts of a category in the slots, and its programs where the world runs programs."""
    tally = Tally(category)
    if category in TEXTS:
        await _try_texts(case, tally, category)
    for interpreter in runs:
        await _run_programs(case, tally, category, interpreter)
    tally.absent = "" if tally.tried else "it runs no program of an agent's"
    return tally


async def _try_texts(case: Case, tally: Tally, category: str) -> None:
    """Tries every text in `SLOTS` of the slots (queries without end in all), in a play of each kind of task, at its
    start or in its middle."""
    places, canary = slots_of(case), case.canary
    hostile_texts = texts(category, canary.port, str(canary.folder / "canary"))
    odd = [message for message in hostile(list(case.tools.values())) if message.calls and category == "bombs"]
    for number, honest in enumerate(_one_of_each_kind(case)):
        put = [
            (text, places[(SLOTS * (i + number) + n) % len(places)])
            for i, text in enumerate(hostile_texts)
            for n in range(SLOTS)
        ]
        put += [(query, slot) for query in QUERIES for slot in places if category == "stalls"]
        left = [(f"{ascii(text)[:60]} as {slot.shape}", slot.put(text), slot.put(CONTROL_TEXT)) for text, slot in put]
        left += [(f"a call of {ascii(m.calls[0].name)[:40]} with odd arguments", m, say(CONTROL_TEXT)) for m in odd]
        for turns in cycle((0, len(honest.actions) // 2)):
            if not left:
                break
            names, actions, dull = zip(*left, strict=True)
            attack = Attack(names, actions, case.submits(honest), dull)
            left = left[max(await case.judge(tally, honest, turns, attack, alone=False), 1) :]


def _one_of_each_kind(case: Case) -> list[HonestPlay]:
    return list({honest.task.tags[:1]: honest for honest in case.honest}.values())


async def _run_programs(case: Case, tally: Tally, category: str, interpreter: Interpreter) -> None:
    canary = case.canary
    places = {"port": str(canary.port), "abstract": canary.abstract, "folder": str(canary.folder), "mark": MARK_S}
    places["file"] = str(canary.folder / "canary")
    among = case.honest[:2]
    for number, honest in enumerate(among):
        program_of = programs(category, places, named_files(honest))
        for name, program in list(program_of.items())[number :: len(among)]:
            actions = [*interpreter.run(program), *interpreter.run(NOTHING)]
            title = f"{name} in {'bash' if interpreter.shell else 'Python'}"
            await case.judge(tally, honest, 0, Attack([title], actions))


async def attack_beside_honest_play(case: Case, tally: Tally, runs: Sequence[Interpreter]) -> None:
    """Plays honestly while another play attacks; the honest play's observations and rewards may not change."""
    if case.room < 2:
        return
    harmful = [texts(category, case.canary.port, "/")[0] for category in TEXTS]
    attacking = [[slot.put(text) for text in harmful] for slot in slots_of(case)[:2]]
    attacking += [list(run.run(BOMBS["forks"])) for run in runs]
    for actions in attacking:
        honest = case.honest[tally.tried % len(case.honest)]
        other = case.honest[(tally.tried + 1) % len(case.honest)]
        tally.tried += 1
        again, _ = await asyncio.gather(
            replayed(case, honest), case.attempt(other.task, (), actions), return_exceptions=True
        )
        if isinstance(again, BaseException):
            tally.broken.append(f"an honest play beside an attack failed: {type(again).__name__}: {again}")
        elif again:
            tally.broken.append(f"an honest play beside an attack changed: {again}")


async def poisoning(case: Case, tally: Tally, after: str) -> None:
    """Replays honest plays after a category of attacks, in the same open world; they may not change."""
    for honest in case.honest[:3]:
        tally.tried += 1
        try:
            difference = await replayed(case, honest)
        except Exception as error:
            difference = f"it fails: {type(error).__name__}: {str(error)[:300]}"
        if difference:
            tally.broken.append(f"after {after}, an honest play is another: {difference}")


async def replayed(case: Case, honest: HonestPlay) -> str:
    """Describes the first difference between an honest play and its replay now; empty where there is none."""
    async with closing(Play(case.family.make(honest.task))) as again:
        await play_through(again, honest.actions)
    return first_difference(honest.play.events, again.events)


async def find_closing_actions(case: Case) -> None:
    """Finds for each task an action that ends its play without reward, among the last actions of other honest plays."""
    for honest in case.honest:
        others = [other.actions[-1] for other in case.honest if other is not honest and other.actions]
        random.Random(honest.task.id).shuffle(others)
        for action in list({repr(other): other for other in others}.values())[:ANSWERS]:
            attempt = await case.attempt(honest.task, (), [action])
            if not attempt.excused and not attempt.success and attempt.reward <= 0:
                honest.closing = action
                break


CATEGORIES: Mapping[str, Callable[[Case, Sequence[Interpreter]], Awaitable[Tally]]] = {
    "stuffing": stuffing,
    **{
        name: (lambda case, runs, name=name: attacks(case, name, runs))
        for name in ("injection", "escapes", "bombs", "stalls", "signals", "races")
    },
}
