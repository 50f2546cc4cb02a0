"""Shows the summaries of several evaluations side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from sojourn.intervals import Estimate
from sojourn.record.summary import Part, Summary


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
    for parts in ([summary.envs for summary in columns], [summary.tags for summary in columns]):
        names = sorted({name for part in parts for name in part})
        if len(names) > 1:
            table.add_section()
            for name in names:
                table.add_row(name, *(part[name].success.percent if name in part else "" for part in parts))
    return table


def _overall_rows(parts: Sequence[Part], brief: bool) -> list[tuple[str, list[str]]]:
    ks = sorted({k for part in parts for k in part.pass_at if k > 1})
    rows = [
        ("success", [part.success.percent for part in parts]),
        *((f"pass@{k}", [part.pass_at[k].percent if k in part.pass_at else "" for part in parts]) for k in ks),
        ("reward", [_plus_minus(part.reward) for part in parts]),
    ]
    if brief:
        return rows
    return [
        *rows,
        ("turns", [_plus_minus(part.turns) for part in parts]),
        ("tokens", [_plus_minus(part.tokens) for part in parts]),
        ("malformed turns", [part.malformed.percent for part in parts]),
        ("tasks / episodes", [f"{part.tasks} / {part.episodes}" for part in parts]),
    ]


def _plus_minus(estimate: Estimate) -> str:
    return f"{estimate.mean:.3g} ± {estimate.high - estimate.mean:.2g}"
