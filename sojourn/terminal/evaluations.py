"""Shows the summaries of several evaluations side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.table import Table

from sojourn.intervals import Estimate
from sojourn.record.summary import Summary, measure_names
from sojourn.terminal.numbers import number

Row = tuple[str, list[str]]  # a label, and a cell for each summary
LONGEST = "tasks / episodes"  # of the labels that are always there
MAX_NAME = 13  # characters of a name in a line; a longer one is folded


def side_by_side(summaries: Mapping[str, Summary], title: str = "", *, brief: bool = False) -> Table:
    """Returns a table with a column for each summary: overall numbers first, then success by world and by tag.

    With `brief` it has only success, pass@k, reward, and what worlds measure of the policy. Long names are folded, so
    that the numbers have room.
    """
    sections = _sections(list(summaries.values()), brief)
    table = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False,
        collapse_padding=True,
    )  # fmt: skip
    table.add_column("95% intervals", overflow="fold", min_width=len(LONGEST))
    for at, name in enumerate(summaries):
        needed = max(len(cells[at]) for section in sections for _, cells in section)
        table.add_column(name, justify="right", overflow="fold", width=max(needed, min(cell_len(name), MAX_NAME)))
    for section in sections:
        for label, cells in section:
            table.add_row(label, *cells)
        if section is not sections[-1]:
            table.add_section()
    return table


def _sections(columns: Sequence[Summary], brief: bool) -> list[list[Row]]:
    """Returns the rows of the table: overall numbers, then success by world and by tag where there are several."""
    overall = _overall_rows(columns, brief)
    if brief:
        return [overall]
    if any(summary.errors for summary in columns):
        overall.append(("errors", [str(summary.errors) for summary in columns]))
    if any(summary.full_contexts for summary in columns):
        overall.append(("contexts full", [str(summary.full_contexts) for summary in columns]))
    sections = [overall]
    for groups in ([summary.envs for summary in columns], [summary.tags for summary in columns]):
        names = sorted({name for group in groups for name in group})
        if len(names) > 1:
            cells = {n: [group[n].success.percent if n in group else "" for group in groups] for n in names}
            sections.append(list(cells.items()))
    return sections


def _measure(summary: Summary, name: str) -> str:
    return number(summary.measures[name]) if name in summary.measures else ""


def _overall_rows(summaries: Sequence[Summary], brief: bool) -> list[Row]:
    columns = [summary.overall for summary in summaries]
    ks = sorted({k for column in columns for k in column.pass_at if k > 1})
    rows = [
        ("success", [column.success.percent for column in columns]),
        *((f"pass@{k}", [column.pass_at[k].percent if k in column.pass_at else "" for column in columns]) for k in ks),
        ("reward", [_interval(column.reward) for column in columns]),
        *((name, [_measure(summary, name) for summary in summaries]) for name in measure_names(summaries)),
    ]
    if brief:
        return rows
    return [
        *rows,
        ("turns", [_plus_minus(column.turns) for column in columns]),
        ("tokens", [_plus_minus(column.tokens) for column in columns]),
        ("malformed turns", [column.malformed.percent for column in columns]),
        (LONGEST, [f"{column.tasks} / {column.episodes}" for column in columns]),
    ]


def _interval(estimate: Estimate) -> str:
    """Returns an estimate whose interval need not be symmetric, such as 0.5 [.15–.85]."""
    low, high = (f"{end:.2g}".replace("0.", ".", 1) if abs(end) < 1 else f"{end:.2g}" for end in estimate[1:3])
    return f"{estimate.mean:.2g} [{low}–{high}]"


def _plus_minus(estimate: Estimate) -> str:
    if math.isinf(estimate.high):  # of a single task
        return f"{estimate.mean:.3g}"
    return f"{estimate.mean:.3g} ± {estimate.high - estimate.mean:.2g}"
