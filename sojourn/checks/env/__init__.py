"""Checks an environment by playing it, and reports for each promise whether it is kept.

A failure of the code under test becomes a verdict, never an exception. The check cannot see leaks through servers of
the world's own or outside the temporary folder, calls that block the event loop for ever, and whatever its few random
plays do not reach.
"""

from __future__ import annotations

from typing import Any

from sojourn.abilities import Closes
from sojourn.checks.env import (
    actions,
    cancelling,
    closing,
    making,
    other_process,
    policy_measures,
    relabels,
    replays,
    seats,
    task_lists,
)
from sojourn.checks.env.play import Case
from sojourn.checks.env.resources import end_leftovers, scratch
from sojourn.checks.promise import Promise, judge_all_awaited, judge_awaited
from sojourn.checks.report import Report

WORKS = ("it is an environment", "it gives tasks", "it can be played")
COMPARED = (*WORKS, "it is deterministic")
REPLAYED = (*COMPARED, "plays are isolated", "a refusal changes nothing")
PROMISES = (
    Promise("it is an environment", (), task_lists.opens),
    Promise("it declares its source and licence", WORKS[:1], task_lists.declares_source),
    Promise("it gives tasks", WORKS[:1], task_lists.gives_tasks),
    Promise("its splits share no task", WORKS[:2], task_lists.splits_disjoint),
    Promise("its task ids are stable", WORKS[:2], other_process.ids_stable),
    Promise("it can be played", WORKS[:2], replays.plays),
    Promise("it is deterministic", WORKS, replays.deterministic),
    Promise("its seats are named", COMPARED, seats.named),
    Promise("plays are the same in another process", COMPARED, other_process.plays_alike),
    Promise("plays are isolated", COMPARED, replays.isolated),
    Promise("state keys are stable", COMPARED, replays.state_key),
    Promise("its images are available", WORKS, replays.images),
    Promise("malformed actions earn nothing", WORKS, actions.malformed),
    Promise("a refusal changes nothing", (*COMPARED, "malformed actions earn nothing"), actions.refusals),
    Promise("forks are equal and independent", REPLAYED, replays.forks),
    Promise("choices are possible", WORKS, actions.choices),
    Promise("the expert succeeds", WORKS, actions.expert),
    Promise("tasks that it makes can be solved", WORKS, making.makes),
    Promise("rewards are finite and small", WORKS, actions.rewards_small),
    Promise("success is reported at the end", WORKS, actions.success_last),
    Promise("relabelled episodes succeed", COMPARED, relabels.relabelled),
    Promise("it measures policies", WORKS, policy_measures.measured),
    Promise("it closes", WORKS, closing.closes),
    Promise("it can be cancelled", (*COMPARED, "it closes"), cancelling.cancellable),
    Promise("no process outlives the run", (*WORKS, "it closes"), other_process.dies),
    Promise("its plays end", WORKS, actions.ends),
)


async def check_env(
    family: Any,
    *,
    split: str = "train",
    episodes: int = 3,
    seed: int = 0,
    max_turns: int = 100,
    timeout_s: float = 120.0,
) -> Report:
    """Plays `episodes` tasks of a family (or of a plain class, see `as_family`) and returns a verdict per promise.

    Actions are random choices; where an observation lists none, the expert's action or an invented call. Each promise
    may take `timeout_s`.
    """
    named = getattr(family, "name", None) if not isinstance(family, type) else None  # of a plain class: module:Class
    subject = family if isinstance(family, str) else named or getattr(family, "__qualname__", type(family).__qualname__)
    with scratch() as folder:
        case = Case(family, split, episodes, seed, max_turns, folder)
        verdicts = await judge_all_awaited(PROMISES, case, timeout_s)
        if isinstance(made := case.family, Closes) and not isinstance(made, (str, type)):
            closes = Promise("the family closes", (), lambda case: closing.family_closes(case, made.close))
            verdicts = (*verdicts, await judge_awaited(closes, case, timeout_s))
        if case.untidy:
            end_leftovers(case.before, folder)
    return Report(str(subject), verdicts)
