"""Counters, gauges and histograms, written in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]


@dataclass
class Metric:
    """Holds a number for each combination of the values of some labels. `kind` is "counter" or "gauge"."""

    name: str
    help: str
    labels: Labels = ()
    kind: str = "counter"
    values: dict[Labels, float] = field(default_factory=dict[Labels, float])

    def add(self, *labels: str, by: float = 1.0) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + by

    def set(self, value: float) -> None:
        self.values[()] = value

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, self.kind)
        found = self.values if self.labels or self.values else {(): 0.0}
        for labels, value in found.items():
            yield _line(self.name, dict(zip(self.labels, labels, strict=True)), value)


@dataclass
class Histogram:
    """Counts values in buckets, each of which holds those up to its bound, for each combination of labels."""

    name: str
    help: str
    bounds: Sequence[float]
    labels: Labels = ()
    counts: dict[Labels, list[int]] = field(default_factory=dict[Labels, list[int]])
    sums: dict[Labels, float] = field(default_factory=dict[Labels, float])

    def observe(self, value: float, *labels: str) -> None:
        counts = self.counts.setdefault(labels, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[labels] = self.sums.get(labels, 0.0) + value

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "histogram")
        for labels, counts in self.counts.items():
            named, total = dict(zip(self.labels, labels, strict=True)), 0
            for bound, count in zip((*self.bounds, inf), counts, strict=True):
                total += count
                yield _line(f"{self.name}_bucket", {**named, "le": _number(bound)}, total)
            yield _line(f"{self.name}_sum", named, self.sums[labels])
            yield _line(f"{self.name}_count", named, total)


def text(metrics: Sequence[Metric | Histogram]) -> str:
    """Returns the page that a Prometheus server reads."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def _head(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{written}}} {_number(value)}" if written else f"{name} {_number(value)}"


def _number(value: float) -> str:
    if value == inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
