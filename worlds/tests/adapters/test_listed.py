"""Files of tasks that a user wrote down."""

import json
import os
import subprocess
import sys

from sojourn_worlds.adapters.listed import listed

# Characters at which `str.splitlines` ends a line, and JSON does not.
ENDS = ["one\u2028two", "one\u0085two", "Z\u00fcrich"]


def test_a_line_ends_at_line_feeds_alone(tmp_path):
    rows = tmp_path / "rows.jsonl"
    text = "\r\n".join(json.dumps({"task": one, "split": "train"}, ensure_ascii=False) for one in ENDS)
    rows.write_bytes(f"{text}\n\n".encode())
    assert [row["task"] for row in listed(str(rows), "x", "train")] == ENDS


def test_files_are_read_alike_in_every_locale(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"task": ENDS[2]}, ensure_ascii=False), "utf-8")
    code = (
        "import sys; from sojourn_worlds.adapters.listed import listed; print(ascii(listed(sys.argv[1], 'x', 'train')))"
    )
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    answer = subprocess.run([sys.executable, "-c", code, str(rows)], env=plain, capture_output=True, text=True)
    assert answer.stdout.strip() == ascii([{"task": ENDS[2]}]), answer.stderr
