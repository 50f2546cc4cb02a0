"""Shows the summaries of several evaluations side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from sojourn.intervals import Estimate
from sojourn.record.summary import Summary, TaskStatistics


def side_by_side(summaries: Mapping[str, Summary], title: str = "", *, brief: bool = False) -> Table:
    """Returns a table with a column for each summary: overall numbers first, then success by world and by tag.

    With `brief` it has only success, pass@k and reward.
    """
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("95% intervals")
    for name in summaries:
        table.add_column(name, justify="right")
    columns = list(summaries.values())
    for label, cells in _overall_rows([summary.overall for summary in columns], brief):
        table.add_row(label, *cells)
    if brief:
        return table
    if any(summary.errors for summary in columns):
        table.add_row("errors", *(str(summary.errors) for summary in columns))
    if any(summary.full_contexts for summary in columns):
        table.add_row("contexts full", *(str(summary.full_contexts) for summary in columns))
    for groups in ([summary.envs for summary in columns], [summary.tags for summary in columns]):
        names = sorted({name for group in groups for name in group})
        if len(names) > 1:
            table.add_section()
            for name in names:
                table.add_row(name, *(group[name].success.percent if name in group else "" for group in groups))
    return table


def _overall_rows(columns: Sequence[TaskStatistics], brief: bool) -> list[tuple[str, list[str]]]:
    ks = sorted({k for column in columns for k in column.pass_at if k > 1})
    rows = [
        ("success", [column.success.percent for column in columns]),
        *((f"pass@{k}", [column.pass_at[k].percent if k in column.pass_at else "" for column in columns]) for k in ks),
        ("reward", [_plus_minus(column.reward) for column in columns]),
    ]
    if brief:
        return rows
    return [
        *rows,
        ("turns", [_plus_minus(column.turns) for column in columns]),
        ("tokens", [_plus_minus(column.tokens) for column in columns]),
        ("malformed turns", [column.malformed.percent for column in columns]),
        ("tasks / episodes", [f"{column.tasks} / {column.episodes}" for column in columns]),
    ]


def _plus_minus(estimate: Estimate) -> str:
    return f"{estimate.mean:.3g} ± {estimate.high - estimate.mean:.2g}"
