"""Measures searches over a big run: first pages of 20 rows with their excerpts, warm and cold.

    python benchmarks/big_run.py FOLDER && python benchmarks/searches.py FOLDER

Medians of 20. Cold: before every search the system is told to forget what it holds of the run's files, so that all
comes from the disk. Each search opens the store anew, as a request to a server would. Processor time is told beside
the time on the clock, which grows with what else the machine does.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from machine import write

from sojourn.record.episodes.store import EpisodeStore

REPEATS = 20
QUERIES = (
    "",
    "the",
    "refund umbrella",
    '"telescope refund"',
    '"of the"',
    '"the of and"',
    "P012345",
    "said:refund -umbrella error:none sort:-turns",
    "the sort:reward",
    "-the",
    "tag:hard tool:click reward:>0.5",
    "tag:hard ending:malformed sort:-reward",
    "stage:rl env:shop step:100..200 success:no",
    "reward:>7",
    "error:any",
    "id:nothing",
)


def forget(run: Path) -> None:
    """Drops the files of the run from the system's memory; they are on the disk already."""
    for path in (*run.glob("episodes.sqlite*"), *(run / "tokens").iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def timed(search: Callable[[], object]) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    search()
    return 1e3 * (time.perf_counter() - clock), 1e3 * (time.process_time() - processor)


def measure(run: Path, query: str) -> dict[str, object]:
    def search() -> str:
        with EpisodeStore(run) as store:
            return store.search(query).total_text

    cold = []
    for _ in range(REPEATS):
        forget(run)
        cold.append(timed(search))
    found = search()
    warm = [timed(search) for _ in range(REPEATS)]
    return {
        "found": found,
        "warm_ms": round(statistics.median(clock for clock, _ in warm), 1),
        "warm_processor_ms": round(statistics.median(processor for _, processor in warm), 1),
        "cold_ms": round(statistics.median(clock for clock, _ in cold), 1),
    }


def main() -> None:
    run = Path(sys.argv[1])
    figures = {}
    for query in QUERIES:
        figures[query] = measure(run, query)
        print(f"{query!r}: {figures[query]}", flush=True)
    with EpisodeStore(run) as store:
        episodes = sum(count.episodes for count in store.steps())
    sizes = {"index_mb": (run / "episodes.sqlite").stat().st_size / 1e6}
    print(write("searches", {"episodes": episodes, **sizes, "queries": figures}))


if __name__ == "__main__":
    main()
