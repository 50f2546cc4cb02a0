"""How busy a part was, and how much memory processes have."""

import subprocess
import sys

import pytest

from sojourn.gauge import Gauge, children_bytes, resident_bytes


def test_a_gauge_tells_the_share_of_busy_time_and_the_mean():
    now = [0.0]
    gauge = Gauge(lambda: now[0])
    now[0] = 2.0
    with gauge.during():
        now[0] = 3.0
        with gauge.during():
            now[0] = 4.0
    now[0] = 8.0
    busy = gauge.take()
    assert (busy.over_s, busy.share, busy.mean) == (8.0, 0.25, 3 / 8)
    gauge.add(1)
    now[0] = 10.0
    assert gauge.take().share == 1.0, "what goes on counts, too, and what was taken counts no more"
    assert gauge.take().share == 0.0, "over no time at all"
    assert gauge.busy_s == 4.0


def test_the_memory_of_this_process_and_of_what_it_started():
    assert resident_bytes() > 1 << 20
    assert resident_bytes(1 << 30) == 0, "there is no such process"
    before = children_bytes()
    code = "import sys, subprocess; held = bytearray(1 << 26); print(flush=True); sys.stdin.read()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        assert children_bytes() - before > 1 << 26, "the child of a child counts"
        started.communicate(b"")
    assert children_bytes() == pytest.approx(before, abs=1 << 24)
