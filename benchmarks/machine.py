"""What every result file says about where it comes from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def result(name: str, folder: Path = RESULTS) -> Path:
    """Returns where a result belongs: that of a CUDA device beside that of the CPU."""
    import torch

    folder.mkdir(exist_ok=True)
    stem, _, ending = name.partition(".")
    return folder / f"{stem}{'-cuda' if torch.cuda.is_available() else ''}.{ending}"


def installed(*packages: str) -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    found = dict[str, str]()
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def write(name: str, figures: Mapping[str, Any], *packages: str, folder: Path = RESULTS) -> Path:
    """Writes `<folder>/<name>.json`: the figures, the command, the machine, versions (of `packages` too, where they are
    installed), the date."""
    import torch

    record = {
        "figures": figures,
        "command": f"python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "load_at_end": os.getloadavg()[0],
            "bf16_instructions": torch.cpu._is_avx512_bf16_supported(),
        },
        "versions": {
            "python": platform.python_version(),
            **installed("torch", "transformers", *packages),
        },
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    path = result(f"{name}.json", folder)
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path
