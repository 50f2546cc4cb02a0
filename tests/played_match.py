"""A match in a terminal of 80 columns."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

from rich.console import Console

from sojourn.arena import run_match
from sojourn.arena.results import Result
from sojourn.envs.toy import Toy

TOY = {"name": "toy", "choices": True}


class Ended(NamedTuple):
    results: list[Result]
    shown: str

    def named(self, name: str) -> Result:
        return next(result for result in self.results if result.name == name)


async def match(*operators: str, typed: str = "", family: Any = None, table: Any = None, **asked: Any) -> Ended:
    out = io.StringIO()
    wanted = run_match.MatchConfig(operators=operators, **{"tasks": 2, **asked})
    world = family if family is not None else Toy(choices=True)
    console = Console(file=out, width=80)
    found = await run_match.run_match(world, {"env": table or TOY}, wanted, console, io.StringIO(typed))
    return Ended(found, out.getvalue())
