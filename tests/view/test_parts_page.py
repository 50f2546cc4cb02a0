"""The page of what the parts of a run do."""

from __future__ import annotations

import math
import re
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sojourn.abilities import PartLoad, PartState
from sojourn.record.parts import PARTS, PartsFile, Reading
from sojourn.record.run import RunFolder
from sojourn.view.server import application
from tests.view import hostile

CONFIG = 'name = "made"\nseed = 1\n[[stages]]\nname = "rl"\nsteps = 9\n'
DRIVER = PartLoad(
    name="driver", kind="driver", facts={"node": "head"}, numbers={"busy_share": 0.25, "memory_bytes": 2e9}
)


def sampler(number: int, busy: float = 0.5, **more) -> PartLoad:
    facts, numbers = {"node": f"node-{number}", "engine": "vllm"}, {"busy_share": busy, "sampled_tokens_per_s": 1e3}
    return PartLoad(**{"name": f"sampler {number}", "kind": "sampler", "facts": facts, "numbers": numbers, **more})


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    with RunFolder.create(tmp_path / "run", CONFIG):
        pass
    return TestClient(application([tmp_path]), base_url="http://127.0.0.1")


def record(tmp_path: Path, *readings: list[PartLoad]) -> None:
    file = PartsFile(tmp_path / "run" / PARTS)
    for step, parts in enumerate(readings):
        file.write(Reading(step, "rl", 1e9 + step, 8.0, tuple(parts)))
    file.close()


def page(client: TestClient, path: str = "/parts") -> str:
    answer = client.get(f"/runs/run{path}")
    assert answer.status_code == 200
    return answer.text


def test_each_part_has_a_row_and_what_all_share_is_said_once(client, tmp_path):
    record(tmp_path, [DRIVER, sampler(0), sampler(1)], [DRIVER, sampler(0, 0.75), sampler(1, 1.0)])
    text = page(client)
    assert text.count("<tr data-row>") == 3
    assert "last reading after step 1 of rl" in text
    assert re.search(r"<h2>2 samplers\s*<span class=\"tag\" title=\"engine\">vllm</span></h2>", text)
    assert "<td>node-1</td>" in text
    for said in ("75%", "1,000", "2 GB", "sampled tokens/s"):
        assert f">{said}<" in text
    assert text.count('<svg class="spark"') == 3
    assert text.count('<figure class="chart">') == 4
    assert text.count('class="key c') == 4, "each of two samplers has a curve in each of two charts"
    assert 'class="bad' not in text


def test_a_run_in_one_process_has_the_same_page(client, tmp_path):
    record(tmp_path, [DRIVER, PartLoad(name="trainer", kind="trainer"), PartLoad(name="sampler", kind="sampler")])
    text = page(client)
    assert text.count("<tr data-row>") == 3
    assert "<figure" not in text, "one reading makes no curve"
    assert '<a href="/runs/run/parts">driver, trainer, sampler</a>' in page(client, "")


def test_a_part_that_is_gone_says_since_when(client, tmp_path):
    dead = sampler(1, state=PartState.DOWN, seen_s=31.6, note="its process has ended", numbers={"restarts": 3})
    silent = sampler(2, state=PartState.SILENT, seen_s=None, note="has not answered within 2 s", numbers={})
    record(tmp_path, [sampler(0), sampler(1), sampler(2)], [sampler(0), dead, silent])
    text = page(client)
    assert '<span class="state down">down</span>' in text
    assert "its process has ended; last seen 32 s before this reading" in text
    assert "has not answered within 2 s; never seen" in text
    above = page(client, "")
    assert "sampler 1 is down after step 1 of rl: its process has ended; last seen 32 s before this reading" in above
    assert "sampler 2 is silent" in above
    assert "sampler 0 is" not in above


def test_of_many_parts_curves_are_their_mean_and_range(client, tmp_path):
    record(tmp_path, *[[sampler(n, n / 100) for n in range(100)] for _ in range(3)])
    text = page(client)
    assert text.count("<tr data-row>") == 100
    assert text.count('class="band') == 2
    assert "mean of 100" in unescape(text)


def test_a_run_without_a_reading_says_when_there_will_be_one(client):
    assert "Nothing is recorded of this run's parts yet" in unescape(page(client))
    assert "<h2>Parts</h2>" not in page(client, "")


def test_a_part_that_comes_later_has_a_gap_before(client, tmp_path):
    record(tmp_path, [sampler(0)], [sampler(0), sampler(1, math.nan)], [sampler(0), sampler(1)])
    assert page(client).count('<svg class="spark"') == 1, "one value makes no line"


def test_the_page_notices_a_new_reading(client, tmp_path):
    record(tmp_path, [DRIVER])
    before = re.search('data-fingerprint="([^"]+)"', page(client))
    record(tmp_path, [DRIVER])
    after = re.search('data-fingerprint="([^"]+)"', page(client))
    assert before is not None
    assert after is not None
    assert before[1] != after[1]
    assert "2 readings" in page(client)


def test_hostile_text_is_escaped(tmp_path):
    hostile.make(tmp_path / "run")
    client = TestClient(application([tmp_path]), base_url="http://127.0.0.1")
    text = page(client)
    harmful = [bad for bad in ("<script>window", "onerror='", *"\x00\x1b\u202e\u2066") if bad in text]
    assert harmful == []
    assert text.count("&lt;script&gt;window.taken=1") > 12
    assert len(text) < 500_000
    assert "&lt;script&gt;window" in page(client, "")
