"""Judges the promises of a component; whatever the component's code raises becomes a verdict.

A promise names the others without which it means nothing; it is not judged where one of these is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from sojourn.checks.report import Outcome, Verdict
from sojourn.verdict import raised

CLOSE_TIMEOUT_S = 2.0


class JudgedError(Exception):
    """Ends a judgement early; the message is the verdict's detail."""

    outcome = Outcome.FAILED


class BrokenError(JudgedError):
    """The promise is broken."""


class NotOfferedError(JudgedError):
    """The promise is about an optional ability that the component does not have."""

    outcome = Outcome.NOT_OFFERED


class DoubtfulError(JudgedError):
    """The promise is kept, but something is worth knowing."""

    outcome = Outcome.WARNED


class Promise(NamedTuple):
    """One property that a component must have; `needs` are the promises without which it means nothing."""

    name: str
    needs: tuple[str, ...]
    judge: Callable[
        [Any], Any
    ]  # takes the suite's case, returns a detail (or an awaitable of one), or raises JudgedError


def judge_all(promises: Sequence[Promise], case: Any) -> tuple[Verdict, ...]:
    """Returns the verdicts on a component with synchronous calls."""
    verdicts: dict[str, Verdict] = {}
    for promise in promises:
        verdicts[promise.name] = _not_judged(promise, verdicts) or _verdict(promise, lambda p=promise: p.judge(case))
    return tuple(verdicts.values())


async def judge_all_awaited(promises: Sequence[Promise], case: Any, timeout_s: float) -> tuple[Verdict, ...]:
    """Returns the verdicts on a component with asynchronous calls; each promise may take `timeout_s`."""
    verdicts: dict[str, Verdict] = {}
    for promise in promises:
        verdicts[promise.name] = _not_judged(promise, verdicts) or await judge_awaited(promise, case, timeout_s)
    return tuple(verdicts.values())


async def judge_awaited(promise: Promise, case: Any, timeout_s: float) -> Verdict:
    """Returns the verdict on one promise, which fails where it is not finished after `timeout_s`."""
    task = asyncio.ensure_future(guarded(promise.judge(case)))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        late = not task.done()
        task.cancel()
    if late:
        await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)  # lets the play close what it opened
        return Verdict(promise.name, Outcome.FAILED, f"not finished after {timeout_s:g} s")
    return _verdict(promise, task.result)


async def guarded(judgement: Awaitable[Any]) -> Any:
    """Returns the result of a judgement; a call of sys.exit, which would end the event loop, is a broken promise."""
    try:
        return await judgement
    except SystemExit as error:
        raise BrokenError(f"it called sys.exit({error.code!r})") from error


def require_declared(component: Any, forms: Mapping[str, type]) -> str:
    """Requires the attributes of the component's role, with their types, and a class that a config can name."""
    for name, form in forms.items():
        value = getattr(component, name, None)
        if not isinstance(value, form):
            raise BrokenError(f"{name} = {value!r}: expected a {form.__name__}, such as {form()!r}")
    needs = component.needs
    if odd := [need for need in needs if not isinstance(need, str)]:
        raise BrokenError(f"needs has {odd[0]!r}: expected the names of streams")
    require_config(component)
    return f"needs {', '.join(sorted(needs)) or 'no stream'}"


def require_config(component: Any) -> str:
    """Requires a class that a config can name: a frozen dataclass, whose fields are its keys."""
    parameters = getattr(component, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise DoubtfulError(f"{type(component).__name__} is not a frozen dataclass: a config cannot name it")
    names = [field.name for field in fields(component) if field.init]
    return f"its keys are {', '.join(names)}" if names else "it has no keys"


def member(component: Any, name: str) -> Any:
    """Returns a member that the component's role names; None where the component, which is to be judged, lacks it."""
    return getattr(component, name, None)


def require_methods(component: Any, names: Sequence[str], role: str) -> None:
    """Requires the methods that a run calls on an object of this role."""
    if missing := [name for name in names if not callable(getattr(component, name, None))]:
        raise BrokenError(f"{type(component).__name__} has no {missing[0]}(): {role} needs {', '.join(names)}")


def _not_judged(promise: Promise, verdicts: dict[str, Verdict]) -> Verdict | None:
    broken = [name for name in promise.needs if verdicts[name].outcome in (Outcome.FAILED, Outcome.NOT_JUDGED)]
    return Verdict(promise.name, Outcome.NOT_JUDGED, f"needs: {broken[0]}") if broken else None


def _verdict(promise: Promise, result: Callable[[], str]) -> Verdict:
    try:
        return Verdict(promise.name, Outcome.PASSED, result())
    except JudgedError as judged:
        return Verdict(promise.name, judged.outcome, str(judged))
    except asyncio.CancelledError:
        return Verdict(promise.name, Outcome.FAILED, "it cancelled the task that played it")
    except Exception as error:
        return Verdict(promise.name, Outcome.FAILED, raised(error))
