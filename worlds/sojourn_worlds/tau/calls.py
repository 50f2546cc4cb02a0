"""The tools of a domain as the packages have them, called in this process; a call takes effect wholly or not at all."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from sojourn.envs.about import require_module
from sojourn.envs.calls import Method, as_text, method_of
from sojourn_worlds.tau.tables import Tables

OPERATORS: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LONGEST = 200  # characters of an expression
BROKEN = (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError)  # what bad arguments lead to


def server(domain: str) -> ModuleType:
    return require_module(f"tau2_{domain}_mcp.server", "sojourn-worlds[tau]", "tau")


@lru_cache(2)
def functions(domain: str) -> dict[str, FunctionType]:
    """Returns the tools by name; each takes the database first."""
    module = server(domain)
    ours = {"calculate": calculate, "transfer_to_human_agents": transfer_to_human_agents}
    if domain == "airline":
        ours["list_all_airports"] = list_all_airports
    return {name: ours.get(name) or getattr(module, f"{name}_state") for name in module.BUSINESS_TOOLS}


@lru_cache(2)
def methods(domain: str) -> dict[str, Method]:
    return {name: method_of(name, function, "tau") for name, function in functions(domain).items()}


def call(domain: str, tables: Tables, name: str, arguments: Mapping[str, Any]) -> tuple[Tables, str]:
    """Returns the database after a call, and the call's result; raises `ValueError` where it was refused."""
    after = tables.begin()
    try:
        text = as_text(functions(domain)[name](after, **arguments))
    except BROKEN as error:
        raise ValueError(str(error) if isinstance(error, ValueError) else f"bad arguments ({error!r})") from error
    return after, text


def calculate(database: Tables, expression: str) -> str:
    """Calculate the result of a mathematical expression."""
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters, at most {LONGEST} are read")
    try:
        return str(round(float(_number(ast.parse(expression.strip(), mode="eval").body)), 2))
    except (SyntaxError, RecursionError, OverflowError):
        raise ValueError("this is no expression of numbers, +, -, *, / and brackets") from None


def transfer_to_human_agents(database: Tables, summary: str) -> str:
    """Transfer the user to a human agent."""
    return "Transfer successful"


def list_all_airports(database: Tables) -> list[dict[str, str]]:
    """Return all available airports."""
    return server("airline").list_all_airports_state()


def _number(node: ast.expr) -> float:
    """Evaluates sums and products alone: the packages' own would also raise to powers, which may never end."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_number(left), _number(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
    raise ValueError("use numbers, +, -, *, / and brackets alone")
