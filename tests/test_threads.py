"""What `prepare` decides for the process, seen from outside."""

import os
import platform
import subprocess
import sys

import pytest

PASSES = """
import resource, sys, threading
if sys.argv[1] == "prepared":
    from sojourn.threads import prepare
    prepare(1)

def work():
    for _ in range(20):
        made = [b"x" * 2**24 for _ in range(4)]
        del made

before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **settings: str) -> int:
    """Pages that a thread had to be given while it took and freed 64 MB twenty times."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", PASSES, how]
    return int(subprocess.run(command, env={**kept, **settings}, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the GNU C library's settings")
def test_freed_memory_stays_for_the_next_pass_unless_the_user_says_otherwise():
    pages = 4 * 2**24 // os.sysconf("SC_PAGE_SIZE")
    assert faults("prepared") < 3 * pages
    assert faults("prepared", MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 10 * pages
