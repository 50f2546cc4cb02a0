"""Bugs: small changes of a module that some test case notices, found by trying them.

After mutation testing (DeMillo, Lipton, Sayward 1978): one comparison, operator, number, name or return is changed. The
trials run in this process, limited by a number of lines and not of seconds, so that the same bugs are found at any time
on any machine; modules and bugs are ours alone, nothing that an agent wrote is run here.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sojourn_worlds.repo.cases import CASES

MAX_LINES = 5_000  # that a case may execute: the modules take less than 2,000
SWAPS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")), ast.LtE: ("<=", ("<", ">=")), ast.Gt: (">", (">=", "<")), ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)), ast.NotEq: ("!=", ("==",)), ast.In: ("in", ("not in",)), ast.NotIn: ("not in", ("in",)),
    ast.Add: ("+", ("-",)), ast.Sub: ("-", ("+",)), ast.Mult: ("*", ("+",)), ast.FloorDiv: ("//", ("%",)),
    ast.Mod: ("%", ("//",)), ast.And: ("and", ("or",)), ast.Or: ("or", ("and",)),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "True": "False", "False": "True"}


@dataclass(frozen=True)
class Bug:
    """A replacement of the characters from `start` to `end` of a module."""

    module: str
    start: int
    end: int
    text: str

    @property
    def id(self) -> str:
        return f"{self.module}:{self.start}:{self.end}:{self.text}"

    @property
    def split(self) -> str:
        return "test" if hashlib.sha256(self.id.encode()).digest()[0] % 4 == 0 else "train"

    def plant(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


@dataclass(frozen=True)
class Case:
    module: str
    function: str
    arguments: tuple[Any, ...]
    seen: bool

    @property
    def call(self) -> str:
        return f"{self.module}.{self.function}({', '.join(map(repr, self.arguments))})"


@cache
def source_of(module: str) -> str:
    return (Path(__file__).parent / "modules" / f"{module}.py").read_text()


@cache
def cases_of(module: str) -> tuple[Case, ...]:
    return tuple(
        Case(module, function, tuple(arguments), number % 2 == 0)
        for function, listed in CASES[module].items()
        for number, arguments in enumerate(listed)
    )


@cache
def expected(module: str) -> tuple[str, ...]:
    """Returns what each case must give, as JSON: a value, or the kind of error."""
    names = _loaded(module, source_of(module))
    return tuple(_outcome(names[case.function], case) for case in cases_of(module))


def is_noticed(module: str, source: str) -> bool | None:
    """Returns whether a visible case notices that this source of ours is wrong (True), a hidden one alone (False), or
    none (None).
    """
    names = _loaded(module, source)
    pairs = list(zip(cases_of(module), expected(module), strict=True))
    for seen in (True, False):
        for case, right in pairs:
            if case.seen == seen and _outcome(names[case.function], case) != right:
                return seen
    return None


@cache
def noticing_cases(bug: Bug) -> tuple[Case, ...]:
    """Returns the visible cases that notice a bug of ours."""
    names = _loaded(bug.module, bug.plant(source_of(bug.module)))
    pairs = zip(cases_of(bug.module), expected(bug.module), strict=True)
    return tuple(case for case, right in pairs if case.seen and _outcome(names[case.function], case) != right)


def _loaded(module: str, source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": module}
    exec(compile(source, module, "exec"), names)
    return names


def _outcome(function: Any, case: Case) -> str:
    left = MAX_LINES

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        # The collector may run finalizers of objects that have nothing to do with the case: they are not stopped.
        if frame.f_code.co_filename != function.__code__.co_filename:
            return None
        left -= 1
        if left < 0:
            raise TimeoutError
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        outcome = {"value": function(*json.loads(json.dumps(case.arguments)))}
    except Exception as error:  # a bug may do anything, and that is what is looked for
        outcome = {"error": type(error).__name__}
    finally:
        sys.settrace(before)
    try:
        return json.dumps(outcome, sort_keys=True)
    except (TypeError, ValueError):
        return json.dumps({"error": "TypeError"})


@cache
def bugs_of(module: str, seen: bool) -> tuple[Bug, ...]:
    """Returns the bugs that some case notices: with `seen` those that a visible case notices, without it the others."""
    return tuple(bug for bug, by_seen_case in _noticed_bugs(module) if by_seen_case == seen)


@cache
def _noticed_bugs(module: str) -> tuple[tuple[Bug, bool], ...]:
    bugs = []
    for bug in dict.fromkeys(_mutations(module)):
        try:
            by_seen_case = is_noticed(module, bug.plant(source_of(module)))
        except SyntaxError:
            continue
        if by_seen_case is not None:
            bugs.append((bug, by_seen_case))
    return tuple(bugs)


def _mutations(module: str) -> Iterator[Bug]:
    source = source_of(module)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def begin(node: Any) -> int:
        return at(node.lineno, node.col_offset)

    def end(node: Any) -> int:
        return at(node.end_lineno, node.end_col_offset)

    def swapped(left: ast.AST, operator: ast.AST, right: ast.AST) -> Iterator[Bug]:
        sign, others = SWAPS.get(type(operator), ("", ()))
        between = source[end(left) : begin(right)]
        if sign and sign in between:
            place = end(left) + between.index(sign)
            yield from (Bug(module, place, place + len(sign), other) for other in others)

    for function in ast.parse(source).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        own = [argument.arg for argument in function.args.args]
        own += [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        formatted = {inner for n in ast.walk(function) if isinstance(n, ast.JoinedStr) for inner in ast.walk(n)}
        for node in ast.walk(function):
            if node in formatted:  # their offsets depend on the version of Python
                continue
            if isinstance(node, ast.Compare):
                for left, operator, right in zip(
                    [node.left, *node.comparators], node.ops, node.comparators, strict=False
                ):
                    yield from swapped(left, operator, right)
            elif isinstance(node, ast.BinOp):
                yield from swapped(node.left, node.op, node.right)
            elif isinstance(node, ast.AugAssign) and type(node.op) in (ast.Add, ast.Sub):
                place = end(node.target) + 1
                yield Bug(module, place, place + 1, "-" if isinstance(node.op, ast.Add) else "+")
            elif isinstance(node, ast.BoolOp):
                yield from swapped(node.values[0], node.op, node.values[1])
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                yield Bug(module, begin(node), begin(node.operand), "")
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                for value in {node.value + 1, max(node.value - 1, 0)} - {node.value}:
                    yield Bug(module, begin(node), end(node), str(value))
            elif isinstance(node, ast.Return) and node.value is not None:
                yield Bug(module, begin(node), begin(node.value), "")
            elif isinstance(node, ast.Break):
                yield Bug(module, begin(node), end(node), "continue")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                others = {NAMES[node.id]} if node.id in NAMES else set(own) - {node.id} if node.id in own else set()
                for other in sorted(others)[:2]:
                    yield Bug(module, begin(node), end(node), other)
            elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
                yield Bug(module, begin(node), end(node), NAMES[str(node.value)])
