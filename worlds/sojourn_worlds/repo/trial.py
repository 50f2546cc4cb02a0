"""Calls an agent's functions in a sandbox of their own, and compares the results outside of it.

What is expected never enters the sandbox, and nothing that the code says of itself counts: neither an exit code, nor
words, nor equality as it sees it. Code that answers every call rightly is right, however it does so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sojourn.envs.sandbox import Entry, Limits, LostError, Sandbox
from sojourn_worlds.repo.bugs import Case

CALLER = r"""
import importlib, json, signal, sys
sys.path.insert(0, "/task")
with open("/tmp/calls.json") as file:
    calls = json.load(file)
CPU_S = 0.1  # of a call: those that are right take a thousandth
out = open("/tmp/given.jsonl", "w")
dumps, flush, write = json.dumps, out.flush, out.write
def stop(*_):
    raise TimeoutError
signal.signal(signal.SIGVTALRM, stop)
loaded, broken = {}, {}
def call(module, function, arguments):
    if module in broken:
        raise broken[module]
    if module not in loaded:
        try:
            loaded[module] = importlib.import_module(module)
        except BaseException as error:
            broken[module] = error
            raise
    return getattr(loaded[module], function)(*arguments)
for module, function, arguments in calls:
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
        said = {"value": call(module, function, arguments)}
    except BaseException as error:
        said = {"error": type(error).__name__}
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    try:
        line = dumps(said, sort_keys=True)
    except Exception:
        line = dumps({"error": "TypeError"})
    write(line + "\n")
    flush()
"""
LIMITS = Limits(memory_bytes=2**28, disk_bytes=2**22, file_bytes=2**20, files=200, processes=16, cpu_s=20)
MAX_ANSWER_CHARS = 10_000  # characters of an answer that can still be right


async def run_cases(files: Mapping[str, str], cases: Sequence[Case], timeout_s: float) -> list[str]:
    """Returns what each call gives, as JSON text; empty for calls that were never answered."""
    calls = json.dumps([[case.module, case.function, case.arguments] for case in cases])
    async with Sandbox(LIMITS) as sandbox:
        try:
            await sandbox.write({path: Entry.file(text) for path, text in files.items()})
            await sandbox.write({"/tmp/calls.json": Entry.file(calls), "/tmp/call.py": Entry.file(CALLER)})
            await sandbox.run("python3 -I -S /tmp/call.py > /dev/null 2>&1", timeout_s)
            text = (await sandbox.tree()).text("/tmp/given.jsonl") or ""
        except LostError:
            text = ""
    lines = text.split("\n")[: len(cases)]
    return lines + [""] * (len(cases) - len(lines))


def is_same(line: str, right: str) -> bool:
    """Returns whether an answer is the right one, as JSON: `1`, `1.0` and `true` differ."""
    if line == right:
        return True
    if len(line) > MAX_ANSWER_CHARS:
        return False
    try:
        return json.dumps(json.loads(line), sort_keys=True) == right
    except (ValueError, RecursionError):
        return False


def is_value(line: str) -> bool:
    """Returns whether a call gave a value, rather than an error or nothing."""
    return line.startswith('{"value":')


def describe(line: str) -> str:
    """Returns an answer in words, for a reader."""
    try:
        answer = json.loads(line[:MAX_ANSWER_CHARS])
        text = f"raised {answer['error']}" if "error" in answer else f"given {answer['value']!r}"
    except (ValueError, RecursionError, KeyError, TypeError):
        text = "given no answer"
    return text if len(text) <= 100 else f"{text[:100]}..."


def report(pairs: Sequence[tuple[Case, str]], answers: Sequence[str]) -> str:
    """Returns what is told of tests that were run: how many fail, and the first few of those."""
    failed = [
        f"{case.call} must have {describe(right)}, but it has {describe(answer)}"
        for (case, right), answer in zip(pairs, answers, strict=True)
        if not is_same(answer, right)
    ]
    told = f"{len(failed)} of {len(pairs)} tests fail." if failed else f"All {len(pairs)} tests pass."
    return "\n".join([told, *failed[:4]])
