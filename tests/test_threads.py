"""What `prepare` decides for the process, seen from outside."""

import gc
import os
import platform
import subprocess
import sys

import pytest

from sojourn import threads

PASSES = """
import resource, sys, threading
if sys.argv[1] == "prepared":
    from sojourn.threads import prepare
    prepare(1)

def work():
    for _ in range(20):
        made = [b"x" * int(sys.argv[2]) for _ in range(4)]
        del made

before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, size: int, **settings: str) -> int:
    """Pages that a thread had to be given while it took and freed four blocks of that size twenty times."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", PASSES, how, str(size)]
    return int(subprocess.run(command, env={**kept, **settings}, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the GNU C library's settings")
@pytest.mark.parametrize("size", [2**24, 2**26])  # the second, a gradient to a vocabulary
def test_freed_memory_stays_for_the_next_pass_unless_the_user_says_otherwise(size):
    pages = 4 * size // os.sysconf("SC_PAGE_SIZE")
    assert faults("prepared", size) < 3 * pages
    assert faults("prepared", size, MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 10 * pages


def test_python_looks_for_garbage_less_often(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # memory stays as it is
    before = gc.get_threshold()
    try:
        threads.prepare(1)
        assert gc.get_threshold() == (threads.GC_THRESHOLD, *before[1:])
    finally:
        gc.set_threshold(*before)
